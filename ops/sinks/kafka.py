"""Apache Kafka, exactly once: one Penstock partition to one Kafka partition, in transactions.

Each partition has a transactional producer for one lease (:mod:`ops.sinks.kafka_producer`), and its
last committed record says what was sent (:mod:`ops.sinks.kafka_tail`). A block is one transaction,
so readers of committed records see all of it or nothing. Kafka's own readers read uncommitted
records by default: they have to set ``isolation.level=read_committed``.

With ``exactly=false``, for brokers without transactions, nothing fences a relay that was paused: it
and its successor may both send the open block, so its events may come twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import SplitResult

from confluent_kafka import Producer

from ops.sinks.base import Channel, SinkLease, SinkMisconfigured
from ops.sinks.kafka_admin import KafkaAdmin, KafkaTopic
from ops.sinks.kafka_channel import KafkaChannel, Place
from ops.sinks.kafka_client import KafkaClient
from ops.sinks.kafka_settings import KafkaSettings, valid_topic

if TYPE_CHECKING:
    from typing import Any

_MIB = 1 << 20
_PROBE_SECONDS = 30


class KafkaSink:
    """Sends each partition of a topic to the partition of the same number of a Kafka topic."""

    name = "kafka"
    max_block_events = 5_000
    max_block_bytes = 8 * _MIB

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings = settings
        self._kafka = KafkaClient(settings)
        self._admin = KafkaAdmin(self._kafka)
        self._limits: dict[str, KafkaTopic] = {}
        self._noted: dict[Place, tuple[Place, int]] = {}
        self._has_transactions = not settings.exactly

    def preflight(self, topic: str, partitions: int) -> None:
        """Check that the Kafka topic has as many partitions, and that the brokers do transactions.

        With ``create`` a missing topic is made this way.
        """
        name = self.settings.topic(topic)
        if not valid_topic(name):
            raise SinkMisconfigured(
                f"Kafka takes no topic of the name {name}",
                hint="a name has at most 249 letters, digits, dots, _ and -",
            )
        self._limits[name] = self._admin.require(name, partitions, create=self.settings.create)
        if not self._has_transactions:
            self._try_transactions()

    @staticmethod
    def address_of(topic: str) -> str:
        """One address for all that are the same Kafka topic."""
        return topic.replace("/", ".")

    def open(self, lease: SinkLease) -> Channel:
        """The channel of a partition."""
        return KafkaChannel(self._kafka, self._admin, lease, self._limits, self._noted)

    def close(self) -> None:
        """Close the connections that the channels share."""
        self._admin.close()

    def _try_transactions(self) -> None:
        """Once: a broker that has none, or that this login may not use so, says it now."""
        with self._kafka.translated("trying transactions"):
            probe: Any = Producer(self._kafka.config({"transactional.id": "penstock/preflight"}))
            probe.init_transactions(_PROBE_SECONDS)
        self._has_transactions = True


def open_sink(parts: SplitResult, *, environ: Mapping[str, str], beside: str = "") -> KafkaSink:
    """The sink of an address `kafka://HOST:PORT[,HOST:PORT]/PREFIX?...`."""
    return KafkaSink(KafkaSettings.of(parts, environ, beside))
