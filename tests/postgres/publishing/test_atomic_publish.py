"""An event exists if and only if its transaction commits, savepoints included."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
import sqlalchemy

from penstock.publishing.bulk import publish_bulk
from penstock.publishing.publish import publish, publish_batch
from penstock.records import Message
from tests.guards import without_guard
from tests.kit.log import TOPIC, Connection, drain, texts, topic, value

Steps = Callable[[str], None]

_BATCH = """
    SELECT published FROM penstock.publish_batch(
        ARRAY[%s, 'no/topic'], ARRAY['a', 'b']::bytea[], NULL, NULL, NULL, NULL, NULL, NULL)
"""


def _with_psycopg(url: str) -> None:
    with psycopg.connect(url) as connection:
        publish(connection, TOPIC, b"kept")
        with pytest.raises(ZeroDivisionError), connection.transaction():
            publish_batch(connection, [Message(TOPIC, b"undone"), Message(TOPIC, b"undone")])
            raise ZeroDivisionError
        publish_bulk(connection, [Message(TOPIC, b"bulk")])
        connection.commit()
        publish(connection, TOPIC, b"rolled back")
        connection.rollback()


def _with_sqlalchemy(url: str) -> None:
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with engine.begin() as connection:
            publish(connection, TOPIC, b"kept")
            savepoint = connection.begin_nested()
            publish(connection, TOPIC, b"undone")
            savepoint.rollback()
            publish_bulk(connection, [Message(TOPIC, b"bulk")])
        with engine.connect() as connection:
            publish(connection, TOPIC, b"rolled back")
            connection.rollback()
    finally:
        engine.dispose()


def _with_plain_sql(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in (
            "BEGIN",
            f"SELECT penstock.publish('{TOPIC}', 'kept')",
            "SAVEPOINT a",
            f"SELECT penstock.publish('{TOPIC}', 'undone')",
            "ROLLBACK TO SAVEPOINT a",
            f"SELECT penstock.publish('{TOPIC}', 'bulk')",
            "COMMIT",
            "BEGIN",
            f"SELECT penstock.publish('{TOPIC}', 'rolled back')",
            "ROLLBACK",
        ):
            connection.execute(statement.encode())


@pytest.mark.parametrize("steps", [_with_psycopg, _with_sqlalchemy, _with_plain_sql])
def test_what_was_rolled_back_leaves_nothing(
    connection: Connection, database_url: str, steps: Steps
) -> None:
    """Guard: publish is an insert in the caller's transaction and nothing else."""
    topic(connection)
    steps(database_url)
    assert drain(connection) == 2
    assert texts(connection) == ["kept", "bulk"]
    assert value(connection, "SELECT count(*) FROM penstock.events") == 2


def test_a_refused_batch_publishes_nothing(connection: Connection) -> None:
    """Guard: publish_batch counts what was right; event_problem is asked for every event."""
    topic(connection)
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(_BATCH, (TOPIC,))
    assert caught.value.sqlstate == "PS002"
    assert drain(connection) == 0


def test_without_the_check_half_a_batch_is_written(connection: Connection) -> None:
    """Mutant: publish_batch does not ask whether all of its events were right."""
    topic(connection)
    complete = "published + cardinality(duplicates) < cardinality(publish_batch.topics)"
    without_guard(connection, "publish_batch", complete, "false")
    assert value(connection, _BATCH, TOPIC) == 1
    assert drain(connection) == 1
