"""What a relay asks of Kafka besides sending: partitions, limits, rights, ends of partitions."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, OffsetSpec
from confluent_kafka.cimpl import NewTopic, TopicPartition

from ops.sinks.base import SinkMisconfigured
from ops.sinks.kafka_client import ANSWER_SECONDS, NEVER, KafkaClient
from ops.sinks.kafka_settings import log

#: The limit of a topic when this login may not read it: Kafka's own default.
DEFAULT_MAX_BYTES = 1_048_588

#: So many copies of an event survive the loss of a disk.
_SAFE = 2
_POLL_SECONDS = 0.02
_NEEDED = {AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE}
_MISSING = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
_FORBIDDEN = KafkaError.TOPIC_AUTHORIZATION_FAILED


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """What a topic takes."""

    max_bytes: int = DEFAULT_MAX_BYTES
    #: Whether only the last record of each key stays.
    is_compacted: bool = False


class KafkaAdmin:
    """A few calls of the admin interface, on one client that is made at the first."""

    def __init__(self, client: KafkaClient) -> None:
        self._kafka = client
        self._lock = threading.Lock()
        self._made: Any = None

    def close(self) -> None:
        """Close the connections."""
        self._made = None

    def require(self, name: str, partitions: int, *, create: bool) -> KafkaTopic:
        """The topic, with as many partitions; with ``create`` a missing one is made."""
        with self._kafka.translated(f"topic {name}"):
            found = self._describe(name)
            if found is None and create:
                self._create(name, partitions)
                found = self._created(name)
            _require_partitions(name, found, partitions)
            _require_rights(name, found)
            return self._limits(name, min(len(each.replicas) for each in found.partitions))

    def ends(
        self, name: str, partition: int, ended: threading.Event = NEVER
    ) -> tuple[int, int, int]:
        """Where a partition begins, where it ends, and up to where all transactions have ended."""
        place = TopicPartition(name, partition)
        with self._kafka.translated(f"the end of {name} partition {partition}"):
            asked = [
                self._offset(place, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED),
                self._offset(place, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED),
                self._offset(place, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED),
            ]
            end, settled, first = (self._answer(each, ended).offset for each in asked)
        return int(first), int(end), int(settled)

    def _offset(self, place: TopicPartition, which: Any, isolation: Any) -> Any:
        client = self._client()
        return client.list_offsets(
            {place: which}, isolation_level=isolation, request_timeout=ANSWER_SECONDS
        )[place]

    def _describe(self, name: str) -> Any:
        try:
            asked = self._client().describe_topics(
                TopicCollection([name]),
                include_authorized_operations=True,
                request_timeout=ANSWER_SECONDS,
            )
            return self._answer(asked[name])
        except KafkaException as error:
            if error.args[0].code() in _MISSING:
                return None
            raise

    def _create(self, name: str, partitions: int) -> None:
        wanted = NewTopic(name, num_partitions=partitions, replication_factor=-1)
        try:
            self._answer(
                self._client().create_topics([wanted], operation_timeout=ANSWER_SECONDS)[name]
            )
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def _created(self, name: str) -> Any:
        """The topic, once a broker knows it and each of its partitions has a leader."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            found = self._describe(name)
            led = found is not None and all(each.leader for each in found.partitions)
            if led or time.monotonic() > deadline:
                return found
            time.sleep(_POLL_SECONDS)

    def _limits(self, name: str, replicas: int) -> KafkaTopic:
        asked = ConfigResource(ConfigResource.Type.TOPIC, name)
        try:
            values: Any = self._answer(
                self._client().describe_configs([asked], request_timeout=ANSWER_SECONDS)[asked]
            )
        except KafkaException as error:
            if error.args[0].code() != _FORBIDDEN:
                raise
            _warn(f"this login may not read the settings of the Kafka topic {name}")
            return KafkaTopic()
        insync = int(values["min.insync.replicas"].value)
        if min(replicas, insync) < _SAFE:
            _warn(
                f"the Kafka topic {name} has {replicas} replicas and min.insync.replicas {insync}: "
                "with less than 2 of each, events are lost with a broker's disk"
            )
        compacted = "compact" in values["cleanup.policy"].value
        if compacted:
            _warn(f"the Kafka topic {name} is compacted: of each key the last event stays")
        return KafkaTopic(int(values["max.message.bytes"].value), compacted)

    def _answer(self, asked: Any, ended: threading.Event = NEVER) -> Any:
        return self._kafka.answer(asked, self._client(), ended)

    def _client(self) -> AdminClient:
        with self._lock:
            if self._made is None:
                self._made = AdminClient(self._kafka.config({}))
            made: AdminClient = self._made
        return made


@cache
def _warn(text: str) -> None:
    """Once in a process: the topic is looked at again for each partition that is new."""
    log.warning("%s", text)


def _require_partitions(name: str, found: Any, wanted: int) -> None:
    if found is None:
        raise SinkMisconfigured(
            f"the Kafka topic {name} does not exist",
            hint=f"run: kafka-topics.sh --create --topic {name} --partitions {wanted} "
            "--bootstrap-server HOST:9092, or add create=true to the address",
        )
    has = len(found.partitions)
    if has != wanted:
        raise SinkMisconfigured(
            f"the Kafka topic {name} has {has} partitions instead of {wanted}",
            hint=f"run: kafka-topics.sh --alter --topic {name} --partitions {wanted} "
            "--bootstrap-server HOST:9092"
            if has < wanted
            else "name another prefix for the relay",
        )


def _require_rights(name: str, found: Any) -> None:
    """Brokers without an authorizer tell nothing here, or everything."""
    if not found.authorized_operations:
        return
    missing = sorted(each.name for each in _NEEDED - set(found.authorized_operations))
    if missing:
        raise SinkMisconfigured(
            f"this login lacks {', '.join(missing)} on the Kafka topic {name}",
            hint="a relay reads back what it has sent: give it READ, WRITE, DESCRIBE and "
            "DESCRIBE_CONFIGS on the topic",
        )
