"""penstock.Consumer from end to end, on every engine, with real faults."""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

import penstock
from penstock import database, subscriptions
from penstock.consumer.handlers.failures import HandlerFailed
from penstock.consumer.stream.consumer import Batch, Consumer
from penstock.errors import DuplicateSession
from penstock.leases.keeper import Keeper
from penstock.records import Event
from penstock.subscriptions import stream
from tests.contract.databases import ContractDatabase
from tests.contract.kit import count, kill
from tests.contract.stream_kit import Guard, end_lease, without
from tests.kit.log import wait_until
from tests.kit.stream import (
    STREAM,
    SUBSCRIPTION,
    filled,
    holders,
    more,
    retry,
    running,
    short_leases,
    slow_leases,
    stored,
)

READ_BEHIND: Guard = {
    "postgres": ("commit", "OR given.read_after <> stored.position", ""),
    "mysql": ("check_positions", "ELSEIF read_after <> stands_at THEN", "ELSEIF FALSE THEN"),
}


class Effects:
    """A table that handlers write to, in the consumer's database."""

    def __init__(self, db: ContractDatabase) -> None:
        self._connection = db.connect()
        database.execute(self._connection, "CREATE TABLE effects (part INT, number INT)")

    @staticmethod
    def write(connection: Any, events: list[Event]) -> None:
        """What a handler does, in its transaction."""
        for event in events:
            database.execute(
                connection,
                "INSERT INTO effects VALUES (%(part)s, %(number)s)",
                {"part": event.partition, "number": int(event.payload)},
            )

    def found(self) -> dict[int, list[int]]:
        """The numbers by partition, sorted."""
        by_partition: dict[int, list[int]] = defaultdict(list)
        for partition, number in database.execute(
            self._connection, "SELECT part, number FROM effects ORDER BY part, number"
        ):
            by_partition[partition].append(number)
        return dict(by_partition)


def _consumer(
    db: ContractDatabase,
    *,
    handler: Callable[[Event], object] | None = None,
    batch_handler: Callable[[Batch], object] | None = None,
    consumer_id: str = "a",
    batch_size: int = 500,
) -> Consumer:
    return Consumer(
        db.url,
        SUBSCRIPTION,
        handler=handler,
        batch_handler=batch_handler,
        consumer_id=consumer_id,
        batch_size=batch_size,
        idle_seconds=0.05,
    )


def _done(connection: Any) -> bool:
    return all(lag.lag_events == 0 for lag in subscriptions.lag(connection, SUBSCRIPTION))


def _has_ended(db: ContractDatabase, session: Any) -> bool:
    """Whether the server has ended the session of another connection."""
    if db.engine == "postgres":
        pid = session.info.backend_pid
        return not db.run(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}")
    return session.thread_id() not in {row[0] for row in db.run("SHOW PROCESSLIST")}


def _lose_transaction(db: ContractDatabase, transaction: Any, batch: Batch) -> None:
    """An error that takes the transaction with it, which the handler passes over."""
    if db.engine == "postgres":
        with pytest.raises(psycopg.Error):
            database.execute(transaction, "SELECT 1 / 0")
    else:
        database.execute(transaction, "/*! ROLLBACK */")  # as a deadlock does it
        Effects.write(transaction, batch.events)


def test_events_are_handled_in_order_and_once(db: ContractDatabase) -> None:
    """Handler by event; positions move, leases are free after the stop."""
    own = db.connect()
    filled(own, partitions=3, events=20)
    seen: dict[int, list[int]] = defaultdict(list)
    consumer = _consumer(
        db, handler=lambda event: seen[event.partition].append(event.sequence), batch_size=7
    )
    with running(consumer):
        wait_until(lambda: _done(own), "all are handled")
        more(own, partitions=3, events=5, start=21)
        wait_until(lambda: _done(own), "the later ones are handled")
    assert seen == {partition: list(range(1, 26)) for partition in range(3)}
    assert (consumer.stats.events, consumer.stats.failures) == (75, 0)
    assert holders(own) == {}
    assert count(db, "consumers") == 0


@pytest.mark.long_on("mariadb")
@pytest.mark.parametrize("events", [20, pytest.param(40, marks=pytest.mark.long)])
def test_effects_and_position_are_one_transaction_over_injected_failures(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch, events: int
) -> None:
    """D6: handlers fail before, in and after their transaction; every effect is there once."""
    own = db.connect()
    filled(own, partitions=3, events=events)
    retry(own, max_attempts=1000)
    monkeypatch.setattr("random.uniform", lambda low, high: low)  # the shortest pauses
    effects, rng, failures = Effects(db), random.Random(3), Counter[str]()

    def handle(batch: Batch) -> None:
        fault = rng.choice(["none", "none", "before", "inside", "swallowed", "killed", "after"])
        failures[fault] += 1
        if fault == "before":
            raise ValueError(fault)
        with batch.transaction() as transaction:
            effects.write(transaction, batch.events)
            if fault == "inside":
                raise ValueError(fault)
            if fault == "swallowed":
                _lose_transaction(db, transaction, batch)
            if fault == "killed":
                kill(db, transaction)
        if fault == "after":
            raise ValueError(fault)

    with running(_consumer(db, batch_handler=handle, batch_size=6)):
        more(own, partitions=3, events=10, start=events + 1)
        wait_until(lambda: _done(own), "all are handled", 60)
    assert effects.found() == {partition: list(range(1, events + 11)) for partition in range(3)}
    assert len(failures) >= 5, failures


