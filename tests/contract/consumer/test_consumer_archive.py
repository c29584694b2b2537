"""A consumer whose position is below the low sequence: it reads the archive until it catches up."""

from __future__ import annotations

import threading
import uuid
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ops.seal import seal
from penstock import database, log, publish_batch, subscriptions
from penstock.archive.targets import Target
from penstock.consumer.running.app import App
from penstock.consumer.stream.capped import CappedReads
from penstock.consumer.stream.cold_reads import ColdReads
from penstock.errors import (
    BelowLowSequence,
    EpochError,
    EpochMissing,
    InvalidArgument,
    StaleLease,
)
from penstock.records import Event, Message
from penstock.subscriptions import dead_letters, stream
from tests.contract.databases import ContractDatabase
from tests.contract.poison_kit import Poisoned, letters_of, new_consumer
from tests.contract.stream_kit import Guard, without
from tests.kit.copies import copy_all, drop
from tests.kit.log import drain, topic, wait_until
from tests.kit.proof import proves
from tests.kit.stream import (
    STREAM,
    SUBSCRIPTION,
    Clock,
    member_with_lease,
    retry,
    running,
    slow_leases,
    stored,
)

#: Retention that waits also for who reads the archive.
HOLDS: Guard = {
    "postgres": ("reads_archive", "stands.at < p.low_sequence - 1", "false"),
    "mysql": ("reads_archive", "stands_at < low - 1", "FALSE"),
}


@pytest.fixture
def places(tmp_path: Path) -> tuple[Target, Target]:
    """Two targets."""
    return Target("one", str(tmp_path / "one")), Target("two", str(tmp_path / "two"))


def publish(own: Any, first: int, last: int, keys: str = "ab") -> None:
    """Events with these numbers, their keys in turn, and their sequences."""
    publish_batch(
        own,
        [
            Message(STREAM, b"%d" % n, key=keys[n % len(keys)], headers={"n": n, "x": 1.50})
            for n in range(first, last + 1)
        ],
    )
    drain(own)


def archived(own: Any, *places: Target) -> None:
    """What is whole log epochs of ten is sealed, copied and dropped."""
    seal(own, STREAM, max_events=10)
    copy_all(own, STREAM, *places)
    drop(own, STREAM, places)


def cold(own: Any, *places: Target, keys: str = "ab") -> None:
    """Twenty events that only the archive has, and five that the database has."""
    topic(own, 1, STREAM)
    publish(own, 1, 25, keys)
    archived(own, *places)
    assert dict(database.call(own, "low_sequences", topic=STREAM)) == {0: 21}


def payload(event: Event) -> int:
    """Its number."""
    return int(event.payload)


@proves("the whole history, consumed")
@pytest.mark.parametrize("options", [
    {}, {"prefetch_rows": 50}, {"batch_size": 3}, {"concurrency": 3}, {"batch": True},
], ids=str)  # fmt: skip
def test_it_reads_on_from_the_archive(
    db: ContractDatabase, places: tuple[Target, Target], options: dict[str, Any]
) -> None:
    """All events in order per key, hot after cold, each once, and the position is at the end."""
    own = db.connect()
    cold(own, *places)
    stream.subscribe(own, SUBSCRIPTION, [STREAM], 1)
    slow_leases(own)
    seen: list[int] = []
    given = {name: options[name] for name in options if name != "batch"}
    if "batch" in options:
        given["batch_handler"] = lambda batch: seen.extend(payload(each) for each in batch)
    else:
        given["handler"] = lambda event: seen.append(payload(event))
    with running(new_consumer(db, archive=places, **given)):
        wait_until(lambda: stored(own) == 25, "it has caught up")
        publish(own, 26, 27)
        wait_until(lambda: stored(own) == 27, "it reads what is new")
    assert sorted(seen) == list(range(1, 28))
    for key in (0, 1):
        assert [n for n in seen if n % 2 == key] == [n for n in range(1, 28) if n % 2 == key]


def test_an_app_gives_its_targets_to_its_consumers(
    db: ContractDatabase, places: tuple[Target, Target]
) -> None:
    """`penstock worker --target` sets them the same way."""
    own = db.connect()
    cold(own, *places)
    stream.subscribe(own, SUBSCRIPTION, [STREAM], 1)
    slow_leases(own)
    app = App(db.url)
    app.archive = places
    stop, seen = threading.Event(), []

    @app.consumer(SUBSCRIPTION)
    def handle(event: Event) -> None:
        seen.append(payload(event))
        if payload(event) == 25:
            stop.set()

    (worker,) = app.workers()
    worker.run(stop)
    assert seen == list(range(1, 26))


