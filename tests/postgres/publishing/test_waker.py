"""A publisher wakes the sequencer after its COMMIT, and never because of a rollback."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as async_orm

import penstock
import penstock.aio
from penstock import database
from penstock.errors import InvalidArgument, PermissionDenied
from penstock.publishing.waker import Waker, _Notifier
from penstock.upkeep.workers import SequencerWorker
from tests.guards import without_guard
from tests.kit.adapters import TOPIC, django_connection
from tests.kit.log import wait_until
from tests.kit.proof import proves
from tests.kit.tenants import tenants_of

Connection = psycopg.Connection[Any]

#: Longer than any test waits: whatever comes earlier was woken.
NEVER_SECONDS = 60.0


class Counted(Waker):
    """Counts instead of waking."""

    wakes = 0

    def wake(self) -> None:
        """One more."""
        self.wakes += 1


@pytest.fixture(autouse=True)
def topics(connection: Connection) -> None:
    penstock.create_topic(connection, TOPIC, 1, create_namespaces=True)


@pytest.fixture
def counted(database_url: str) -> Counted:
    """A waker that only counts."""
    return Counted(database_url)


@pytest.fixture
def waker(database_url: str) -> Iterator[Waker]:
    """One that wakes."""
    with Waker(database_url) as made:
        yield made


def _sqlalchemy(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


# --- where it is attached -------------------------------------------------------------------------


async def _session(url: str, waker: Waker, *, keep: bool) -> None:
    engine = sqlalchemy.create_engine(_sqlalchemy(url, "psycopg"))
    with orm.Session(engine) as session:
        penstock.publish(session, TOPIC, b"x")
        waker.after_commit(session)
        waker.after_commit(session)
        session.commit() if keep else session.rollback()
        session.execute(sqlalchemy.text("SELECT 1"))
        session.commit()
    engine.dispose()


async def _closed_session(url: str, waker: Waker, *, keep: bool) -> None:
    """A session that is closed and used again."""
    engine = sqlalchemy.create_engine(_sqlalchemy(url, "psycopg"))
    sessions = orm.scoped_session(orm.sessionmaker(engine))
    penstock.publish(sessions, TOPIC, b"x")
    waker.after_commit(sessions)
    if keep:
        sessions.commit()
    sessions.close()
    sessions.execute(sqlalchemy.text("SELECT 1"))
    sessions.commit()
    sessions.remove()
    engine.dispose()


async def _async_session(url: str, waker: Waker, *, keep: bool) -> None:
    engine = async_orm.create_async_engine(_sqlalchemy(url, "asyncpg"))
    async with async_orm.AsyncSession(engine) as session:
        await penstock.aio.publish(session, TOPIC, b"x")
        waker.after_commit(session)
        await (session.commit() if keep else session.rollback())
    await engine.dispose()


async def _django(url: str, waker: Waker, *, keep: bool) -> None:
    from django.db import connections, transaction

    def work() -> None:
        connection = django_connection(url)
        connections[connection.alias] = connection
        try:
            with transaction.atomic(using=connection.alias):
                penstock.publish(connection, TOPIC, b"x")
                waker.after_commit(connection)
                transaction.set_rollback(not keep, using=connection.alias)
        finally:
            connection.close()

    thread = threading.Thread(target=work)  # Django refuses to work where a loop runs
    thread.start()
    thread.join()


async def _psycopg(url: str, waker: Waker, *, keep: bool) -> None:
    with psycopg.connect(url, autocommit=True) as connection, waker.transaction(connection):
        penstock.publish(connection, TOPIC, b"x")
        _leave(keep)


async def _async_psycopg(url: str, waker: Waker, *, keep: bool) -> None:
    async with (
        await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
        waker.transaction(connection),
    ):
        await penstock.aio.publish(connection, TOPIC, b"x")
        _leave(keep)


async def _asyncpg(url: str, waker: Waker, *, keep: bool) -> None:
    connection = await asyncpg.connect(url)
    try:
        async with waker.transaction(connection):
            await penstock.aio.publish(connection, TOPIC, b"x")
            _leave(keep)
    except psycopg.Rollback:
        pass
    finally:
        await connection.close()


async def _core(url: str, waker: Waker, *, keep: bool) -> None:
    engine = sqlalchemy.create_engine(_sqlalchemy(url, "psycopg"))
    with engine.connect() as connection:
        try:
            with waker.transaction(connection):
                penstock.publish(connection, TOPIC, b"x")
                _leave(keep)
        except psycopg.Rollback:
            pass
    engine.dispose()


async def _helper(url: str, waker: Waker, *, keep: bool) -> None:
    def place(connection: Any) -> list[penstock.Message]:
        _leave(keep)
        return [penstock.Message(TOPIC, b"x")]

    with contextlib.suppress(psycopg.Rollback):
        penstock.within_transaction(lambda: psycopg.connect(url), place, waker=waker)


def _leave(keep: bool) -> None:
    if not keep:
        raise psycopg.Rollback


Way = Callable[..., Awaitable[None]]
WAYS: list[Way] = [
    _session,
    _closed_session,
    _async_session,
    _django,
    _psycopg,
    _async_psycopg,
    _asyncpg,
    _core,
    _helper,
]


@proves("S1 with a waker")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.strip("_"))
def test_a_commit_wakes_once_and_a_rollback_nobody(
    connection: Connection, database_url: str, counted: Counted, way: Way
) -> None:
    """Guard: where the wake hangs; forgetting it in _ended; the kind of the end in _Transaction."""
    asyncio.run(_way(way, database_url, counted, keep=False))
    assert (counted.wakes, _published(connection)) == (0, 0)
    asyncio.run(_way(way, database_url, counted, keep=True))
    assert (counted.wakes, _published(connection)) == (1, 1)


async def _way(way: Way, url: str, waker: Waker, *, keep: bool) -> None:
    await way(url, waker, keep=keep)


def _published(connection: Connection) -> int:
    row = connection.execute("SELECT count(*) FROM penstock.events").fetchone()
    assert row is not None
    return int(row[0])


@proves("S1 with a waker")
def test_a_savepoint_wakes_nobody(database_url: str, counted: Counted) -> None:
    """Guard: the look whether a transaction is still open, in _committed and in _Transaction."""
    engine = sqlalchemy.create_engine(_sqlalchemy(database_url, "psycopg"))
    with orm.Session(engine) as session:
        with session.begin_nested():
            penstock.publish(session, TOPIC, b"x")
            counted.after_commit(session)
        assert counted.wakes == 0
        session.commit()
        assert counted.wakes == 1
    engine.dispose()
    with psycopg.connect(database_url, autocommit=True) as own:
        with own.transaction(), counted.transaction(own):
            penstock.publish(own, TOPIC, b"x")
        assert counted.wakes == 1


# --- the wake itself ------------------------------------------------------------------------------


@proves("S1 with a waker")
def test_a_wake_is_a_notice_of_another_session(
    connection: Connection, database_url: str, waker: Waker
) -> None:
    """Guard: the publisher's own session sends no notice: it could not commit in two phases."""
    connection.execute("LISTEN penstock_wake")
    with psycopg.connect(database_url, autocommit=True) as own:
        with waker.transaction(own):
            penstock.publish(own, TOPIC, b"x")
        (notice,) = list(connection.notifies(timeout=30, stop_after=1))
        assert notice.pid != own.info.backend_pid
    _await(waker, calls=1, notices=1, failures=0)


