"""No DDL makes a publisher wait longer than the 100 ms after which it gives up (F13).

The database measures: publishers run with a ``lock_timeout`` a little above those 100 ms, so that a
longer wait is an error of theirs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from ops.retention.clean import drop_slices
from ops.retention.storage import SliceState
from penstock import log
from tests.guards import without_guard
from tests.kit.log import (
    TOPIC,
    Connection,
    backend_pid,
    drain,
    open_transaction,
    put,
    read,
    topic,
    value,
    wait_until,
    wait_until_blocked,
)
from tests.kit.proof import proves
from tests.kit.storage import condemn, cut, many, move_low, slices

LONGEST_WAIT = "200ms"
SIZE = 200

#: How long the oldest transaction has been open, by the clock of the database.
OLDEST = """
    SELECT COALESCE(max(extract(epoch FROM clock_timestamp() - a.xact_start)), 0)
    FROM pg_stat_activity AS a WHERE a.pid <> pg_backend_pid()
"""


@contextmanager
def _publishers(url: str) -> Iterator[list[int]]:
    """Somebody publishes all the time; what he waited too long for fails the test at the end."""
    stop = threading.Event()
    published = [0]

    def publish() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"SET lock_timeout = '{LONGEST_WAIT}'".encode())
            while not stop.is_set():
                put(connection, "steady")
                published[0] += 1

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(publish)
        try:
            yield published
        finally:
            stop.set()
            running.result()


@proves("F13")
@pytest.mark.parametrize("seconds", [0, pytest.param(600, marks=pytest.mark.long)])
def test_a_publisher_is_open_while_three_slices_fill_and_one_is_dropped(
    connection: Connection, database_url: str, seconds: int
) -> None:
    """Guards: ATTACH of a plain table, DETACH CONCURRENTLY, lock_timeout 100 ms.

    The slice is gone from the log at once, and from the disk when the publisher has ended.
    """
    topic(connection)
    cut(connection, "events", SIZE, 5)
    many(connection, SIZE)
    drain(connection)
    put(connection, "in the second slice")
    drain(connection)
    move_low(connection, SIZE)
    condemn(connection)
    with open_transaction(database_url) as late:
        put(late, "late")
        with _publishers(database_url) as published:
            states = [each.state for each in drop_slices(database_url, patience_seconds=0)]
            assert states == [SliceState.HALF_DETACHED]
            wait_until(lambda: published[0] > 3 * SIZE, "three slices fill")
            wait_until(
                lambda: value(connection, OLDEST) >= seconds, "it is open for long", seconds + 60
            )
            connection.execute("SELECT penstock.add_slice('events', 1000)")
            drain(connection)
            states = [each.state for each in drop_slices(database_url, patience_seconds=0)]
            assert states == [SliceState.HALF_DETACHED]
            assert value(connection, "SELECT max(id) FROM penstock.events") > 4 * SIZE
            late.commit()
            wait_until(
                lambda: drop_slices(database_url)[0].state is SliceState.DROPPED, "it is dropped"
            )
            put(connection, "last")
    drain(connection)
    assert slices(connection, "events")[0] == f"events_{SIZE + 1}"
    found: list[bytes] = []
    while more := log.fetch(connection, TOPIC, 0, SIZE + 1 + len(found), 100_000):
        found += [event.payload for event in more]
    assert len(found) == published[0] + 3
    assert found.count(b"late") == 1


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE penstock.events DETACH PARTITION penstock.events_1",
        "CREATE TABLE penstock.events_0 PARTITION OF penstock.events FOR VALUES FROM (-9) TO (0)",
        "DROP TABLE penstock.events_1",
    ],
)
def test_other_ddl_makes_publishers_wait(
    connection: Connection, database_url: str, statement: str
) -> None:
    """Mutants: the other ways, and without a limit; the publisher behind them waits too long."""
    topic(connection)
    cut(connection, "events", SIZE)
    with (
        open_transaction(database_url) as late,
        psycopg.connect(database_url, autocommit=True) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        put(late, "late")
        waiting = pool.submit(other.execute, statement.encode())
        wait_until_blocked(connection, backend_pid(other))
        connection.execute(f"SET lock_timeout = '{LONGEST_WAIT}'".encode())
        with pytest.raises(psycopg.errors.LockNotAvailable):
            put(connection, "behind it")
        late.rollback()
        waiting.result()


def test_a_slice_is_added_under_an_open_publisher(
    connection: Connection, database_url: str
) -> None:
    """Guard: add_slice attaches a plain table."""
    topic(connection)
    with open_transaction(database_url) as late:
        put(late, "late")
        connection.execute("SELECT penstock.add_slice('events', 1000)")


def test_created_as_a_partition_it_is_not(connection: Connection, database_url: str) -> None:
    """Mutant: CREATE TABLE ... PARTITION OF; the limit of 100 ms is what is left."""
    topic(connection)
    without_guard(
        connection,
        "add_slice",
        "EXECUTE format(\n"
        "        'CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS"
        " INCLUDING STORAGE INCLUDING INDEXES)',\n"
        "        slice_name, parent);",
        "EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES FROM (%s) TO (%s)', slice_name,"
        " parent, start_id, start_id + size); RETURN slice_name;",
    )
    with open_transaction(database_url) as late:
        put(late, "late")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute("SELECT penstock.add_slice('events', 1000)")


def test_storage_that_cannot_be_made_now_stops_no_sequencer(
    connection: Connection, database_url: str
) -> None:
    """Guard: ensure_slices leaves a locked table to the next call."""
    topic(connection)
    connection.execute("SELECT setval('penstock.events_id', 10000000)")
    with open_transaction(database_url) as other:
        other.execute("LOCK TABLE penstock.events IN SHARE UPDATE EXCLUSIVE MODE")
        assert log.ensure_slices(connection) == 0
    assert log.ensure_slices(connection) > 0
    assert read(connection) == []
