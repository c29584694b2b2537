"""A log that many tests only look at."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.kit.log import Connection, drain, put, topic
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
