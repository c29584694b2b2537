"""A consumer whose events cannot be handled: attempts, dead letters, keys that wait, redrive."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import Any

import pytest

from penstock import database, publish_batch, subscriptions
from penstock.consumer.running.async_consumer import AsyncConsumer
from penstock.consumer.stream.in_flight import Unit
from penstock.consumer.stream.retrying import Retrier
from penstock.records import Event, Message
from penstock.subscriptions import dead_letters, policies, stream
from tests.contract.databases import ContractDatabase
from tests.contract.kit import kill
from tests.contract.poison_kit import Poisoned, letters_of, new_consumer
from tests.kit.log import drain, topic, wait_until
from tests.kit.proof import proves
from tests.kit.stream import (
    STREAM,
    SUBSCRIPTION,
    filled,
    retry,
    running,
    slow_leases,
    stored,
)


def _keyed(connection: Any, keys: str) -> None:
    topic(connection, 1, STREAM)
    stream.subscribe(connection, SUBSCRIPTION, [STREAM])
    publish_batch(
        connection,
        [Message(STREAM, b"%d" % n, key=key, partition=0) for n, key in enumerate(keys)],
    )
    drain(connection)
    # A heartbeat is when redriven letters are looked for.
    stream.configure_subscription(
        connection, SUBSCRIPTION, heartbeat_seconds=0.3, lease_seconds=180, release_seconds=60
    )


@proves("S16 in streams")
@pytest.mark.parametrize(
    ("way", "concurrency"), [("by_event", 1), ("by_event", 3), ("by_batch", 1), ("by_task", 2)]
)
def test_a_poison_event_becomes_a_dead_letter(
    db: ContractDatabase, way: str, concurrency: int
) -> None:
    """S16: after max_attempts, with count and reason; all others are handled, in order."""
    own = db.connect()
    _keyed(own, "abcabcabc")
    retry(own, max_attempts=3)
    poison = Poisoned(5)
    name = "batch_handler" if way == "by_batch" else "handler"
    options = {name: getattr(poison, way), "concurrency": concurrency}
    with running(new_consumer(db, **options)) as _:
        wait_until(lambda: stored(own) == 9, "all are done with")
    assert letters_of(own) == [(5, "dead", 3)]
    assert poison.seen == {"a": [1, 4, 7], "b": [2, 8], "c": [3, 6, 9]}
    alone = poison.tried[5] - (0 if way != "by_batch" else 3)
    assert alone == 3
    (letter,) = dead_letters.dead_letters(own, SUBSCRIPTION)
    assert "ValueError: poison" in letter.reason


@proves("S16 in streams")
@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_key_waits_behind_its_poison_event(db: ContractDatabase, concurrency: int) -> None:
    """park_key: others flow; after a redrive the key's events come in order."""
    own = db.connect()
    _keyed(own, "abababab")
    retry(own, max_attempts=2, exhausted="park_key")
    poison = Poisoned(3)
    with running(new_consumer(db, handler=poison.by_event, concurrency=concurrency)):
        wait_until(lambda: stored(own) == 8, "all are passed")
        assert poison.seen == {"a": [1], "b": [2, 4, 6, 8]}
        assert [(n, state) for n, state, _ in letters_of(own)] == [
            (3, "parked"), (5, "parked"), (7, "parked"),
        ]  # fmt: skip
        poison.sequences.clear()
        assert dead_letters.redrive(own, SUBSCRIPTION) == 3
        wait_until(lambda: not letters_of(own), "all letters are handled")
        publish_batch(own, [Message(STREAM, b"", key="a", partition=0)])
        drain(own)
        wait_until(lambda: stored(own) == 9, "the key is free again")
    assert poison.seen == {"a": [1, 3, 5, 7, 9], "b": [2, 4, 6, 8]}


def test_a_redriven_letter_that_fails_is_dead_again(db: ContractDatabase) -> None:
    """And in a transaction its effect is there once."""
    own = db.connect()
    filled(own, events=2)
    stream.configure_subscription(
        own, SUBSCRIPTION, heartbeat_seconds=0.3, lease_seconds=180, release_seconds=60
    )
    retry(own, max_attempts=1)
    database.execute(db.connect(), "CREATE TABLE effects (number INT)")
    faults = ["first", "again"]

    def handle(event: Any) -> None:
        with event.transaction() as connection:
            database.execute(
                connection, "INSERT INTO effects VALUES (%(n)s)", {"n": event.sequence}
            )
            if event.sequence == 1 and faults:
                raise ValueError(faults.pop(0))

    with running(new_consumer(db, handler=handle)):
        wait_until(lambda: letters_of(own) == [(1, "dead", 1)], "it is given up")
        dead_letters.redrive(own, SUBSCRIPTION)
        wait_until(lambda: letters_of(own) == [(1, "dead", 2)], "it is dead again")
        dead_letters.redrive(own, SUBSCRIPTION)
        wait_until(lambda: not letters_of(own), "it is handled")
    found = database.execute(db.connect(), "SELECT number FROM effects ORDER BY number")
    assert [number for (number,) in found] == [1, 2]


