"""A real Pulsar broker, once per test process, and topics on it."""

from __future__ import annotations

import itertools
import json
import logging
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pulsar
import pytest

from ops.sinks.pulsar import PulsarSink
from tests.kit import certificates
from tests.kit.sinks import Alone
from tests.relay.kafka import KafkaBroker
from tests.relay.rabbits import Rabbit
from tests.relay.receivers import Receiver, receiving
from tests.support import missing
from tools.pulsar import PulsarStandalone, PulsarUnavailable
from tools.servers import KafkaServer, RabbitServer, ServerUnavailable

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Broker:
    """A broker under test."""

    standalone: PulsarStandalone

    @property
    def address(self) -> str:
        """The broker as a relay is given it; a missing Pulsar topic is made."""
        admin = self.standalone.admin_url
        return f"{self.standalone.service_url}/public/default?admin={admin}&create=true"

    def sink(self, **options: Any) -> PulsarSink:
        """A sink on this broker."""
        given: dict[str, Any] = {"create": True, "send_timeout_seconds": 15}
        return PulsarSink(
            self.standalone.service_url, admin_url=self.standalone.admin_url, **given | options
        )

    def admin(self, method: str, path: str, value: Any = None) -> None:
        """One call of the admin interface."""
        request = urllib.request.Request(
            f"{self.standalone.admin_url}/admin/v2/{path}",
            data=None if value is None else json.dumps(value).encode(),
            method=method,
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=20):
            pass

    def read(self, pulsar_topic: str, partition: int) -> list[pulsar.Message]:
        """Every message of a partition, in the order in which it lies there."""
        client = pulsar.Client(self.standalone.service_url, logger=quiet())
        try:
            reader = client.create_reader(
                f"{pulsar_topic}-partition-{partition}",
                pulsar.MessageId.earliest,
                receiver_queue_size=10_000,
            )
            found = []
            while reader.has_message_available():
                found.append(reader.read_next(20_000))
            return found
        finally:
            client.close()

    def sequences(self, pulsar_topic: str, partition: int) -> list[int]:
        """The sequences of a partition, in the order in which they lie there."""
        return [int(m.properties()["ce_sequence"]) for m in self.read(pulsar_topic, partition)]


def quiet() -> Any:
    """A logger for clients whose errors are looked at in the test."""
    return pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A Pulsar standalone for this test process."""
    standalone = PulsarStandalone(tmp_path_factory.mktemp("pulsar"), die_with_parent=True)
    try:
        standalone.start()
    except PulsarUnavailable as error:
        missing("Pulsar", error)
    try:
        yield Broker(standalone)
    finally:
        standalone.stop()


@pytest.fixture(scope="session")
def kafka_broker(kafka_server: KafkaServer) -> KafkaBroker:
    """The Kafka of this test process."""
    return KafkaBroker(kafka_server)


@pytest.fixture
def topic() -> str:
    """The name of a topic of this test's own, also on a server that tests share."""
    return f"bank/accounts-{next(_numbers)}"


@pytest.fixture
def pulsar_sink(broker: Broker) -> Iterator[Callable[..., Alone]]:
    """Makes sinks that are closed at the end."""
    made: list[Alone] = []

    def make(**options: Any) -> Alone:
        made.append(Alone(broker.sink(**options)))
        return made[-1]

    yield make
    for sink in made:
        sink.close()


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    """A server that speaks the protocols of SQS and SNS."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(
        ip_address="127.0.0.1", port=0, verbose=False
    )
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def aws_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """boto3 reads its login from the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")


@pytest.fixture(scope="session")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rabbit]:
    """A RabbitMQ for this test process."""
    folder = tmp_path_factory.mktemp("rabbitmq")
    made = certificates.make(folder)
    server = RabbitServer(folder / "server", tls=(*made.server, made.authority))
    try:
        server.start()
    except ServerUnavailable as error:
        missing("RabbitMQ", error)
    yield Rabbit(server, made.authority)
    server.stop()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver of webhooks that takes everything."""
    with receiving() as made:
        yield made


@pytest.fixture
def sqs(endpoint: str, aws_login: None) -> str:
    """The address of SQS, with a login in the environment."""
    return endpoint