@proves("S1 with a waker", guard="the looks in wake_sequencer")
def test_a_busy_sequencer_is_not_woken(connection: Connection) -> None:
    """Guard: the look at the newest tick."""
    assert _rung(connection)
    connection.execute("UPDATE penstock.ticks SET passed_at = clock_timestamp() + '1 hour'")
    assert not _rung(connection)
    guard = "clock_timestamp() < "
    without_guard(connection, "wake_sequencer", guard, "clock_timestamp() > ")
    assert _rung(connection)


def _rung(connection: Connection) -> bool:
    return bool(database.call(connection, "wake_sequencer")[0][0])


@proves("S1 with a waker", guard="the looks in wake_sequencer")
def test_a_transaction_that_has_published_cannot_wake(connection: Connection) -> None:
    """Guard: the look at the transaction's number."""
    with pytest.raises(InvalidArgument, match="has written"), connection.transaction():
        penstock.publish(connection, TOPIC, b"x")
        _rung(connection)
    without_guard(connection, "wake_sequencer", "IS NOT NULL THEN", "IS NULL AND false THEN")
    with connection.transaction():
        penstock.publish(connection, TOPIC, b"x")
        assert _rung(connection)


def test_a_lost_connection_is_opened_anew(connection: Connection, waker: Waker) -> None:
    """Guard: the second attempt in _called."""
    waker.wake()
    _await(waker, calls=1)
    found = connection.execute(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE application_name = 'penstock waker' AND datname = current_database()"
    ).fetchall()
    assert found == [(True,)]
    waker.wake()
    _await(waker, calls=2)
    assert waker.counters()["failures"] == 0