@proves("the whole history, consumed")
@pytest.mark.parametrize("start", ["5", "1.5", "0.5"])
def test_a_seek_goes_below_the_low_sequence(
    db: ContractDatabase, places: tuple[Target, Target], start: str
) -> None:
    """By sequence or position, where a verified copy holds it.

    Guard: without a copy it is refused as before.
    """
    own = db.connect()
    cold(own, *places)
    stream.subscribe(own, SUBSCRIPTION, [STREAM], "latest")
    slow_leases(own)
    assert stream.seek(own, SUBSCRIPTION, STREAM, 0, start) == 4
    seen: list[int] = []
    with running(new_consumer(db, archive=places, handler=lambda e: seen.append(payload(e)))):
        wait_until(lambda: stored(own) == 25, "it has caught up")
    assert seen == list(range(5, 26))
    with pytest.raises(EpochError, match="not in log epoch 2"):
        stream.seek(own, SUBSCRIPTION, STREAM, 0, "2.5")
    db.run("UPDATE penstock.epoch_copies SET state = 'missing' WHERE log_epoch = 1")
    with pytest.raises(BelowLowSequence):
        stream.seek(own, SUBSCRIPTION, STREAM, 0, start)
    assert stored(own) == 25
    assert stream.reset(own, SUBSCRIPTION, "11") == {(STREAM, 0): 10}


@proves("the whole history, consumed")
def test_without_targets_it_says_so(db: ContractDatabase, places: tuple[Target, Target]) -> None:
    """Nothing is skipped, and the position stays."""
    own = db.connect()
    cold(own, *places)
    stream.subscribe(own, SUBSCRIPTION, [STREAM], 1)
    with pytest.raises(BelowLowSequence, match="below the low sequence 21"):
        new_consumer(db, handler=print).run(threading.Event())
    assert stored(own) == 0


def test_where_no_target_has_it_it_ends_and_the_next_one_goes_on(
    db: ContractDatabase, places: tuple[Target, Target], tmp_path: Path
) -> None:
    own = db.connect()
    cold(own, *places)
    stream.subscribe(own, SUBSCRIPTION, [STREAM], 1)
    slow_leases(own)
    places[0].root.rename(tmp_path / "unmounted")
    seen: list[int] = []
    options = {"handler": lambda event: seen.append(payload(event)), "prefetch_rows": 0}
    consumer = new_consumer(db, archive=places[:1], **options)
    with pytest.raises(EpochMissing, match="one is not available"):
        consumer.run(threading.Event())
    assert (seen, stored(own)) == ([], 0)
    with running(new_consumer(db, archive=places, **options)):
        wait_until(lambda: stored(own) == 25, "it has caught up")
    assert seen == list(range(1, 26))


def _reads_one(db: ContractDatabase, places: tuple[Target, Target]) -> None:
    """A consumer with targets that ends with its first event, and has committed nothing."""
    stop = threading.Event()

    def handle(_: Event) -> None:
        stop.set()
        raise RuntimeError("not done")

    new_consumer(db, archive=places, handler=handle).run(stop)


@proves("the whole history, consumed")
def test_it_neither_holds_retention_nor_loses_its_place(
    db: ContractDatabase, places: tuple[Target, Target]
) -> None:
    """D9: what goes once it reads there stays readable for it; caught up, it holds again."""
    own = db.connect()
    cold(own, *places)
    stream.subscribe(own, SUBSCRIPTION, [STREAM], 1)
    slow_leases(own)
    publish(own, 26, 45)
    archived(own, *places)
    assert dict(database.call(own, "low_sequences", topic=STREAM)) == {0: 21}
    _reads_one(db, places)
    archived(own, *places)
    assert dict(database.call(own, "low_sequences", topic=STREAM)) == {0: 41}
    assert stored(own) == 0
    seen: list[int] = []
    with running(new_consumer(db, archive=places, handler=lambda e: seen.append(payload(e)))):
        wait_until(lambda: stored(own) == 45, "it has caught up")
    assert seen == list(range(1, 46))
    publish(own, 46, 65)
    archived(own, *places)
    assert dict(database.call(own, "low_sequences", topic=STREAM)) == {0: 41}


