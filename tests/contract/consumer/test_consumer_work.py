"""How a consumer works: keys side by side, hand-overs, failures, time limits, async handlers."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock import database, publish_batch, subscriptions
from penstock.consumer.handlers.failures import HandlerFailed
from penstock.consumer.handlers.options import TopicPartition
from penstock.consumer.running.async_consumer import AsyncConsumer
from penstock.consumer.stream.assignment import PartitionBuffers
from penstock.consumer.stream.committing import Committer
from penstock.consumer.stream.consumer import Batch, Consumer
from penstock.consumer.stream.in_flight import PartitionBuffer
from penstock.errors import InvalidArgument, InvalidName
from penstock.leases.keeper import Keeper
from penstock.records import Event, Message
from penstock.subscriptions import stream
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import end_lease
from tests.kit.log import drain, topic, wait_until
from tests.kit.proof import proves
from tests.kit.stream import (
    STREAM,
    SUBSCRIPTION,
    filled,
    holders,
    retry,
    running,
    slow_leases,
    stored,
)


def _consumer(db: ContractDatabase, **options: Any) -> Consumer:
    given: dict[str, Any] = {"consumer_id": "a", "idle_seconds": 0.05} | options
    return Consumer(db.url, SUBSCRIPTION, **given)


def _keyed(connection: Any, keys: str, **fields: Any) -> None:
    """A topic of one partition with an event for each letter."""
    topic(connection, 1, STREAM)
    stream.subscribe(connection, SUBSCRIPTION, [STREAM])
    publish_batch(
        connection,
        [Message(STREAM, b"%d" % n, key=key, partition=0, **fields) for n, key in enumerate(keys)],
    )
    drain(connection)
    slow_leases(connection)
    retry(connection)


class Gate:
    """Handlers wait at it until the test opens it."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self._open.wait(60)

    def open(self) -> None:
        self._open.set()


@contextmanager
def _first_event_hangs(db: ContractDatabase, own: Any) -> Iterator[tuple[Gate, list[int]]]:
    """Four handlers at once, the one of the first event waits at a gate."""
    _keyed(own, "aabbccdd")
    gate, seen = Gate(), list[int]()

    def handle(event: Event) -> None:
        if event.sequence == 1:
            gate.wait()
        seen.append(event.sequence)

    with running(_consumer(db, handler=handle, concurrency=4, commit_every_seconds=0)):
        try:
            yield gate, seen
        finally:
            gate.open()


@proves("S13")
def test_keys_run_side_by_side_and_the_position_waits(db: ContractDatabase) -> None:
    """S13. Guard: only the contiguous prefix is committed; a key keeps its order."""
    own = db.connect()
    with _first_event_hangs(db, own) as (gate, seen):
        wait_until(lambda: len(seen) == 6, "all other keys are handled")
        assert (sorted(seen), stored(own)) == ([3, 4, 5, 6, 7, 8], 0)
        gate.open()
        wait_until(lambda: stored(own) == 8, "all is committed")
        assert seen.index(1) < seen.index(2)


