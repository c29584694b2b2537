"""The sinks under attack."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.database.migrate import migrate
from penstock.errors import PenstockError
from tests.relay.conformance.databases import OnPenstock
from tests.relay.conformance.only_take import OnQueue, OnRabbitMQ, OnWebhook
from tests.relay.conformance.under_test import (
    Files,
    OnKafka,
    OnNats,
    OnPulsar,
    OnRedis,
    UnderTest,
)
from tests.relay.conftest import aws_login, receiver, topic
from tests.support import missing
from tools.servers import MYSQL, MySQLServer
from tools.servers.server import DURABLE

__all__ = ["aws_login", "receiver", "topic"]


@pytest.fixture
def under_test(request: pytest.FixtureRequest) -> UnderTest:
    """The sink whose name the test is given."""
    if request.param == "rabbitmq":
        return OnRabbitMQ(request.getfixturevalue("rabbit"), most=None)
    if request.param == "sqs":
        return _queue(request)
    if request.param == "penstock":
        made: UnderTest = request.getfixturevalue("penstock")
        return made
    return _SINKS[request.param].of(request)


_SINKS: dict[str, type[UnderTest]] = {
    each.name: each for each in (Files, OnKafka, OnPulsar, OnRedis, OnNats, OnWebhook)
}


def _queue(request: pytest.FixtureRequest) -> OnQueue:
    """A standard queue, which drops nothing that is sent again."""
    request.getfixturevalue("aws_login")
    server = request.getfixturevalue("elastic")
    return OnQueue(server.url(), fifo=False, restart=server.restart)


@pytest.fixture
def penstock(tmp_path: Path) -> Iterator[OnPenstock]:
    """On a MySQL of its own, because it is killed: every commit is on its disk."""
    server = MySQLServer(tmp_path / "server", MYSQL, settings=DURABLE)
    try:
        server.start()
    except PenstockError as error:
        missing("MySQL", error)

    def restart() -> None:
        server._wanted_port = server.port
        server.kill()
        server.start()

    url = server.url("there")
    migrate(url)
    try:
        yield OnPenstock(url, restart)
    finally:
        server.stop()
