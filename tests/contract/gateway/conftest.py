"""One gateway for all tests of an engine; each test has accounts of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.publishing import known_topics
from tests import servers
from tests.contract.databases import ContractDatabase, MySQLDatabase, PostgresDatabase
from tests.contract.gateway.kit import Client, Gateway, gateway_of
from tests.contract.gateway.page_kit import Visitor, served
from tests.contract.gateway.sqs_kit import sqs_of
from tests.support import PostgresServer

_numbers = itertools.count(1)


@pytest.fixture(scope="package", params=servers.DATABASES)
def shared_database(request: pytest.FixtureRequest) -> Iterator[ContractDatabase]:
    """A fresh, migrated database of each engine."""
    if request.param != "postgres":
        schema: MySQLDatabase = request.getfixturevalue(f"installed_{request.param}")
        schema.reset()
        yield schema
        schema.close()
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    template = request.getfixturevalue("migrated_template")
    known_topics.clear()
    made = PostgresDatabase("postgres", server.create(f"{template}_gateway", template))
    yield made
    made.close()
    server.drop(f"{template}_gateway")


@pytest.fixture(scope="package")
def gateway(shared_database: ContractDatabase) -> Iterator[Gateway]:
    """A gateway over it."""
    with gateway_of(shared_database) as made:
        yield made


@pytest.fixture
def shop(gateway: Gateway) -> Client:
    """A new account with a key of all levels."""
    return gateway.client(f"shop{next(_numbers)}")


@pytest.fixture
def bank(gateway: Gateway) -> Client:
    """Another one."""
    return gateway.client(f"bank{next(_numbers)}")


@pytest.fixture
def sqs(shop: Client) -> Any:
    """boto3 for a new account."""
    return sqs_of(shop)


@pytest.fixture
def url(sqs: Any) -> str:
    """A queue `mails`."""
    return str(sqs.create_queue(QueueName="mails")["QueueUrl"])


@pytest.fixture
def sequencing(gateway: Gateway) -> Iterator[None]:
    """Events get their sequences all the time."""
    with gateway.sequencing():
        yield


@pytest.fixture(scope="package")
def shared_page(gateway: Gateway) -> Iterator[Visitor]:
    """The page of the gateway's database."""
    with served(gateway.db.url) as found:
        yield found


@pytest.fixture
def page(shared_page: Visitor) -> Visitor:
    """Somebody who has signed in."""
    found = Visitor(shared_page.port)
    assert found.sign_in().status == 303
    return found
