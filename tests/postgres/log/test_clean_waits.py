"""Clean drops its slices while publishers overlap: it waits, and nobody waits for it (F13).

The test holds the transactions. Each begins before the one ends that clean waits for, so at no time
is nobody open; that is what publishers with transactions of a second look like.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import psycopg
import pytest

from ops.retention import storage_postgres
from ops.retention.clean import drop_slices
from ops.retention.storage import SliceDrop, SliceState
from tests.kit.log import (
    Connection,
    backend_pid,
    drain,
    open_transaction,
    put,
    topic,
    value,
    wait_until,
    wait_until_blocked,
)
from tests.kit.proof import proves
from tests.kit.storage import condemn, cut, many, move_low, slices

SIZE = 200
LONG_WAIT = "200ms"

_CLEANS_THAT_WAIT = """
    SELECT count(*) FROM pg_stat_activity AS a
    WHERE a.datname = current_database() AND a.application_name = 'penstock clean'
      AND a.wait_event_type = 'Lock' AND a.query LIKE '%DETACH%'
"""
_CONDEMNED = "SELECT count(*) FROM penstock.slices WHERE condemned_tx IS NOT NULL"
_MARK = "ALTER TABLE penstock.events DETACH PARTITION penstock.{} CONCURRENTLY"


def _full(connection: Connection, count: int = 1) -> None:
    """Slices of events that are full, sequenced, and needed by nobody."""
    topic(connection)
    cut(connection, "events", SIZE, count + 3)
    many(connection, count * SIZE)
    drain(connection)
    put(connection, "in the slice after them")
    drain(connection)
    move_low(connection, count * SIZE)


@contextmanager
def _cleaning(url: str) -> Iterator[Callable[[], Future[list[SliceDrop]]]]:
    """Begins runs of clean that go on beside the test."""
    with ThreadPoolExecutor(2) as pool:
        yield lambda: pool.submit(drop_slices, url)


def _until(running: Future[list[SliceDrop]], condition: Callable[[], bool], what: str) -> None:
    wait_until(lambda: running.done() or condition(), what)
    assert not running.done(), f"clean gave up before: {what}; {running.result()}"


def _waits(connection: Connection) -> Callable[[], bool]:
    return lambda: value(connection, _CLEANS_THAT_WAIT) > 0


@proves("F13", how="PostgreSQL, publishers that overlap")
def test_a_slice_goes_in_one_run_while_publishers_overlap(
    connection: Connection, database_url: str
) -> None:
    """Guards: patience with the snapshots from before it was condemned, and with DETACH.

    The second has begun beside the first, so the snapshot of the first is that of the second too.
    """
    _full(connection)
    with ExitStack() as stack:
        first, second, third, fourth = (
            stack.enter_context(open_transaction(database_url)) for _ in range(4)
        )
        begin = stack.enter_context(_cleaning(database_url))
        put(first, "first")
        running = begin()
        _until(running, lambda: value(connection, _CONDEMNED) == 1, "it is condemned")
        put(second, "second")
        first.commit()
        put(third, "third")
        second.commit()
        _until(running, _waits(connection), "it waits for the third")
        put(fourth, "fourth")
        connection.execute(f"SET lock_timeout = '{LONG_WAIT}'".encode())
        put(connection, "nobody waits behind it")
        third.commit()
        (done,) = running.result(30)
        assert (done.slice, done.state, done.detail) == ("events_1", SliceState.DROPPED, "")
        fourth.commit()
    assert slices(connection, "events")[0] == f"events_{SIZE + 1}"


@proves("F13", guard="a time for each slice")
def test_with_100_ms_for_all_it_does_not(connection: Connection, database_url: str) -> None:
    """Mutant: as little patience as with locks that others wait behind."""
    _full(connection)
    condemn(connection)
    with open_transaction(database_url) as late:
        put(late, "late")
        (done,) = drop_slices(database_url, patience_seconds=0)
        assert done.state is SliceState.HALF_DETACHED
        with open_transaction(database_url) as later:
            put(later, "later")
            late.commit()
            (done,) = drop_slices(database_url, patience_seconds=0)
            assert done.state is SliceState.HALF_DETACHED


def _half_detached(connection: Connection, url: str, name: str) -> None:
    """As a run leaves it that was ended while it waited."""
    with open_transaction(url) as reader:
        reader.execute("SELECT FROM penstock.events LIMIT 1")
        connection.execute("SET statement_timeout = '200ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute(_MARK.format(name).encode())
        connection.execute("RESET statement_timeout")


@proves("F13", how="PostgreSQL, publishers that overlap")
def test_a_half_detached_slice_is_finished_first(connection: Connection, database_url: str) -> None:
    """Guard: the order in _drop_all; DETACH of another slice of the table is refused before it."""
    _full(connection, 3)
    condemn(connection)
    _half_detached(connection, database_url, f"events_{SIZE + 1}")
    done = drop_slices(database_url)
    assert [(each.slice, each.state) for each in done] == [
        (f"events_{SIZE + 1}", SliceState.DROPPED),
        ("events_1", SliceState.DROPPED),
        (f"events_{2 * SIZE + 1}", SliceState.DROPPED),
    ]


@contextmanager
def _old_reader(connection: Connection, url: str) -> Iterator[Connection]:
    """Has a snapshot in which the slice is attached, and has not looked at the table yet."""
    with psycopg.connect(url) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT 1")
        _half_detached(connection, url, "events_1")
        yield reader


@proves("F13", how="PostgreSQL, publishers that overlap")
def test_a_reader_from_before_the_mark_is_not_in_the_way(
    connection: Connection, database_url: str
) -> None:
    """FINALIZE would lock the slice and wait for him, and he would wait for the slice.

    Guard: _nobody_sees_it_attached.
    """
    _full(connection)
    condemn(connection)
    with _old_reader(connection, database_url) as reader, _cleaning(database_url) as begin:
        running = begin()
        _until(
            running,
            lambda: value(connection, _AT_IT, "%snapshot_probe%") > 0,
            "it looks how old snapshots are",
        )
        reader.execute(f"SET LOCAL lock_timeout = '{LONG_WAIT}'".encode())
        assert reader.execute("SELECT count(*) FROM penstock.events").fetchone() == (SIZE + 1,)
        reader.rollback()
        assert [each.state for each in running.result(30)] == [SliceState.DROPPED]


_AT_IT = """
    SELECT count(*) FROM pg_stat_activity AS a
    WHERE a.datname = current_database() AND a.application_name = 'penstock clean'
      AND a.query LIKE %s
