"""What the tests of relays share beside the servers (`tests/brokers.py`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import _fresh as fresh
from tests.kit.sinks import Alone
from tests.relay.pulsar_broker import Broker
from tests.relay.receivers import Receiver, receiving
from tests.support import PostgresServer
from tools.servers.elasticmq import ElasticServer

_numbers = itertools.count(1)


@pytest.fixture
def topic() -> str:
    """The name of a topic of this test's own, also on a server that tests share."""
    return f"bank/accounts-{next(_numbers)}"


@pytest.fixture
def target_url(postgres_server: PostgresServer, migrated_template: str) -> Iterator[str]:
    """The URL of a database to relay to, beside the test's own."""
    yield from fresh(postgres_server, migrated_template)


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


@pytest.fixture
def aws_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """boto3 reads its login from the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver of webhooks that takes everything."""
    with receiving() as made:
        yield made


@pytest.fixture
def sqs(endpoint: str, aws_login: None) -> str:
    """The address of SQS, with a login in the environment."""
    return endpoint


@pytest.fixture
def elastic_sqs(elastic: ElasticServer, aws_login: None) -> str:
    """The address of an ElasticMQ, with a login in the environment."""
    return elastic.url()