def _raised_behind_its_commit(db: ContractDatabase, *, cut: bool) -> dict[int, list[int]]:
    """A handler fails after its transaction, and more events come before it is called again."""
    own = db.connect()
    filled(own, events=5)
    retry(own)
    slow_leases(own)
    effects, calls = Effects(db), [0]

    def handle(batch: Batch) -> None:
        calls[0] += 1
        with batch.transaction() as transaction:
            effects.write(transaction, batch.events)
        if calls[0] == 1:
            more(own, events=5, start=6)
            if cut:
                kill(db, transaction)
                with pytest.raises(Exception):  # noqa: B017 - each driver has its own
                    database.execute(transaction, "SELECT 1")
            raise ValueError("behind the commit")

    with running(_consumer(db, batch_handler=handle)):
        wait_until(lambda: stored(db.connect()) == 10, "all are handled")
    return effects.found()


@pytest.mark.parametrize("cut", [False, True])
def test_what_a_handler_committed_before_it_failed_is_not_done_again(
    db: ContractDatabase, cut: bool
) -> None:
    """Guard: the position is asked for after a failure; commit knows where reading began."""
    assert _raised_behind_its_commit(db, cut=cut) == {0: list(range(1, 11))}


def test_without_the_second_guard_it_is_done_twice(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the consumer reads on from its own idea of the position, and commit accepts it."""
    monkeypatch.setattr(Keeper, "look_again", lambda *_: None)
    without(db, READ_BEHIND)
    assert _raised_behind_its_commit(db, cut=True)[0].count(1) == 2


@pytest.mark.long_on("mariadb")
def test_releasing_is_answered_and_a_second_consumer_gets_its_share(db: ContractDatabase) -> None:
    """Hand-over without a duplicate."""
    own = db.connect()
    filled(own, partitions=4, events=3)
    short_leases(own, 3)
    seen: Counter[tuple[int, int]] = Counter()
    first = _consumer(db, handler=lambda e: seen.update([(e.partition, e.sequence)]))
    second = _consumer(
        db, handler=lambda e: seen.update([(e.partition, e.sequence)]), consumer_id="b"
    )
    with running(first):
        wait_until(lambda: len(holders(own)) == 4, "the first holds all")
        with running(second):
            start = 4
            while Counter(holders(own).values()) != {"a": 2, "b": 2}:
                more(own, partitions=4, events=1, start=start)
                wait_until(lambda: _done(own), "all are handled")
                start += 1
    assert set(seen.values()) == {1}
    assert len(seen) == 4 * (start - 1)


def test_a_killed_session_is_survived(db: ContractDatabase) -> None:
    """That of the work, between two batches."""
    own = db.connect()
    filled(own, events=5)
    short_leases(own, 3)
    seen: list[int] = []
    opened: list[Any] = []
    consumer = _consumer(db, handler=lambda event: seen.append(event.sequence))
    first = consumer.open

    def remembered() -> Any:
        opened.append(first())
        return opened[-1]

    consumer.open = remembered  # type: ignore[method-assign]
    with running(consumer):
        # Not when the position is there: the answer to that COMMIT must not be lost.
        wait_until(lambda: consumer.stats.events == 5, "the first five")
        kill(db, opened[0])
        more(own, events=5, start=6)
        wait_until(lambda: _done(own), "the others")
    assert len(opened) == 2
    assert seen == list(range(1, 11))


def test_a_paused_consumer_finds_its_lease_gone(db: ContractDatabase) -> None:
    """Its commit is refused, its effects roll back, and its successor's stand."""
    own = db.connect()
    filled(own, events=5)
    slow_leases(own)
    effects = Effects(db)
    inside, go_on = threading.Event(), threading.Event()

    def handle(batch: Batch) -> None:
        with batch.transaction() as transaction:
            effects.write(transaction, batch.events)

    def pause(batch: Batch) -> None:
        inside.set()
        assert go_on.wait(30)
        handle(batch)

    paused = _consumer(db, batch_handler=pause)
    with running(paused):
        assert inside.wait(30)
        end_lease(db, "a")
        successor = _consumer(db, batch_handler=handle, consumer_id="b")
        assert successor.run_until_idle() == 5
        go_on.set()
        wait_until(lambda: paused.stats.stale_commits == 1, "the stale commit")
    assert effects.found() == {0: [1, 2, 3, 4, 5]}


def test_a_second_run_of_an_id_is_refused(db: ContractDatabase) -> None:
    """DuplicateSession, and the first one goes on."""
    own = db.connect()
    filled(own)
    with running(_consumer(db, handler=lambda _: None)):
        wait_until(lambda: holders(own), "the first holds its lease")
        with pytest.raises(DuplicateSession):
            _consumer(db, handler=lambda _: None).run(threading.Event())
        assert holders(own) == {0: "a"}


def test_until_idle_tells_that_a_handler_failed(db: ContractDatabase) -> None:
    """Guard: has_postponed after the last round; a run by the clock must not report success."""
    own = db.connect()
    filled(own, partitions=2)
    assert _consumer(db, handler=lambda _: None, batch_size=3).run_until_idle() == 20
    assert holders(own) == {}
    more(own, events=1, start=11)

    def broken(event: Event) -> None:
        raise LookupError("no such customer")

    with pytest.raises(HandlerFailed, match="no such customer"):
        _consumer(db, handler=broken).run_until_idle()


@pytest.mark.long_on("mysql", "mariadb")
def test_work_that_outlives_its_lease_is_told_so(db: ContractDatabase) -> None:
    """The server ends it; the message names the lease, and the next attempt is a later one."""
    own = db.connect()
    filled(own)
    short_leases(own, 1.5)
    attempts = [0]

    def handle(batch: Batch) -> None:
        with batch.transaction() as inside:
            attempts[0] += 1
            if attempts[0] == 1:  # idle, as during a call of another system
                wait_until(lambda: _has_ended(db, inside), "the server ends the transaction")
            database.execute(inside, "SELECT 1")

    consumer = _consumer(db, batch_handler=handle)
    with running(consumer):
        wait_until(lambda: "longer than the lease" in consumer.stats.last_error, "the message")
        wait_until(lambda: stored(own) == 10, "the next attempt")


@pytest.mark.long_on("mysql", "mariadb")
def test_a_session_is_not_limited_behind_its_transaction(db: ContractDatabase) -> None:
    """Guard: lift_limit. Work that needs no database may take longer than a lease."""
    own = db.connect()
    filled(own, partitions=2, events=1)
    short_leases(own, 1.5)
    seen: list[int] = []

    def handle(event: Event) -> None:
        seen.append(event.partition)
        if len(seen) == 2:  # the first one's position was committed on the same connection
            assert not threading.Event().wait(1.7)

    consumer = _consumer(db, handler=handle)
    with running(consumer):
        wait_until(lambda: _done(own), "all are handled")
    assert sorted(seen) == [0, 1]
    assert consumer.stats.failures == 0


def test_names_of_topics_in_events(db: ContractDatabase) -> None:
    """What a handler is given is an event of the log."""
    own = db.connect()
    filled(own, events=1)
    seen: list[Event] = []
    assert _consumer(db, handler=seen.append).run_until_idle() == 1
    assert (seen[0].topic, seen[0].payload, seen[0].sequence) == (STREAM, b"1", 1)


def _by_three(
    db: ContractDatabase,
    inside: Callable[[], object] = bool,
    behind: Callable[[], object] = bool,
) -> tuple[list[int], Consumer]:
    """Nine events, something happens in or after the first transaction; what was handled."""
    own, handled = db.connect(), list[int]()
    filled(own, events=9)

    def handle(batch: Batch) -> None:
        with batch.transaction():
            handled.extend(event.sequence for event in batch)
            if len(handled) == 3:
                inside()
        if len(handled) == 3:
            behind()

    consumer = _consumer(db, batch_handler=handle, batch_size=3)
    with running(consumer):
        wait_until(lambda: _done(own), "all are handled")
    return handled, consumer


def test_a_topic_is_renamed_while_it_is_handled(db: ContractDatabase) -> None:
    """Guard: where a partition stands is asked by its id, for the name may be another one."""
    handled, consumer = _by_three(
        db, inside=lambda: penstock.rename_topic(db.connect(), STREAM, "renamed")
    )
    assert handled == list(range(1, 10))
    assert (consumer.stats.failures, consumer.stats.stale_commits) == (0, 0)


def test_a_lease_that_is_lost_behind_the_commit_ends_no_consumer(db: ContractDatabase) -> None:
    """Guard: an error that it is not held any more is like any other; nothing is done twice."""
    handled, consumer = _by_three(
        db, behind=lambda: stream.seek(db.connect(), SUBSCRIPTION, STREAM, 0, 4)
    )
    assert handled == list(range(1, 10))
    assert consumer.stats.stale_commits == 1
