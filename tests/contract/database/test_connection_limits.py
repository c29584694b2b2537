"""The server has no free connections: errors are typed, no attempt is counted, no event is lost."""

from __future__ import annotations

import contextlib
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest

import penstock
from penstock import database
from penstock.consumer.handlers.executors import Outcome
from penstock.consumer.stream.consumer import Consumer
from penstock.consumer.stream.delivery import Batch
from penstock.consumer.stream.retrying import EventFailures
from penstock.errors import DatabaseUnavailable
from penstock.subscriptions import dead_letters
from tests.contract.databases import ContractDatabase
from tests.contract.tenants import Tenants
from tests.kit.log import TOPIC, topic, wait_until
from tests.kit.proof import proves
from tests.kit.stream import SUBSCRIPTION, filled, retry, running, short_leases, stored

EVENTS = 6
#: What a consumer has without its handlers: heartbeats, check-ins, the loop; and one that reads.
OWN_CONNECTIONS = 4


def limited(db: ContractDatabase, tenants: Tenants, most: int) -> str:
    """The address for a login that may have so many connections."""
    login = tenants.login("consumer publisher")
    _limit(db, login, most)
    return tenants.url_of(login)


def _limit(db: ContractDatabase, login: str, most: int) -> None:
    if db.engine == "postgres":
        db.run(f'ALTER ROLE "{login}" CONNECTION LIMIT {most}')
    else:
        db.run(f"ALTER USER `{login}` WITH MAX_USER_CONNECTIONS {most}")


@proves("no connection left")
def test_a_publisher_is_told(db: ContractDatabase, tenants: Tenants) -> None:
    """A typed error that says what to do, and the next one that finds room goes on."""
    topic(db.connect())
    url = limited(db, tenants, 2)
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(contextlib.closing(database.connect(url)))
        with pytest.raises(DatabaseUnavailable, match="onnections") as refused:
            database.connect(url)
        assert ":x@" not in str(refused.value)
    with contextlib.closing(database.connect(url)) as connection:
        penstock.publish(connection, TOPIC, b"x")


@proves("S16 when the database is short of something")
def test_a_handler_that_gets_no_connection_made_no_attempt(
    db: ContractDatabase, tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: Batch.disturbed. With one attempt each, a counted one makes a dead letter."""
    assert _handled(db, tenants, monkeypatch) == (dict.fromkeys(range(1, EVENTS + 1), 1), [])


@proves("S16 when the database is short of something", guard="Batch.disturbed")
def test_without_the_guard_innocent_events_are_dead_letters(
    db: ContractDatabase, tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the failure to connect counts as the event's."""
    monkeypatch.setattr(Batch, "disturbed", property(lambda *_: False, lambda *_: None), False)
    handled, dead = _handled(db, tenants, monkeypatch)
    assert dead and len(handled) + len(dead) == EVENTS


@proves("S16 when the database is short of something")
@pytest.mark.parametrize(
    "guarded", [True, pytest.param(False, marks=pytest.mark.long_on("mysql", "mariadb"))]
)
def test_who_outlives_the_lease_has_made_an_attempt(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """Guard: Outcome.disturbed asks whether it was outlived. COMMIT is what finds that out.

    Mutant: the handler begins again and again, and is never given up.
    """
    if not guarded:
        monkeypatch.setattr(Outcome, "disturbed", property(lambda outcome: outcome.batch.disturbed))
    own = db.connect()
    filled(own, events=2)
    short_leases(own, 2)
    retry(own, max_attempts=1)
    calls: list[int] = []

    def handle(event: Any) -> None:
        calls.append(event.sequence)
        with event.transaction() as connection:
            if event.sequence == 1:
                wait_until(lambda: not _is_there(db, connection), "the server ends the session")

    consumer = Consumer(
        db.url, SUBSCRIPTION, handler=handle, batch_size=1, handler_seconds=60.0, idle_seconds=0.05
    )
    with running(consumer):
        wait_until(lambda: stored(own) == 2 or len(calls) > 1, "the next call")
        if guarded:
            wait_until(lambda: stored(own) == 2, "it is given up")
    assert calls[:2] == ([1, 2] if guarded else [1, 1])


def _is_there(db: ContractDatabase, session: Any) -> bool:
    if db.engine == "postgres":
        pid = session.info.backend_pid
        return bool(db.run(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"))
    return session.thread_id() in {row[0] for row in db.run("SHOW PROCESSLIST")}


@proves("S16 when the database is short of something")
def test_an_attempt_that_is_on_record_is_taken_back(
    db: ContractDatabase, tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: Failures.spare. What failed once is counted before it is handed out again."""
    assert _handled(db, tenants, monkeypatch, fails_once=True) == (
        dict.fromkeys(range(1, EVENTS + 1), 1),
        [],
    )


@proves("S16 when the database is short of something", guard="Failures.spare")
def test_without_the_guard_it_is_counted(
    db: ContractDatabase, tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: each time that it is handed out counts."""
    monkeypatch.setattr(EventFailures, "spare", lambda *_: None)
    assert _handled(db, tenants, monkeypatch, fails_once=True)[1] == [1]


def _handled(
    db: ContractDatabase,
    tenants: Tenants,
    monkeypatch: pytest.MonkeyPatch,
    *,
    fails_once: bool = False,
) -> tuple[dict[int, int], list[int]]:
    """How often each was handled, and what is dead, when connections are short for a while."""
    own = db.connect()
    filled(own, events=EVENTS)
    retry(own, max_attempts=3 if fails_once else 1)
    url = limited(db, tenants, OWN_CONNECTIONS)
    monkeypatch.setattr("random.uniform", lambda low, high: low)  # the shortest pauses
    seen: Counter[int] = Counter()
    calls: Counter[int] = Counter()

    def handle(event: Any) -> None:
        calls[event.sequence] += 1
        if fails_once and calls[1] == 1:
            raise ValueError("of its own")
        with event.transaction():
            seen[event.sequence] += 1

    consumer = Consumer(
        url, SUBSCRIPTION, handler=handle, batch_size=1, handler_seconds=60.0, idle_seconds=0.05
    )

    def dead() -> list[int]:
        return [each.sequence for each in dead_letters.dead_letters(own, SUBSCRIPTION)]

    with running(consumer):
        wait_until(lambda: consumer.stats.failures >= 5 or dead(), "the handler gets no connection")
        login = url.partition("//")[2].partition(":")[0]
        _limit(db, login, OWN_CONNECTIONS + 2)
        wait_until(lambda: stored(own) == EVENTS, "all are done or given up")
    return dict(seen), dead()
