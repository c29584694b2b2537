"""What a publisher keeps, and on which connections."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
import sqlalchemy

import penstock
from penstock.database import timings
from penstock.errors import InvalidArgument, InvalidName
from tests.kit.log import TOPIC, drain, texts, topic

Connection = psycopg.Connection[Any]


class _Counted(psycopg.Cursor[Any]):
    """A cursor that counts how many there are."""

    made = 0

    def __init__(self, *given: Any, **how: Any) -> None:
        type(self).made += 1
        super().__init__(*given, **how)


def test_one_cursor_serves_all_events(database_url: str, connection: Connection) -> None:
    """Guard: prepared; without it each event makes a cursor, which costs a fifth of the call."""
    topic(connection)
    with psycopg.connect(database_url, cursor_factory=_Counted) as own:
        publisher = penstock.publisher(own, TOPIC)
        publisher.publish(b"0")
        own.commit()
        before = _Counted.made
        for number in range(1, 20):
            publisher.publish(b"%d" % number)
            own.commit()
        assert _Counted.made == before
    drain(connection)
    assert texts(connection) == [str(number) for number in range(20)]


def test_its_calls_are_timed_as_others_are(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: _timed in prepared; metrics would miss these calls, also those that fail."""
    topic(connection)
    seen: list[str] = []
    publisher = penstock.publisher(connection, TOPIC)
    monkeypatch.setattr(timings, "observer", lambda name, seconds: seen.append(name))
    publisher.publish(b"x")
    connection.execute("UPDATE penstock.topics SET max_payload_bytes = 1")  # behind its back
    with pytest.raises(penstock.PayloadTooLarge):
        publisher.publish(b"xx")
    assert seen == ["publish", "publish"]


def test_a_server_that_forgot_the_statement_is_asked_again(connection: Connection) -> None:
    """As behind a pooler that was not noticed.  Guard: _run in Repeated."""
    topic(connection)
    publisher = penstock.publisher(connection, TOPIC)
    for number in range(10):
        publisher.publish(b"%d" % number)
    # psycopg notices a plain DEALLOCATE, and prepares again by itself.
    connection.execute("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$", prepare=False)
    publisher.publish(b"10")
    assert connection.prepare_threshold is None
    publisher.publish(b"11")
    drain(connection)
    assert texts(connection) == [str(number) for number in range(12)]


def test_on_other_connections_it_is_publish(database_url: str, connection: Connection) -> None:
    """SQLAlchemy has to know that a transaction begins, so that its commit commits."""
    topic(connection)
    engine = sqlalchemy.create_engine(
        database_url.replace("postgresql://", "postgresql+psycopg://")
    )
    with engine.connect() as own:
        publisher = penstock.publisher(own, TOPIC)
        publisher.publish(b"1")
        own.commit()
        publisher.publish(b"rolled back")
        own.rollback()
    engine.dispose()
    with psycopg.connect(database_url, cursor_factory=psycopg.ClientCursor) as bound:
        penstock.publisher(bound, TOPIC).publish(b"2")
    drain(connection)
    assert texts(connection) == ["1", "2"]


def test_what_it_is_made_of_is_checked(connection: Connection) -> None:
    with pytest.raises(InvalidName):
        penstock.publisher(connection, "bank/a//b")
    with pytest.raises(InvalidArgument, match="not a database connection"):
        penstock.publisher("postgresql://h/x", TOPIC)