@proves("S13", guard="the contiguous prefix")
def test_without_the_prefix_an_unfinished_event_is_passed(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the highest sequence that is done is committed."""

    def jump(each: PartitionBuffer) -> None:
        each.done = max(each._ahead, default=each.done)

    monkeypatch.setattr(PartitionBuffer, "_advance", jump)
    own = db.connect()
    with _first_event_hangs(db, own) as (_, seen):
        wait_until(lambda: stored(own) > 1 and 1 not in seen, "a position behind the first event")


@proves("L7 in streams")
def test_a_key_that_fails_holds_up_itself_only(db: ContractDatabase) -> None:
    """L7; and it comes again until it is done."""
    own = db.connect()
    _keyed(own, "abab")
    calls: dict[int, int] = defaultdict(int)

    def handle(event: Event) -> None:
        calls[event.sequence] += 1
        if event.sequence == 1 and (calls[1] < 3 or calls[4] == 0):
            raise ValueError("not yet")

    with running(_consumer(db, handler=handle, concurrency=2)):
        wait_until(lambda: stored(own) == 4, "all is done")
    assert calls[1] >= 3
    assert (calls[2], calls[3], calls[4]) == (1, 1, 1)


def _revoked_while_committing(db: ContractDatabase) -> dict[str, Any]:
    """A second consumer comes; what the first one sees while it gives partitions up."""
    own, its = db.connect(), db.connect()
    filled(own, partitions=2, events=3)
    stream.configure_subscription(
        own, SUBSCRIPTION, heartbeat_seconds=0.3, lease_seconds=60, release_seconds=60
    )
    told: dict[str, Any] = {"assigned": {}, "held": {}, "positions": []}
    batches: dict[int, Batch] = {}
    gate = Gate()

    def handle(batch: Batch) -> None:
        batches[batch.lease.partition] = batch
        if len(batches) == 2:
            gate.wait()

    def revoked(partitions: list[TopicPartition]) -> None:
        told["held"] |= {place: holders(its).get(place.partition) for place in partitions}

    first = _consumer(
        db, batch_handler=handle, on_assigned=told["assigned"].update, on_revoked=revoked
    )
    with running(first):
        assert gate.reached.wait(30)
        with running(_consumer(db, handler=lambda _: None, consumer_id="b")):
            wait_until(
                lambda: (
                    any(each.state == "RELEASING" for each in subscriptions.lag(own, SUBSCRIPTION))
                    and any(each.state == "RELEASING" for each in first.keeper.leases())
                ),
                "the first is asked for one",
            )
            gate.open()
            wait_until(lambda: told["held"], "it gives one up")
            wait_until(lambda: stored(own, 0) == stored(own, 1) == 3, "all is done")
    told["stale"] = first.stats.stale_commits
    return told


@proves("L2")
def test_a_partition_is_announced_before_it_is_given_up(db: ContractDatabase) -> None:
    """Guard: on_revoked, then the last commit, then the release."""
    told = _revoked_while_committing(db)
    assert told["assigned"] == {TopicPartition(STREAM, n): 0 for n in range(2)}
    assert set(told["held"].values()) == {"a"}
    assert told["stale"] == 0


@proves("L2", guard="that order")
def test_announced_too_late_is_noticed(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the lease is given back first."""
    first = Committer.part_with

    def too_late(committer: Committer, connection: Any, hands: list[PartitionBuffer]) -> None:
        if hands:
            leases = [each.lease for each in hands]
            stream.release(connection, committer._keeper.member, leases)
        first(committer, connection, hands)

    monkeypatch.setattr(Committer, "part_with", too_late)
    assert "a" not in _revoked_while_committing(db)["held"].values()


def _prefetched_then_taken_over(db: ContractDatabase) -> list[tuple[str, int]]:
    """Events are read ahead, the lease is lost, and its successor handles them."""
    own = db.connect()
    filled(own, events=6)
    slow_leases(own)
    seen: list[tuple[str, int]] = []
    gate = Gate()

    def handle(event: Event) -> None:
        seen.append(("a", event.sequence))
        if event.sequence == 2:
            gate.wait()

    paused = _consumer(db, handler=handle, prefetch_rows=100, commit_every_seconds=0)
    with running(paused):
        assert gate.reached.wait(30)
        wait_until(lambda: paused.assignment.rows() == 5, "the others are read ahead")
        end_lease(db, "a")
        successor = _consumer(db, handler=lambda e: seen.append(("b", e.sequence)), consumer_id="b")
        successor.run_until_idle()
        (lease,) = paused.keeper.leases()
        paused.keeper.lost(lease)
        gate.open()
        wait_until(lambda: paused.assignment.rows() == 0, "it has nothing in hand any more")
    return seen


@proves("S13")
def test_what_was_read_ahead_is_dropped_with_the_lease(db: ContractDatabase) -> None:
    """S13. Guard: PartitionBuffers.forget at the loss of a lease."""
    seen = _prefetched_then_taken_over(db)
    assert [each for each in seen if each[0] == "a"] == [("a", 1), ("a", 2)]
    assert [n for who, n in seen if who == "b"][-4:] == [3, 4, 5, 6]


@proves("S13", guard="forget() at the loss of a lease")
def test_what_is_not_dropped_is_noticed(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: what was read under the lost lease is handled all the same."""
    monkeypatch.setattr(PartitionBuffers, "forget", lambda *_: None)
    monkeypatch.setattr(Keeper, "holds", lambda *_: True)
    monkeypatch.setattr(PartitionBuffers, "ready", lambda own: [(e.lease, e) for e in own.all()])
    assert ("a", 6) in _prefetched_then_taken_over(db)


def test_a_filter_passes_events_and_commits_them(db: ContractDatabase) -> None:
    """Guard: take() counts them as done; by type and by header."""
    own = db.connect()
    topic(own, 1, STREAM)
    stream.subscribe(own, SUBSCRIPTION, [STREAM])
    messages = [
        Message(STREAM, b"%d" % n, type=kind, headers={"tenant": tenant})
        for n, (kind, tenant) in enumerate([("x", 1), ("y", 1), ("x", 2), ("z", 1), ("x", 1)])
    ]
    publish_batch(own, messages)
    drain(own)
    seen: list[int] = []

    def consumer() -> Consumer:
        return _consumer(
            db,
            handler=lambda event: seen.append(event.sequence),
            types=["x", "y"],
            headers={"tenant": 1},
        )

    first = consumer()
    assert first.run_until_idle() == 3
    assert (seen, stored(own), first.stats.filtered) == ([1, 2, 5], 5, 2)
    publish_batch(own, messages[3:4])
    drain(own)
    assert consumer().run_until_idle() == 0
    assert stored(own) == 6


def test_a_batch_that_fails_is_cut_down_to_the_event(db: ContractDatabase) -> None:
    """What comes before it is committed; what comes after it waits."""
    own = db.connect()
    filled(own, events=20)
    retry(own, longest=60)
    sizes: list[int] = []

    def handle(batch: Batch) -> None:
        sizes.append(len(batch))
        if any(event.sequence == 13 for event in batch):
            raise ValueError("thirteen")

    with pytest.raises(HandlerFailed):
        _consumer(db, batch_handler=handle).run_until_idle()
    assert stored(own) == 12
    assert sizes[0] == 20
    assert sizes[-1] == 1


def test_each_event_has_a_transaction_of_its_own(db: ContractDatabase) -> None:
    """D6 for a handler by event, over failures in and after the transaction."""
    own = db.connect()
    filled(own, events=8)
    retry(own)
    database.execute(db.connect(), "CREATE TABLE effects (number INT)")
    failures = {2: "inside", 5: "behind"}

    def handle(event: Any) -> None:
        fault = failures.pop(event.sequence, "")
        with event.transaction() as connection:
            database.execute(
                connection, "INSERT INTO effects VALUES (%(n)s)", {"n": event.sequence}
            )
            if fault == "inside":
                raise ValueError(fault)
        if fault == "behind":
            raise ValueError(fault)

    with running(_consumer(db, handler=handle)):
        wait_until(lambda: stored(db.connect()) == 8, "all is done")
    found = database.execute(db.connect(), "SELECT number FROM effects ORDER BY number")
    assert [number for (number,) in found] == list(range(1, 9))


def test_side_by_side_there_is_no_transaction_with_the_position(db: ContractDatabase) -> None:
    """Typed error: an earlier event may be unfinished."""
    own = db.connect()
    _keyed(own, "a")
    refused: list[str] = []

    def handle(event: Any) -> None:
        try:
            with event.transaction():
                pass
        except InvalidArgument as error:
            refused.append(str(error))

    assert _consumer(db, handler=handle, concurrency=2).run_until_idle() == 1
    assert "concurrency=1" in refused[0]


@proves("S16 in streams")
def test_a_handler_that_hangs_loses_its_lease(db: ContractDatabase) -> None:
    """Its late commit is refused, the event is counted, and comes again in another thread."""
    own = db.connect()
    filled(own, events=3)
    stream.configure_subscription(
        own, SUBSCRIPTION, heartbeat_seconds=1, lease_seconds=180, release_seconds=60
    )
    retry(own)
    gate, late, calls = Gate(), list[BaseException](), list[int]()

    def handle(event: Any) -> None:
        calls.append(event.sequence)
        if calls.count(2) == 1 and event.sequence == 2:
            gate.wait()
            try:
                with event.transaction():
                    pass
            except Exception as error:
                late.append(error)

    consumer = _consumer(db, handler=handle, handler_seconds=0.2)
    with running(consumer):
        wait_until(lambda: stored(own) == 3, "the others take their way")
        gate.open()
        wait_until(lambda: late, "the late commit")
    assert (consumer.stats.timeouts, type(late[0]).__name__) == (1, "StaleLease")
    assert calls == [1, 2, 2, 3]


def test_async_handlers_run_on_the_callers_loop(db: ContractDatabase) -> None:
    """Side by side, in order for a key; cancelled ones come again; drained at the end."""
    own = db.connect()
    _keyed(own, "ababcb")
    seen: dict[str | None, list[int]] = defaultdict(list)
    loops: set[Any] = set()

    async def work() -> int:
        stop, attempts = asyncio.Event(), list[int]()
        together = asyncio.Barrier(2)

        async def handle(event: Event) -> None:
            loops.add(asyncio.get_running_loop())
            if event.sequence in (1, 2):
                await asyncio.wait_for(together.wait(), 30)  # passes only with both under way
            if event.sequence == 5:
                attempts.append(5)
                if len(attempts) == 1:
                    await asyncio.sleep(60)
            seen[event.key].append(event.sequence)
            if sum(map(len, seen.values())) == 6:
                stop.set()

        consumer = AsyncConsumer(
            db.url, SUBSCRIPTION, handler=handle, concurrency=3, handler_seconds=0.5,
            idle_seconds=0.05,
        )  # fmt: skip
        await asyncio.wait_for(consumer.run(stop), 60)
        assert loops == {asyncio.get_running_loop()}
        return consumer.stats.timeouts

    assert asyncio.run(work()) == 1
    assert seen == {"a": [1, 3], "b": [2, 4, 6], "c": [5]}
    assert (stored(own), holders(own)) == (6, {})


def test_a_consumer_of_async_handlers_has_a_loop_of_its_own(db: ContractDatabase) -> None:
    """For a thread, and for `penstock worker`."""
    own = db.connect()
    filled(own, events=4)
    seen: list[int] = []

    async def handle(batch: Batch) -> None:
        await asyncio.sleep(0)
        seen.extend(event.sequence for event in batch)

    assert _consumer(db, batch_handler=handle, batch_size=3).run_until_idle() == 4
    assert seen == [1, 2, 3, 4]


def test_middleware_stands_around_each_call(db: ContractDatabase) -> None:
    """The first one outermost; it sees what the handler raises."""
    own = db.connect()
    filled(own, events=2)
    said: list[str] = []

    def outer(event: Event, call_next: Callable[[Any], Any]) -> Any:
        said.append(f"outer {event.sequence}")
        return call_next(event)

    def inner(event: Event, call_next: Callable[[Any], Any]) -> Any:
        said.append(f"inner {event.sequence}")
        return call_next(event)

    consumer = _consumer(db, handler=lambda _: None, middleware=[outer, inner])
    assert consumer.run_until_idle() == 2
    assert said == ["outer 1", "inner 1", "outer 2", "inner 2"]


def test_commits_by_count_and_time_leave_few_rows(db: ContractDatabase) -> None:
    """A position is a row: not one for each batch."""
    own = db.connect()
    filled(own, events=40)
    consumer = _consumer(
        db, handler=lambda _: None, batch_size=5, commit_every_events=20, commit_every_seconds=600
    )
    assert consumer.run_until_idle() == 40
    rows = db.run("SELECT COUNT(*) FROM penstock.positions WHERE reason = 'commit'")
    assert (rows, stored(own)) == ([(2,)], 40)


def _wrong_handlers() -> list[Any]:
    def generates(event: Event) -> Iterator[None]:
        yield

    async def generates_too(event: Event) -> Any:
        yield

    return [7, "handler", generates, generates_too]


@pytest.mark.parametrize("handler", _wrong_handlers())
def test_a_handler_is_sync_or_async(handler: Any) -> None:
    """Typed errors, when the consumer is made."""
    with pytest.raises(InvalidArgument):
        Consumer("postgresql://localhost/none", SUBSCRIPTION, handler=handler)


def test_options_out_of_range_are_refused() -> None:
    """Before anything is connected."""
    wrong: list[dict[str, Any]] = [
        {"concurrency": 0}, {"handler_seconds": 0}, {"commit_every_events": -1}, {"types": "x"},
        {"commit_every_seconds": float("nan")}, {"prefetch_bytes": 0}, {"prefetch_rows": -1},
        {"middleware": [_an_async_middleware]}, {"middleware": print}, {"concurrency": 1.5},
        {"batch_size": True}, {"idle_seconds": -3}, {"types": []}, {"headers": ["a"]},
        {"on_assigned": 5}, {"on_revoked": "x"}, {"consumer_id": ""}, {"coordination": 5},
    ]  # fmt: skip
    for options in wrong:
        with pytest.raises((InvalidArgument, InvalidName)):
            Consumer("postgresql://localhost/none", SUBSCRIPTION, handler=print, **options)
    with pytest.raises(InvalidArgument, match="async def"):
        AsyncConsumer("postgresql://localhost/none", SUBSCRIPTION, handler=print)


async def _an_async_middleware(event: Event, call_next: Callable[[Any], Any]) -> Any:
    return await call_next(event)


def test_a_coroutine_that_nobody_awaits_is_no_success(db: ContractDatabase) -> None:
    """A plain function that returns one has done nothing yet."""
    own = db.connect()
    filled(own, events=1)

    async def later(event: Event) -> None:
        raise AssertionError("nobody awaits it")

    with pytest.raises(HandlerFailed, match="nobody awaits"):
        _consumer(db, handler=lambda event: later(event)).run_until_idle()
    assert stored(own) == 0