@proves("S1 with a waker")
def test_publishing_goes_on_without_a_waker_that_works(
    connection: Connection, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Guard: what fails is counted, logged once, and kept from the publisher."""
    caplog.set_level(logging.INFO)
    with (
        psycopg.connect(database_url, autocommit=True) as own,
        Waker("postgresql://nobody@127.0.0.1:1/none") as broken,
    ):
        notifier = _impatient(broken)
        for count in (1, 2, 3):
            with broken.transaction(own):
                penstock.publish(own, TOPIC, b"x")
            _await(broken, failures=count)
        notifier._url = database_url
        broken.wake()
        _await(broken, calls=1)
    assert _published(connection) == 3
    said = [each.message for each in caplog.records if each.name == "penstock.publishing.waker"]
    assert len(said) == 2
    assert said[0].startswith("the sequencer is not woken")
    assert said[1] == "the sequencer can be woken again"


class Impatient(_Notifier):
    """Makes no pause after a failure."""

    def _failed(self, error: BaseException) -> float:
        super()._failed(error)
        return 0.0


def _impatient(waker: Waker) -> Impatient:
    """Gives the waker a thread for this process."""
    made = waker._ringers[os.getpid()] = Impatient(waker._url)
    made.begin()
    return made


def _await(waker: Waker, **counted: int) -> None:
    """Wait until it has counted so many."""

    def has_come() -> bool:
        found = waker.counters()
        return all(found[name] == count for name, count in counted.items())

    wait_until(has_come, f"the waker counts {counted}")


def test_a_login_that_may_not_wake_is_a_failure(
    connection: Connection, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Guard: wake_sequencer is a function of publishers."""
    with tenants_of(connection, database_url) as tenants:
        url = tenants.url_of(tenants.login())
        with psycopg.connect(url, autocommit=True) as own, pytest.raises(PermissionDenied):
            _rung(own)
        with Waker(url) as waker:
            waker.wake()
            _await(waker, failures=1)


def test_another_process_has_a_thread_of_its_own(
    waker: Waker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: a thread does not outlive a fork, so it is found by the process."""
    waker.wake()
    _await(waker, calls=1)
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert waker.counters()["calls"] == 0
    waker.wake()
    _await(waker, calls=1)
    waker.close()
    monkeypatch.undo()
    assert list(waker._ringers) == [parent]


# --- the sequencer --------------------------------------------------------------------------------


@proves("S1 with a waker")
def test_a_wake_ends_the_rest_of_a_sequencer(
    connection: Connection, database_url: str, waker: Waker
) -> None:
    """Guard: the commit listener in SequencerWorker.rest; without it the event waits a minute."""
    database.call(connection, "set_setting", name="sequencer_idle_seconds", value=NEVER_SECONDS)
    stop = threading.Event()
    worker = Resting(database_url)
    thread = threading.Thread(target=worker.run, args=(stop,))
    thread.start()
    try:
        assert worker.rests_long.wait(30)
        with psycopg.connect(database_url, autocommit=True) as own, waker.transaction(own):
            penstock.publish(own, TOPIC, b"x")
        wait_until(lambda: worker.events == 1, "the event has its sequence")
        assert worker.wakes == 1
    finally:
        stop.set()
        thread.join()


class Resting(SequencerWorker):
    """Rests for a minute at once, and says so."""

    rests_long: threading.Event

    def __init__(self, url: str) -> None:
        super().__init__(url)
        object.__setattr__(self, "rests_long", threading.Event())

    def rest(self, stop: threading.Event, commit_listener: Any, seconds: float) -> None:
        """The longest rest, from the first on."""
        self.rests_long.set()
        super().rest(stop, commit_listener, self.longest)
