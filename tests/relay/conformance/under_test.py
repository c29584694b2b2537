"""Sinks under test: how each is made, read back and spoiled."""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ops.sinks.address import open_sink
from ops.sinks.base import Sink
from ops.sinks.jsonl import JsonlSink

if TYPE_CHECKING:
    from tests.relay.conftest import Broker
    from tests.relay.kafka import KafkaBroker
    from tests.relay.stores import StreamsServer

#: Sequence and payload.
Stored = tuple[int, bytes]


class UnderTest(ABC):
    """A sink, and what a test does with it besides sending."""

    name: ClassVar[str]
    #: At most once more than once: what was in the open block may come twice, in order.
    exactly: ClassVar[bool] = True
    #: Cases that this sink cannot have, each with the reason.
    cannot: ClassVar[Mapping[str, str]] = {}
    #: Cases that wait until a client gives up.
    slow: ClassVar[frozenset[str]] = frozenset()
    #: As a relay is given it; a missing topic is made.
    address: str
    #: An address at which nobody answers, or nothing can be written.
    away: str

    def sink(self) -> Sink:
        """A new one, as of another relay process."""
        return open_sink(self.address)

    @abstractmethod
    def stored(self, topic: str, known_as: str, partition: int) -> list[Stored]:
        """What careful readers of a partition get, in the order in which they get it."""

    @abstractmethod
    def restart(self) -> None:
        """Stop the broker and start it again, on the same place."""

    def spoil(self, topic: str, known_as: str) -> None:
        """Write into partition 0 what does not belong there."""
        raise NotImplementedError

    def too_large(self) -> int:
        """How many bytes of payload the sink will never take."""
        return 0

    def wrong(self, topic: str) -> tuple[str, str]:
        """An address that preflight refuses for the topic, and what the error says."""
        raise NotImplementedError


class Files(UnderTest):
    """JSON Lines."""

    name = "jsonl"
    cannot: ClassVar[Mapping[str, str]] = {
        "too large": "a line of a file has no limit",
        "foreign writer": "each relay writes the same bytes to the same place",
    }

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "out"
        self.address = f"jsonl:{self.folder}"
        (folder / "file").write_text("")
        self.away = f"jsonl:{folder}/file/out"

    def stored(self, topic: str, known_as: str, partition: int) -> list[Stored]:
        """The lines."""
        path = JsonlSink(self.folder).path(known_as, partition)
        lines = path.read_bytes().splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines]
        return [(int(each["sequence"]), _payload(each)) for each in found]

    def restart(self) -> None:
        """Files are always there."""

    def wrong(self, topic: str) -> tuple[str, str]:
        """Below a file."""
        return self.away, "cannot be made"


def _payload(line: Mapping[str, Any]) -> bytes:
    if "data_base64" in line:
        return base64.b64decode(line["data_base64"])
    return json.dumps(line["data"]).encode()


class OnPulsar(UnderTest):
    """A Pulsar standalone."""

    name = "pulsar"
    slow = frozenset({"unavailable"})

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.address = broker.address
        self.away = "pulsar://127.0.0.1:1/public/default?admin=http://127.0.0.1:1"

    def stored(self, topic: str, known_as: str, partition: int) -> list[Stored]:
        """The messages."""
        found = self.broker.read(self.broker.sink().pulsar_topic(topic), partition)
        return [(int(each.properties()["ce_sequence"]), each.data()) for each in found]

    def restart(self) -> None:
        """The broker's crash."""
        self.broker.standalone.kill()
        self.broker.standalone.start()

    def spoil(self, topic: str, known_as: str) -> None:
        """Another relay has sent to the topic."""
        from tests.kit.sinks import Alone
        from tests.relay.blocks import block

        Alone(self.sink()).send_block(block(1, 3, topic=topic, relay="another"))

    def too_large(self) -> int:
        """The broker takes five mebibytes."""
        return 6 << 20

    def wrong(self, topic: str) -> tuple[str, str]:
        """A namespace that is not there."""
        admin = self.broker.standalone.admin_url
        address = f"{self.broker.standalone.service_url}/public/none?admin={admin}"
        return address, "pulsar-admin namespaces create"


class OnKafka(UnderTest):
    """A Kafka node."""

    name = "kafka"
    slow = frozenset({"unavailable"})

    def __init__(self, broker: KafkaBroker) -> None:
        self.broker = broker
        self.address = broker.address
        self.away = "kafka://127.0.0.1:1/p"

    def stored(self, topic: str, known_as: str, partition: int) -> list[Stored]:
        """The committed records."""
        from tests.relay.kafka import headers

        found = self.broker.read(self.broker.sink().settings.topic(topic), partition)
        return [(int(headers(each)["ce_sequence"]), each.value() or b"") for each in found]

    def restart(self) -> None:
        """Its crash, on the same ports again."""
        self.broker.server.kill()
        self.broker.server.start()

    def spoil(self, topic: str, known_as: str) -> None:
        """Another relay has sent to the topic."""
        from tests.kit.sinks import Alone
        from tests.relay.blocks import block

        Alone(self.sink()).send_block(block(1, 3, topic=topic, relay="another"))

    def too_large(self) -> int:
        """A topic takes one mebibyte."""
        return 2 << 20

    def wrong(self, topic: str) -> tuple[str, str]:
        """A topic that is not there."""
        return self.address.partition("?")[0], "create"


class OnRedis(UnderTest):
    """A Redis that writes its log to disk."""

    name = "redis"
    cannot: ClassVar[Mapping[str, str]] = {"too large": "an entry has no limit of its own"}

    def __init__(self, server: StreamsServer) -> None:
        self.server = server
        self.address = f"redis://127.0.0.1:{server.port}/conformance"
        self.away = "redis://127.0.0.1:1/conformance"

    def stored(self, topic: str, known_as: str, partition: int) -> list[Stored]:
        """The entries."""
        found = self.server.entries(f"conformance:{topic}:{partition}")
        return [(int(place.partition("-")[2]), fields[b"data"]) for place, fields in found]

    def restart(self) -> None:
        """Its crash."""
        self.server.restart()

    def spoil(self, topic: str, known_as: str) -> None:
        """Another relay has sent to the topic."""
        from tests.kit.sinks import Alone
        from tests.relay.blocks import block

        Alone(self.sink()).send_block(block(1, 3, topic=topic, relay="another"))

    def wrong(self, topic: str) -> tuple[str, str]:
        """Something else has the key."""
        self.server.client.set(f"conformance:{topic}:0", "x")
        return self.address, "is no stream"
