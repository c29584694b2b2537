"""The brokers and stores that relays write to, for all tests: one of each in a test process.

A pytest plugin: a session's fixture that two files import would start its server twice. Nothing is
imported before it is needed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from penstock.errors import PenstockError
from tests.support import missing

if TYPE_CHECKING:
    from resources.folder_server import FolderServer
    from tests.relay.kafka import KafkaBroker
    from tests.relay.pulsar_broker import Broker
    from tests.relay.rabbits import Rabbit
    from tests.relay.stores import StreamsServer
    from tools.servers import KafkaServer
    from tools.servers.elasticmq import ElasticServer
    from tools.servers.nats import NatsServer

    Server = TypeVar("Server", bound=FolderServer)


def _running(server: Server, title: str) -> Iterator[Server]:
    """The server, until the fixture ends."""
    try:
        server.start()
    except PenstockError as error:
        missing(title, error)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A Kafka for this test process, from Maven."""
    from tools.servers import KafkaServer

    yield from _running(KafkaServer(tmp_path_factory.mktemp("kafka")), "Kafka")


@pytest.fixture(scope="session")
def kafka_broker(kafka_server: KafkaServer) -> KafkaBroker:
    """The same, with what tests ask of it."""
    from tests.relay.kafka import KafkaBroker

    return KafkaBroker(kafka_server)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A Pulsar standalone for this test process."""
    from tests.relay.pulsar_broker import Broker
    from tools.pulsar import PulsarStandalone, PulsarUnavailable

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
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rabbit]:
    """A RabbitMQ for this test process."""
    from tests.kit import certificates
    from tests.relay.rabbits import Rabbit
    from tools.servers import RabbitServer

    folder = tmp_path_factory.mktemp("rabbitmq")
    made = certificates.make(folder)
    server = RabbitServer(folder / "server", tls=(*made.server, made.authority))
    for each in _running(server, "RabbitMQ"):
        yield Rabbit(each, made.authority)


@pytest.fixture(scope="session")
def streams_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamsServer]:
    """A Redis for this test process, which writes its log to disk."""
    from tests.relay.stores import StreamsServer

    yield from _running(StreamsServer(tmp_path_factory.mktemp("streams")), "Redis")


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A NATS for this test process: nobody has to log in, and one login is known."""
    from tests.relay.nats_login import CONFIGURATION
    from tools.servers.nats import NatsServer

    yield from _running(NatsServer(tmp_path_factory.mktemp("nats"), CONFIGURATION), "NATS")


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    """A server in this process that speaks the protocols of SQS and SNS."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(
        ip_address="127.0.0.1", port=0, verbose=False
    )
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture(scope="session")
def elastic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ElasticServer]:
    """An ElasticMQ for this test process, which speaks SQS."""
    from tools.servers.elasticmq import ElasticServer

    yield from _running(ElasticServer(Path(tmp_path_factory.mktemp("elasticmq"))), "ElasticMQ")
