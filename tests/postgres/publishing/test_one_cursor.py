"""A call on psycopg's connection keeps its cursor for the next one."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import psycopg
import pytest

import penstock
from penstock import database
from penstock.database.postgres import connection as driver
from tests.kit.log import TOPIC, drain, texts, topic
from tests.kit.proof import proves

Connection = psycopg.Connection[Any]


class _Counted(psycopg.Cursor[Any]):
    """A cursor that counts how many there are."""

    made = 0

    def __init__(self, *given: Any, **how: Any) -> None:
        type(self).made += 1
        super().__init__(*given, **how)


def _publish(connection: Connection, number: int) -> None:
    penstock.publish(connection, TOPIC, b"%d" % number)


@proves("S1 to S3 of a kept cursor")
def test_one_cursor_serves_all_events(database_url: str, connection: Connection) -> None:
    """Guard: _SPARE; without it each event makes a cursor, which costs a quarter of the call."""
    topic(connection)
    with psycopg.connect(database_url, cursor_factory=_Counted) as own:
        _publish(own, 0)
        own.commit()
        before = _Counted.made
        for number in range(1, 20):
            _publish(own, number)
            own.commit()
        assert _Counted.made == before
    drain(connection)
    assert texts(connection) == [str(number) for number in range(20)]


@proves("S1 to S3 of a kept cursor")
def test_each_thread_has_its_own(database_url: str, connection: Connection) -> None:
    """The second call begins before the rows of the first are read.  Guard: it is taken out."""
    begun, go_on = threading.Event(), threading.Event()
    found: list[Any] = []

    class Held(psycopg.Cursor[Any]):
        def fetchall(self) -> list[Any]:
            if not begun.is_set():
                begun.set()
                assert go_on.wait(30)
            return super().fetchall()

    with psycopg.connect(database_url, cursor_factory=Held, autocommit=True) as own:
        first = threading.Thread(
            target=lambda: found.append(database.execute(own, "SELECT 1, %(a)s", {"a": "x"}))
        )
        first.start()
        assert begun.wait(30)
        found.append(database.execute(own, "SELECT 2, %(a)s", {"a": "y"}))
        go_on.set()
        first.join()
    assert found == [[(2, "y")], [(1, "x")]]


@proves("S1 to S3 of a kept cursor")
def test_what_has_failed_or_is_large_is_not_kept(connection: Connection) -> None:
    """It would hold its last result.  Guards: the limit of rows, and that an error keeps none."""
    sizes = {1: True, driver._MOST_SPARE_ROWS + 1: False}
    for size, is_kept in sizes.items():
        database.execute(connection, "SELECT generate_series(1, %(size)s)", {"size": size})
        assert hasattr(connection, driver._SPARE) == is_kept
    with pytest.raises(psycopg.errors.DivisionByZero):
        database.execute(connection, "SELECT 1 / %(a)s", {"a": 0})
    assert not hasattr(connection, driver._SPARE)


def test_its_result_is_let_go(connection: Connection) -> None:
    """Guard: clear; a hundred large rows would stay in memory until the next call."""
    rows = database.execute(connection, "SELECT repeat('x', 1000), %(a)s", {"a": "y"})
    assert rows == [("x" * 1000, "y")]
    assert not vars(connection)[driver._SPARE].pgresult.pgresult_ptr
    assert database.execute(connection, "SELECT 1, %(a)s", {"a": "z"}) == [(1, "z")]


def test_a_connection_that_is_dropped_is_closed(database_url: str) -> None:
    """At once, as without Penstock.  Guard: the weak way back in _spare_cursor."""
    own = psycopg.connect(database_url)
    database.execute(own, "SELECT 1, %(a)s", {"a": "x"})
    socket, gone = weakref.ref(own.pgconn), weakref.ref(own)
    gc.disable()
    try:
        with pytest.warns(ResourceWarning, match="still open"):
            del own
        assert (gone(), socket()) == (None, None)
    finally:
        gc.enable()


def test_a_server_that_forgot_the_statement_is_asked_again(connection: Connection) -> None:
    """As behind a pooler that was not noticed.  Guard: _run."""
    topic(connection)
    for number in range(10):
        _publish(connection, number)
    # psycopg notices a plain DEALLOCATE, and prepares again by itself.
    connection.execute("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$", prepare=False)
    _publish(connection, 10)
    assert connection.prepare_threshold is None
    _publish(connection, 11)
    drain(connection)
    assert texts(connection) == [str(number) for number in range(12)]


def test_in_a_pipeline_none_is_kept(connection: Connection) -> None:
    """A result comes later there.  Two calls have their own rows."""
    with connection.pipeline():
        rows = [database.execute(connection, "SELECT %(a)s::int", {"a": a}) for a in (1, 2)]
    assert rows == [[(1,)], [(2,)]]


@proves("S1 to S3 of a kept cursor")
def test_what_the_connection_learns_it_can_send(database_url: str, connection: Connection) -> None:
    """A batch after single events: columns go as binary arrays.  Guard: sends forgets the spare."""
    topic(connection)
    with psycopg.connect(database_url, autocommit=True) as own:
        _publish(own, 1)
        penstock.publish_batch(own, [penstock.Message(TOPIC, b"2"), penstock.Message(TOPIC, b"3")])
    drain(connection)
    assert sorted(texts(connection)) == ["1", "2", "3"]
