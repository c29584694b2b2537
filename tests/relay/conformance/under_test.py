"""Sinks under test: how each is made, read back and spoiled."""

from __future__ import annotations

import base64
import json
import resource
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pytest

from ops.sinks.address import open_sink
from ops.sinks.base import Sink
from ops.sinks.jsonl import JsonlSink

if TYPE_CHECKING:
    from tests.relay.kafka import KafkaBroker
    from tests.relay.pulsar_broker import Broker
    from tests.relay.stores import StreamsServer
    from tools.servers.nats import NatsServer

#: Sequence and payload.
Stored = tuple[int, bytes]


class UnderTest(ABC):
    """A sink, and what a test does with it besides sending."""

    name: ClassVar[str]
    #: The fixture that it is made of.
    fixture: ClassVar[str]
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
    #: The login, and what else a relay's process is given.
    environ: Mapping[str, str] = {}

    def __init__(self, server: Any) -> None:
        raise NotImplementedError

    @classmethod
    def of(cls, request: pytest.FixtureRequest) -> Self:
        """On the server of its fixture."""
        return cls(request.getfixturevalue(cls.fixture))

    def sink(self) -> Sink:
        """A new one, as of another relay process."""
        return open_sink(self.address, environ=self.environ)

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

    def throttled(self) -> AbstractContextManager[tuple[Sink, float | None]]:
        """A sink that is told to slow down, and after how many seconds it may come again."""
        raise NotImplementedError

    def expired(self) -> AbstractContextManager[tuple[Sink, str]]:
        """A sink whose login is not valid any more, and what no text may hold."""
        raise NotImplementedError

    def full(self, topic: str) -> AbstractContextManager[None]:
        """Meanwhile partition 0 takes no more."""
        raise NotImplementedError


class Files(UnderTest):
    """JSON Lines."""

    name = "jsonl"
    fixture = "tmp_path"
    cannot: ClassVar[Mapping[str, str]] = {
        "too large": "a line of a file has no limit",
        "foreign writer": "each relay writes the same bytes to the same place",
        "throttled": "a file system tells nobody to slow down",
        "login expired": "files need no login",
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

    @contextmanager
    def full(self, topic: str) -> Iterator[None]:
        """The process may not make files larger: the next block is torn."""
        present = JsonlSink(self.folder).path(topic, 0).stat().st_size
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (present + 1_000, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _payload(line: Mapping[str, Any]) -> bytes:
    if "data_base64" in line:
        return base64.b64decode(line["data_base64"])
    return json.dumps(line["data"]).encode()


class OnPulsar(UnderTest):
    """A Pulsar standalone."""

    name = "pulsar"
    fixture = "broker"
    cannot: ClassVar[Mapping[str, str]] = {
        "throttled": "its rate limits delay the answers and refuse nothing",
        "login expired": "the broker of the tests asks for no login",
        "back pressure": "a broker looks at its backlog quotas once a minute",
    }
    slow = frozenset({"unavailable", "shut-down"})

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
    fixture = "kafka_broker"
    cannot: ClassVar[Mapping[str, str]] = {
        "throttled": "its quotas delay the answers and refuse nothing",
        "back pressure": "it delays the answers too, until the client gives up: unavailable",
    }
    slow = frozenset({"unavailable", "shut-down"})

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

    @contextmanager
    def expired(self) -> Iterator[tuple[Sink, str]]:
        """The listener that asks for a login does not know this password."""
        secret = "hunter2-hunter2"
        login = {"PENSTOCK_KAFKA_USERNAME": "relay", "PENSTOCK_KAFKA_PASSWORD": secret}
        yield self.broker.sink(f"kafka://{self.broker.server.login_url()}/p", login), secret


class OnRedis(UnderTest):
    """A Redis that writes its log to disk."""

    name = "redis"
    fixture = "streams_server"
    cannot: ClassVar[Mapping[str, str]] = {
        "too large": "an entry has no limit of its own",
        "throttled": "it has no quotas",
    }

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

    @contextmanager
    def expired(self) -> Iterator[tuple[Sink, str]]:
        """The user has another password now."""
        secret, client = "hunter2", self.server.client
        client.acl_setuser(
            "renewed", enabled=True, passwords=["+other"], categories=["+@all"], keys=["*"]
        )
        login = {"PENSTOCK_REDIS_USERNAME": "renewed", "PENSTOCK_REDIS_PASSWORD": secret}
        yield open_sink(self.address, environ=login), secret

    @contextmanager
    def full(self, topic: str) -> Iterator[None]:
        """Its memory is used up."""
        self.server.client.config_set("maxmemory", 1)
        try:
            yield
        finally:
            self.server.client.config_set("maxmemory", 0)


class OnNats(UnderTest):
    """A NATS server with JetStream."""

    name = "nats"
    fixture = "nats_server"
    cannot: ClassVar[Mapping[str, str]] = {"throttled": "it has no quotas"}

    def __init__(self, server: NatsServer) -> None:
        self.server = server
        self.address = f"nats://{server.address}/conformance?create=true"
        self.away = "nats://127.0.0.1:1/conformance"

    def stored(self, topic: str, known_as: str, partition: int) -> list[Stored]:
        """The messages."""
        with closing(self._nats()) as sink:
            subjects, number = f"{sink.subjects(topic, partition)}.>", 0
            found: list[Stored] = []
            while True:
                asked = {"seq": number + 1, "next_by_subj": subjects}
                answer = sink.connection.api(f"STREAM.MSG.GET.{sink.stream}", asked)
                if "message" not in answer:
                    return found
                message = answer["message"]
                number = message["seq"]
                headers = base64.b64decode(message["hdrs"]).decode()
                sequence = int(headers.partition("ce-sequence: ")[2].partition("\r")[0])
                found.append((sequence, base64.b64decode(message.get("data", ""))))

    def restart(self) -> None:
        """Its crash."""
        self.server.restart()

    def spoil(self, topic: str, known_as: str) -> None:
        """Another relay has sent to the subjects."""
        from tests.kit.sinks import Alone
        from tests.relay.blocks import block

        with closing(Alone(self.sink())) as another:
            another.send_block(block(1, 3, topic=topic, relay="another"))

    def too_large(self) -> int:
        """The server takes one mebibyte."""
        return 1 << 20

    def wrong(self, topic: str) -> tuple[str, str]:
        """A stream that is not there."""
        return f"nats://{self.server.address}/none", "has no stream none"

    @contextmanager
    def expired(self) -> Iterator[tuple[Sink, str]]:
        """The server knows the user, and does not take this password any more."""
        from tests.relay.nats_login import USER

        secret = "hunter2"
        login = {"PENSTOCK_NATS_USERNAME": USER, "PENSTOCK_NATS_PASSWORD": secret}
        yield open_sink(self.address, environ=login), secret

    @contextmanager
    def full(self, topic: str) -> Iterator[None]:
        """The stream has as many messages as it may have."""
        with closing(self._nats()) as sink:
            info = sink.connection.api(f"STREAM.INFO.{sink.stream}")
            limits = {"max_msgs": info["state"]["messages"], "discard": "new"}
            update = f"STREAM.UPDATE.{sink.stream}"
            sink.connection.api(update, info["config"] | limits)
            yield
            sink.connection.api(update, info["config"])

    def _nats(self) -> Any:
        return self.sink()
