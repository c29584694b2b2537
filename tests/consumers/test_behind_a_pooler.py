"""Publishers, consumers and the daemon behind a real PgBouncer in transaction mode.

Every transaction goes to another one of the server's sessions, in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

import penstock
from penstock import database, log, subscriptions
from penstock.consumer.stream.consumer import Consumer
from penstock.database import sessions
from penstock.database.postgres import connection as postgres, session
from penstock.log import tail
from penstock.publishing.bulk import publish_bulk
from penstock.publishing.publish import publish_batch
from penstock.records import Event, Message
from penstock.subscriptions import dead_letters, stream
from tests.consumers.conftest import Connection, StartDaemon
from tests.consumers.process import until
from tests.doctor.pooler import Pooler
from tests.kit.adapters import BEHIND_A_POOLER, run
from tests.kit.log import TOPIC, drain, texts, topic
from tests.kit.proof import proves
from tests.kit.stream import (
    STREAM,
    SUBSCRIPTION,
    filled,
    retry,
    running,
    short_leases,
    stored,
)

SESSIONS = 4
EVENTS = 30


@pytest.fixture
def pooled(database_url: str, tmp_path: Path) -> Iterator[str]:
    """The address of a migrated database through the pooler, with several sessions behind it."""
    with Pooler(database_url, tmp_path / "pgbouncer", "transaction") as pooler:
        with ExitStack() as stack:
            for _ in range(SESSIONS):
                stack.enter_context(psycopg.connect(pooler.url)).execute("SELECT 1")
        yield pooler.url


@pytest.fixture
def effects(connection: Connection) -> Connection:
    """A table that handlers write to."""
    connection.execute("CREATE TABLE effects (sequence bigint)")
    return connection


INSERT = "INSERT INTO effects VALUES (%(sequence)s)"


def exactly_once(event: Any) -> None:
    """A handler in one transaction with the position."""
    with event.transaction() as connection:
        database.execute(connection, INSERT, {"sequence": event.sequence})


async def exactly_once_async(event: Any) -> None:
    """The same as a coroutine."""
    async with event.transaction() as connection:
        await connection.execute(INSERT, {"sequence": event.sequence})


def at_least_once(url: str) -> Callable[[Event], None]:
    """A handler with a connection of its own."""

    def handle(event: Event) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            database.execute(connection, INSERT, {"sequence": event.sequence})

    return handle


@proves("behind a pooler")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("sync", {}),
        ("sync", {"handler_seconds": 60.0}),
        ("async", {}),
        ("own", {"concurrency": 4}),
    ],
    ids=["inline", "threads", "tasks", "by-key"],
)
def test_a_consumer_handles_everything_once(
    pooled: str, effects: Connection, kind: str, options: dict[str, Any]
) -> None:
    """Row 6: no error, no attempt, no dead letter; nothing lost or doubled."""
    filled(effects, events=EVENTS)
    handler = {"sync": exactly_once, "async": exactly_once_async, "own": at_least_once(pooled)}
    consumer = Consumer(
        pooled, SUBSCRIPTION, handler=handler[kind], batch_size=1, idle_seconds=0.05, **options
    )
    with running(consumer):
        until(lambda: stored(effects) == EVENTS, "all events are done")
    found = effects.execute("SELECT sequence FROM effects").fetchall()
    assert Counter(each for (each,) in found) == Counter(range(1, EVENTS + 1))
    assert (consumer.stats.failures, consumer.stats.last_error) == (0, "")
    assert dead_letters.dead_letters(effects, SUBSCRIPTION) == []


def _no_detection(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(postgres, "_look_for_pooler", lambda *_: None)


@proves("behind a pooler", guard="_look_for_pooler and _run")
def test_without_the_guards_a_consumer_stumbles(
    pooled: str, effects: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: neither _look_for_pooler nor the second try of _run."""
    _no_detection(monkeypatch)
    monkeypatch.setattr(postgres, "_SESSION_CHANGED", frozenset())
    filled(effects, events=EVENTS)
    consumer = Consumer(pooled, SUBSCRIPTION, handler=exactly_once, batch_size=1, idle_seconds=0.05)
    with running(consumer):
        until(lambda: consumer.stats.failures, "it stumbles, and goes on with another connection")
    assert "prepared statement" in consumer.stats.last_error