@proves("the whole history, consumed", guard="reads_archive")
def test_without_the_exception_it_would_hold_retention(
    db: ContractDatabase, places: tuple[Target, Target]
) -> None:
    """Mutant of reads_archive."""
    own = db.connect()
    cold(own, *places)
    stream.subscribe(own, SUBSCRIPTION, [STREAM], 1)
    slow_leases(own)
    publish(own, 26, 45)
    _reads_one(db, places)
    without(db, HOLDS)
    archived(own, *places)
    assert dict(database.call(own, "low_sequences", topic=STREAM)) == {0: 21}


@proves("the whole history, consumed")
@pytest.mark.parametrize("way", ["by_event", "by_batch"])
def test_a_poison_event_of_the_archive_becomes_a_dead_letter(
    db: ContractDatabase, places: tuple[Target, Target], way: str
) -> None:
    """S16: with its payload and headers, which the database no longer has; redriven it is handled.

    Guard: bring_letter; without it the consumer ends with BelowLowSequence.
    """
    own = db.connect()
    cold(own, *places)
    stream.subscribe(own, SUBSCRIPTION, [STREAM], 1)
    stream.configure_subscription(
        own, SUBSCRIPTION, heartbeat_seconds=0.3, lease_seconds=180, release_seconds=60
    )
    retry(own, max_attempts=2)
    poison = Poisoned(7)
    name = "batch_handler" if way == "by_batch" else "handler"
    with running(new_consumer(db, archive=places, **{name: getattr(poison, way)})):
        wait_until(lambda: stored(own) == 25, "all are done with")
        assert letters_of(own) == [(7, "dead", 2)]
        (letter,) = dead_letters.dead_letters(own, SUBSCRIPTION)
        found = dead_letters.dead_letter(own, SUBSCRIPTION, letter.id)
        assert found is not None
        assert (found.payload, found.headers) == (b"7", {"n": 7, "x": 1.50})
        poison.sequences.clear()
        assert dead_letters.redrive(own, SUBSCRIPTION) == 1
        wait_until(lambda: not letters_of(own), "it is handled")
    assert sorted(n for each in poison.seen.values() for n in each) == list(range(1, 26))


@proves("the whole history, consumed")
@pytest.mark.parametrize("way", ["by itself", "in its transaction", "leases elsewhere"])
def test_keys_wait_behind_an_event_of_the_archive(
    db: ContractDatabase, places: tuple[Target, Target], way: str
) -> None:
    """park_key over cold and hot: others flow, and after a redrive the key comes in order."""
    own = db.connect()
    cold(own, *places)
    stream.subscribe(own, SUBSCRIPTION, [STREAM], 1)
    stream.configure_subscription(
        own, SUBSCRIPTION, heartbeat_seconds=0.3, lease_seconds=180, release_seconds=60
    )
    retry(own, max_attempts=1, exhausted="park_key")
    poison = Poisoned(17)

    def handle(event: Any) -> None:
        if way != "in its transaction":
            poison.by_event(event)
            return
        with event.transaction():
            poison.by_event(event)

    store = f"memory://{uuid.uuid4().hex}" if way == "leases elsewhere" else None
    options: dict[str, Any] = {"handler": handle, "batch_size": 4, "coordination": store}
    with running(new_consumer(db, archive=places, **options)):
        wait_until(lambda: stored(own) == 25, "all are passed")
        assert [(n, state) for n, state, _ in letters_of(own)] == [
            (n, "parked") for n in (17, 19, 21, 23, 25)
        ]
        poison.sequences.clear()
        assert dead_letters.redrive(own, SUBSCRIPTION) == 5
        wait_until(lambda: not letters_of(own), "all letters are handled")
    assert poison.seen["b"] == list(range(1, 26, 2))
    assert poison.seen["a"] == list(range(2, 26, 2))


def test_a_paused_subscription_reads_nothing(
    db: ContractDatabase, places: tuple[Target, Target]
) -> None:
    """Guard: ColdReads asks before it reads the archive."""
    own = db.connect()
    cold(own, *places)
    stream.subscribe(own, SUBSCRIPTION, [STREAM], 1)
    member, lease = member_with_lease(own, "a")

    def poll(connection: Any, leases: Any, most: int, each: int | None) -> Any:
        return stream.poll(connection, member, leases, most, each)

    reads = ColdReads(SUBSCRIPTION, poll, places)
    ((_, events),) = reads.poll(own, [lease], 7)
    assert [each.sequence for each in events] == list(range(1, 8))
    subscriptions.pause(own, SUBSCRIPTION)
    assert reads.poll(own, [lease], 7) == []


