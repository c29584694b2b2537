"""A log that many tests only look at, and tenants."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.kit.log import Connection, drain, put, topic
from tests.kit.tenants import Tenants, tenant, three_topics
from tests.support import PostgresServer


@pytest.fixture(scope="module")
def log_of_one(postgres_server: PostgresServer, migrated_template: str) -> Iterator[Connection]:
    """A topic with one event, for tests that change nothing."""
    name = f"{migrated_template}_one"
    url = postgres_server.create(name, migrated_template)
    with psycopg.connect(url, autocommit=True) as connection:
        topic(connection)
        put(connection, "1")
        drain(connection)
        yield connection
    postgres_server.drop(name)


@pytest.fixture
def tenants(connection: Connection, database_url: str) -> Iterator[Tenants]:
    """A topic for us, one for them and an open one."""
    with three_topics(connection, database_url) as found:
        yield found


@pytest.fixture
def us(tenants: Tenants) -> str:
    """A login with all verbs in our namespace."""
    return tenant(tenants, "ours")


@pytest.fixture
def they(tenants: Tenants) -> str:
    """The same in their namespace."""
    return tenant(tenants, "theirs")
