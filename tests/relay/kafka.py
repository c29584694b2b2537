"""A Kafka broker under test: sinks on it, what its topics hold, its settings."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from ops.sinks.base import RelayBlock, SinkLease
from ops.sinks.kafka import KafkaSink, open_sink
from ops.sinks.kafka_admin import KafkaAdmin
from ops.sinks.kafka_client import KafkaClient
from ops.sinks.kafka_settings import KafkaSettings
from tools.servers import KafkaServer

SECONDS = 30


@dataclass
class KafkaBroker:
    """The broker of this test process."""

    server: KafkaServer
    _admin: Any = field(default=None)

    @property
    def address(self) -> str:
        """The broker as a relay is given it; a missing Kafka topic is made."""
        return f"kafka://{self.server.url()}/p?create=true"

    def sink(self, address: str = "", environ: Mapping[str, str] | None = None) -> KafkaSink:
        """A sink on this broker."""
        return open_sink(urlsplit(address or self.address), environ=environ or {})

    @property
    def admin(self) -> AdminClient:
        """A client that may do everything."""
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.server.url(), "log_level": 0})
        client: AdminClient = self._admin
        return client

    def producer(self, **settings: Any) -> Producer:
        """A producer of somebody else."""
        return Producer({"bootstrap.servers": self.server.url(), "log_level": 0, **settings})

    def read(self, topic: str, partition: int = 0, *, committed: bool = True) -> list[Message]:
        """The records of a partition, in order; with ``committed`` as careful readers see them."""
        reader = Consumer(
            {
                "bootstrap.servers": self.server.url(),
                "group.id": "unused",
                "log_level": 0,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 5,
            }
        )
        if committed:
            self.settle(topic, partition)
        reader.assign([TopicPartition(topic, partition, 0)])
        found: list[Message] = []
        try:
            while True:
                for message in [reader.poll(1.0), *reader.consume(5000, 0)]:
                    if message is None:  # one without a payload counts as false
                        continue
                    error = message.error()
                    if error is None:
                        found.append(message)
                    else:
                        assert error.code() == KafkaError._PARTITION_EOF, error
                        return found
        finally:
            reader.close()

    def settle(self, topic: str, partition: int = 0) -> None:
        """Wait for the ends of committed transactions: their marks come after the answer."""
        admin = KafkaAdmin(KafkaClient(KafkaSettings(self.server.url())))
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            _, end, settled = admin.ends(topic, partition)
            if settled == end:
                return
        raise AssertionError(f"a transaction is open in {topic} partition {partition}")

    def sequences(self, topic: str, partition: int = 0, *, committed: bool = True) -> list[int]:
        """The sequences of a partition, in the order in which they lie there."""
        found = self.read(topic, partition, committed=committed)
        return [int(headers(each)["ce_sequence"]) for each in found]

    def configure(self, topic: str, **values: str) -> None:
        """Change settings of a topic; a name's dots are written as underscores."""
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in values.items()
        ]
        asked = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        self.admin.incremental_alter_configs([asked])[asked].result(SECONDS)

    def empty(self, topic: str, partition: int = 0) -> None:
        """Delete all records of a partition, as retention does."""
        place = TopicPartition(topic, partition, -1)
        for each in self.admin.delete_records([place]).values():
            each.result(SECONDS)

    def allow(
        self,
        user: str,
        name: str,
        *operations: AclOperation,
        kind: ResourceType = ResourceType.TOPIC,
    ) -> None:
        """Allow a user this on a topic, which then is closed to all others."""
        bindings = [
            AclBinding(
                kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*",
                each, AclPermissionType.ALLOW,
            )
            for each in operations
        ]  # fmt: skip
        for each in self.admin.create_acls(bindings).values():
            each.result(SECONDS)


def headers(message: Message) -> dict[str, str]:
    """The headers as texts."""
    found: Any = message.headers() or ()
    return {name: text.decode() for name, text in found}


def lease_of(block: RelayBlock) -> SinkLease:
    """The lease under which a block is sent."""
    return SinkLease(
        block.relay, block.topic, block.known_as, block.partition, block.history, block.lease_epoch
    )


def stored(broker: KafkaBroker, sink: KafkaSink, topic: str) -> list[int]:
    """The committed sequences of partition 0."""
    return broker.sequences(sink.settings.topic(topic))