@proves("the whole history, consumed", guard="the bounds of bring_letter")
def test_only_what_the_log_no_longer_has_is_brought(
    db: ContractDatabase, places: tuple[Target, Target]
) -> None:
    """Guards of bring_letter: below the low sequence, after the position, and the lease."""
    own = db.connect()
    cold(own, *places)
    stream.subscribe(own, SUBSCRIPTION, [STREAM], 3)
    member, lease = member_with_lease(own, "a")
    (hot,) = log.fetch(own, STREAM, 0, 21, 1)

    def bring(sequence: int) -> None:
        event = Event(
            STREAM, 0, sequence, hot.event_id, None, "", "", {}, b"x", hot.created_at,
            hot.sequenced_at, 1,
        )  # fmt: skip
        with closing(db.connect(autocommit=False)) as connection:  # or the lease stays locked
            dead_letters.give_up(
                connection, member, lease, sequence, "x", attempts=1, brought=[event]
            )
            connection.commit()

    for sequence in (2, 21, 25):
        with pytest.raises(InvalidArgument, match="none that only the archive has"):
            bring(sequence)
    assert letters_of(own) == []
    bring(3)
    assert letters_of(own) == [(3, "dead", 1)]
    stream.leave(own, member)
    with pytest.raises(StaleLease):
        bring(4)


@pytest.mark.parametrize("wrong", ["one=/x", [1], ["one=/x"], 3], ids=str)
def test_wrong_targets_are_refused(db: ContractDatabase, wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="archive is no list of targets"):
        new_consumer(db, handler=print, archive=wrong)


def test_a_dry_run_counts_what_is_read_later(
    db: ContractDatabase, places: tuple[Target, Target]
) -> None:
    """And changes nothing: neither the position nor the lease."""
    own = db.connect()
    cold(own, *places)
    stream.subscribe(own, SUBSCRIPTION, [STREAM], 24)
    slow_leases(own)
    member, lease = member_with_lease(own, "a")
    assert stream.replay_count(own, SUBSCRIPTION, "1.8") == {(STREAM, 0): 18}
    assert (stored(own), stream.held_leases(own, member)) == (23, [lease])
    stream.leave(own, member)
    stream.reset(own, SUBSCRIPTION, "1.8")
    seen: list[int] = []
    with running(new_consumer(db, archive=places, handler=lambda e: seen.append(payload(e)))):
        wait_until(lambda: stored(own) == 25, "it has caught up")
    assert len(seen) == 18


def test_a_cap_limits_what_is_read_in_a_second(
    db: ContractDatabase, places: tuple[Target, Target]
) -> None:
    """By a clock that the test moves; guard: the room in CappedReads."""
    own = db.connect()
    cold(own, *places)
    stream.subscribe(own, SUBSCRIPTION, [STREAM], 1)
    member, lease = member_with_lease(own, "a")
    clock = Clock()

    def poll(connection: Any, leases: Any, most: int, each: int | None) -> Any:
        return stream.poll(connection, member, leases, most, each)

    capped = CappedReads(ColdReads(SUBSCRIPTION, poll, places).poll, 4.0, clock)
    read, taken = 0, []
    for seconds in (0.0, 0.2, 0.3, 0.5, 100.0, 0.0, 1.0):
        clock.now += seconds
        found = capped.poll(own, [replace(lease, position=read)], 500)
        taken.append(sum(len(events) for _, events in found))
        read += taken[-1]
    assert taken == [0, 0, 2, 2, 4, 0, 4]


def test_a_capped_consumer_reads_everything(
    db: ContractDatabase, places: tuple[Target, Target]
) -> None:
    own = db.connect()
    cold(own, *places)
    stream.subscribe(own, SUBSCRIPTION, [STREAM], 1)
    slow_leases(own)
    seen: list[int] = []
    options = {"handler": lambda event: seen.append(payload(event))}
    with running(new_consumer(db, archive=places, max_events_per_second=200, **options)):
        wait_until(lambda: stored(own) == 25, "it has caught up")
    assert seen == list(range(1, 26))
    with pytest.raises(InvalidArgument, match="max_events_per_second"):
        new_consumer(db, max_events_per_second=0, **options)