def test_a_letter_whose_handler_loses_its_connection_is_dead_again(db: ContractDatabase) -> None:
    """In a thread with a connection of its own; it is no event after the position."""
    own = db.connect()
    filled(own, events=1)
    stream.configure_subscription(
        own, SUBSCRIPTION, heartbeat_seconds=0.3, lease_seconds=180, release_seconds=60
    )
    retry(own, max_attempts=1)
    calls: list[int] = []

    def handle(event: Any) -> None:
        calls.append(event.sequence)
        if len(calls) == 1:
            raise ValueError("first")
        with event.transaction() as connection:
            if len(calls) == 2:
                kill(db, connection)
                stored(connection)

    with running(new_consumer(db, handler=handle, handler_seconds=60)):
        wait_until(lambda: letters_of(own) == [(1, "dead", 1)], "it is given up")
        dead_letters.redrive(own, SUBSCRIPTION)
        wait_until(lambda: letters_of(own) == [(1, "dead", 2)], "it is dead again")
        dead_letters.redrive(own, SUBSCRIPTION)
        wait_until(lambda: not letters_of(own), "it is handled")
    assert calls == [1, 1, 1]


def test_async_transactions_finish_letters_and_events(db: ContractDatabase) -> None:
    """What the handler writes, and the position, are one transaction on every engine."""
    own = db.connect()
    filled(own, events=3)
    retry(own, max_attempts=1)
    database.execute(db.connect(), "CREATE TABLE effects (number INT)")

    async def handle(event: Any) -> None:
        async with event.transaction() as connection:
            await connection.execute("INSERT INTO effects VALUES (%s)", (event.sequence,))
            if event.sequence == 2:
                raise ValueError("poison")

    async def work() -> None:
        consumer = AsyncConsumer(db.url, SUBSCRIPTION, handler=handle, idle_seconds=0.05)
        stop = asyncio.Event()
        task = asyncio.create_task(consumer.run(stop))
        while stored(own) < 3:
            await asyncio.sleep(0.01)
        stop.set()
        await task

    asyncio.run(asyncio.wait_for(work(), 60))
    found = [n for (n,) in database.execute(db.connect(), "SELECT number FROM effects ORDER BY 1")]
    assert (found, letters_of(own)) == ([1, 3], [(2, "dead", 1)])


def _policy_changes_meanwhile(db: ContractDatabase) -> float:
    """While an event is handled its policy gets long pauses.  Returns the pause that follows."""
    own = db.connect()
    filled(own, events=1)
    slow_leases(own)
    retry(own)
    failed = threading.Event()

    def handle(event: Event) -> None:
        if not failed.is_set():
            retry(own, first_backoff_seconds=3_600, longest=3_600, jitter=0)
            consumer.retrier._look_at = -math.inf  # the next heartbeat is due
            failed.set()
            raise ValueError("once")

    consumer = new_consumer(db, handler=handle, clock=lambda: 1_000.0)
    with running(consumer):
        assert failed.wait(30)
        wait_until(lambda: consumer.has_postponed, "it waits")
        (failure,) = consumer.retrier.failures.values()
        return failure.due - 1_000


@proves("S23")
def test_a_batch_runs_under_one_version_of_the_policy(db: ContractDatabase) -> None:
    """S23. Guard: a unit keeps the policy that it was begun under."""
    assert _policy_changes_meanwhile(db) < 1


@proves("S23", guard="the version that a unit was begun under")
def test_a_policy_that_is_read_twice_is_noticed(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: what is in force when the handler fails counts."""
    first, own = Retrier.postpone_unit, db.connect()

    def read_again(retrier: Retrier, unit: Unit, error: BaseException) -> None:
        unit.policy = policies.subscription_policy(own, SUBSCRIPTION)
        first(retrier, unit, error)

    monkeypatch.setattr(Retrier, "postpone_unit", read_again)
    assert _policy_changes_meanwhile(db) == 3_600


def test_the_last_error_is_told_without_what_it_says(db: ContractDatabase) -> None:
    """For `penstock status`: kind and place; the text of an error can be a part of a payload."""
    own = db.connect()
    _keyed(own, "ab")
    retry(own, max_attempts=1_000)
    poison = Poisoned(2)
    with running(new_consumer(db, handler=poison.by_event)):
        wait_until(lambda: any(_told(own)), "it is told")
        (told,) = _told(own)
        poison.sequences.clear()
        wait_until(lambda: stored(own) == 2, "it is done")
    assert told.startswith(f"ValueError at {STREAM} partition 0 sequence 2")
    assert "poison" not in told


def _told(connection: Any) -> list[str]:
    found = subscriptions.members(connection, SUBSCRIPTION)
    return [member.last_error or "" for member in found]


def test_the_last_attempt_announces_no_other(
    db: ContractDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """Guard: the words of an exhausted event; it said "again in 0.0 s", and then "given up"."""
    own = db.connect()
    filled(own, events=1)
    retry(own, max_attempts=2)
    with running(new_consumer(db, handler=Poisoned(1).by_event)):
        wait_until(lambda: letters_of(own) == [(1, "dead", 2)], "it is given up")
    said = [record.getMessage() for record in caplog.records if "handler failed" in record.msg]
    first, last = (text.partition(", ")[2] for text in said)
    assert first.startswith("attempt 1, again in ")
    assert last == "attempt 2, the last: it is given up"