@proves("behind a pooler")
def test_a_pooler_that_was_not_seen_costs_no_attempt(
    pooled: str, effects: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: _run tries again outside of a transaction; Batch.disturbed is no attempt.

    With one attempt each, whatever is counted for an event makes a dead letter of it.
    """
    _no_detection(monkeypatch)
    filled(effects, events=EVENTS)
    retry(effects, max_attempts=1)
    consumer = Consumer(pooled, SUBSCRIPTION, handler=exactly_once, batch_size=1, idle_seconds=0.05)
    with running(consumer):
        until(lambda: stored(effects) == EVENTS, "all events are done")
    found = effects.execute("SELECT sequence FROM effects").fetchall()
    assert Counter(each for (each,) in found) == Counter(range(1, EVENTS + 1))
    assert dead_letters.dead_letters(effects, SUBSCRIPTION) == []


def test_a_handler_that_outlives_its_lease_is_counted(pooled: str, effects: Connection) -> None:
    """The server's reason comes through; else it would begin again and again."""
    filled(effects, events=2)
    short_leases(effects, 2)
    retry(effects, max_attempts=2)

    def handle(event: Any) -> None:
        with event.transaction() as connection:
            if event.sequence == 1:
                # What ends an idle transaction is the server's; the handler waits for it.
                pid = connection.execute("SELECT pg_backend_pid()").fetchone()[0]
                until(lambda: _is_gone(effects, pid), "the server ended the session")
            database.execute(connection, INSERT, {"sequence": event.sequence})

    with running(Consumer(pooled, SUBSCRIPTION, handler=handle, batch_size=1, idle_seconds=0.05)):
        until(lambda: stored(effects) == 2, "both are done or given up")
    (letter,) = dead_letters.dead_letters(effects, SUBSCRIPTION)
    assert (letter.sequence, letter.attempts) == (1, 2)
    assert effects.execute("SELECT sequence FROM effects").fetchall() == [(2,)]


def _is_gone(connection: Connection, pid: int) -> bool:
    found = connection.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (pid,))
    return found.fetchone() is None


@proves("behind a pooler")
@pytest.mark.parametrize("name", BEHIND_A_POOLER.keys())
def test_every_adapter_publishes(pooled: str, connection: Connection, name: str) -> None:
    """With the settings that docs/reference/daemon.md names; more often than a driver waits."""
    topic(connection, name="bank/accounts")

    async def work() -> None:
        async with BEHIND_A_POOLER[name](pooled) as adapter:
            for number in range(12):
                await adapter.begin()
                await adapter.publish(f"one {number}".encode())
                await adapter.publish_batch([f"two {number}".encode()])
                await adapter.commit()
                await adapter.begin()
                await adapter.publish(b"rolled back")
                await adapter.rollback()

    run(name, work())
    drain(connection)
    wanted = [f"{each} {number}" for number in range(12) for each in ("one", "two")]
    assert texts(connection, name="bank/accounts") == wanted


def test_connections_of_penstock_publish_and_operate(pooled: str, connection: Connection) -> None:
    """All kinds of calls in turn, among them publish_bulk with its temporary table."""
    topic(connection)
    with database.connect(pooled) as one, database.connect(pooled) as two:
        for number in range(10):
            for each in (one, two):
                penstock.publish(each, TOPIC, b"x", dedup_key=f"{number}", strict=True)
                publish_batch(each, [Message(TOPIC, b"x")])
                with each.transaction():
                    publish_bulk(each, [Message(TOPIC, b"x")] * 3)
            log.sequence(one, announce=True)
            log.status(two)
    drain(connection)
    assert len(texts(connection)) == 10 * (1 + 2 + 6)


def test_tail_goes_on(pooled: str, connection: Connection) -> None:
    """It looks by itself: the LISTEN is another session's by then."""
    topic(connection)
    with database.connect(pooled) as own:
        found = tail.tail(own, TOPIC, "earliest", max_idle_seconds=0.05)
        for number in range(8):
            penstock.publish(connection, TOPIC, str(number).encode())
            drain(connection)
            assert next(found).payload == str(number).encode()


@proves("behind a pooler")
def test_a_stray_notice_tells_nobody(
    pooled: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: _PostgresEar._is_own. Who is told polls rarely, and the next notice is another's.

    Mutant: without it the notice that came by chance counts.
    """
    for url, told in ((database_url, True), (pooled, False), (pooled, True)):
        if (url, told) == (pooled, True):
            monkeypatch.setattr(session, "is_own_session", lambda *_: True)
        with database.connect(url) as own:
            listener = sessions.of_connection(own).listen(own)
            with own.transaction():
                own.execute("LISTEN penstock_log")
                own.execute("NOTIFY penstock_log, 'all'")
            until(listener.heard, "the notice")
            assert listener.is_told is told


@proves("behind a pooler")
def test_a_daemon_serves(
    pooled: str, effects: Connection, daemons: StartDaemon, tmp_path: Path
) -> None:
    """Sequencer, sweep, a consumer and a relay through the pooler."""
    filled(effects, partitions=2, events=1)
    stream.subscribe(effects, "export", [STREAM])
    daemon = daemons(
        pooled, "--roles", "sequencer,sweep,consumers,relay",
        f"--consumer={SUBSCRIPTION}=tests.consumers.handlers:record",
        f"--relay=export=jsonl:{tmp_path / 'out'}",
    ).wait_started()  # fmt: skip
    for number in range(EVENTS):
        publish_batch(effects, [Message(STREAM, b"x", partition=number % 2)])
    until(lambda: len(daemon.handled()) == EVENTS + 2, "all is handled")
    until(lambda: sum(each.lag_events for each in subscriptions.lag(effects)) == 0, "all is done")
    daemon.terminate()
    assert daemon.exit_code() == 0, daemon.text()
    bad = [line for line in daemon.events() if line.get("level") in ("error", "warning")]
    assert bad == []
    relayed = [
        line
        for each in (tmp_path / "out").rglob("*")
        if each.is_file()
        for line in each.read_text().splitlines()
    ]
    assert len(relayed) == EVENTS + 2