"""


@proves("F13", guard="the look at snapshots")
def test_without_a_look_at_snapshots_he_waits_for_the_slice(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: FINALIZE at once."""
    _full(connection)
    condemn(connection)
    monkeypatch.setattr(
        storage_postgres, "_nobody_sees_it_attached", lambda connection, binds: True
    )
    with _old_reader(connection, database_url) as reader, _cleaning(database_url) as begin:
        running = begin()
        _until(running, _waits(connection), "FINALIZE waits for the reader")
        reader.execute(f"SET LOCAL lock_timeout = '{LONG_WAIT}'".encode())
        with pytest.raises(psycopg.errors.LockNotAvailable):
            reader.execute("SELECT count(*) FROM penstock.events")
        reader.rollback()
        running.result(30)


def test_patience_is_not_spent_on_who_is_open_for_long(
    connection: Connection, database_url: str
) -> None:
    """Guard: is_hopeless in _wait.  He is older than all the patience there is: nobody waits."""
    _full(connection)
    condemn(connection)
    with open_transaction(database_url) as late:
        put(late, "late")
        (done,) = drop_slices(database_url, patience_seconds=0.5)
        assert done.state is SliceState.HALF_DETACHED
        wait_until(lambda: value(connection, _OLDEST) > 1, "he is open for longer")
        looked: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            # Not time.sleep itself: other threads of this process sleep too.
            clock = SimpleNamespace(
                monotonic=time.monotonic, sleep=lambda seconds: looked.append("waited")
            )
            patch.setattr(storage_postgres, "time", clock)
            (done,) = drop_slices(database_url, patience_seconds=1)
        assert done.detail == "somebody has a snapshot from before it was detached"
        assert looked == []


_OLDEST = """
    SELECT COALESCE(max(extract(epoch FROM clock_timestamp() - a.xact_start)), 0)
    FROM pg_stat_activity AS a WHERE a.pid <> pg_backend_pid() AND a.datname = current_database()
"""


def test_somebody_else_was_faster(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: the errors that _next_step takes for a result.

    DETACH keeps no lock while it waits: another one is refused, FINALIZE goes on beside it.
    """
    _full(connection)
    condemn(connection)
    monkeypatch.setattr(
        storage_postgres, "_nobody_sees_it_attached", lambda connection, binds: True
    )
    with (
        psycopg.connect(database_url, autocommit=True) as other,
        open_transaction(database_url) as late,
        _cleaning(database_url) as begin,
        ThreadPoolExecutor(1) as pool,
    ):
        put(late, "late")
        running = begin()
        _until(running, _waits(connection), "one waits for a publisher")
        the_slice = (other, storage_postgres.Patience(60), "events", "events_1")
        went_on, problem = storage_postgres._next_step(*the_slice, SliceState.ATTACHED)
        assert (went_on, "already pending detach" in problem) == (False, True)
        step = pool.submit(storage_postgres._next_step, *the_slice, SliceState.HALF_DETACHED)
        wait_until_blocked(connection, backend_pid(other))
        late.commit()
        assert [each.state for each in running.result(30)] == [SliceState.DROPPED]
        step.result(30)
        went_on, problem = storage_postgres._next_step(*the_slice, SliceState.HALF_DETACHED)
        assert (went_on, "does not exist" in problem) == (False, True)


@proves("F13")
def test_two_cleans_at_once_share_the_work(connection: Connection, database_url: str) -> None:
    """What one has done the other finds done."""
    _full(connection, 2)
    condemn(connection)
    with open_transaction(database_url) as late, _cleaning(database_url) as begin:
        put(late, "late")
        first = begin()
        _until(first, _waits(connection), "one waits for a publisher")
        second = begin()
        _until(second, lambda: value(connection, _AT_IT, "%snapshot_probe%") > 0, "and the other")
        late.commit()
        found = first.result(60) + second.result(60)
    assert {each.slice for each in found if each.state is SliceState.DROPPED} == {
        "events_1",
        f"events_{SIZE + 1}",
    }
    assert slices(connection, "events")[0] == f"events_{2 * SIZE + 1}"
