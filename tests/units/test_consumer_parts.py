"""The parts of a consumer, each alone: leases are in a dictionary, and the test sets the time."""

from __future__ import annotations

import asyncio
import inspect
import random
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any, cast

import pytest

import penstock
from penstock.consumer.handlers import handler as handlers
from penstock.consumer.handlers.executors import InlineExecutor
from penstock.consumer.handlers.handler import handling, has_run
from penstock.consumer.handlers.options import ConsumerOptions, TopicPartition
from penstock.consumer.stream.assignment import PartitionBuffers
from penstock.consumer.stream.committing import Committer
from penstock.consumer.stream.delivery import Batch
from penstock.consumer.stream.in_flight import PartitionBuffer
from penstock.consumer.stream.reading import Reader
from penstock.consumer.stream.retrying import Retrier
from penstock.errors import BackwardCommit, InvalidArgument, StaleLease
from penstock.leases.keeper import Keeper
from penstock.leases.loop import LoopStats
from penstock.records import Event, Lease
from penstock.subscriptions import dead_letters
from penstock.subscriptions.policies import SubscriptionPolicy
from penstock.subscriptions.stream import Membership
from tests.kit.proof import proves
from tests.units.test_in_flight import event

#: No part looks into it: what the store says comes from the keeper.
NOWHERE = cast("Any", None)
POLICY = SubscriptionPolicy(1, 3, 10, 10, 10, 1024, 1, 3, 2.0, 60.0, 0.0, "dead_letter")


class Kept(Keeper):
    """Leases and positions in dictionaries; ``refused`` are commits that the store refuses."""

    in_database = False

    def __init__(self, leases: Sequence[Lease], clock: Any) -> None:
        super().__init__("memory://", "tests", "a", clock)
        self._member = Membership("tests", "a", uuid.uuid4(), 3.0, 10.0)
        self.log: dict[int, list[Event]] = {}
        self.positions: dict[int, int] = {}
        self.refused: dict[int, Exception] = {}
        self.polled: list[int] = []
        self.statements: list[list[int]] = []
        self.hold(leases)

    def hold(self, leases: Sequence[Lease]) -> None:
        """These, and no others."""
        self._install({each.partition_id: each for each in leases}, self._clock())

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to leave."""

    def check_in_soon(self) -> None:
        """Never."""

    def poll(
        self,
        connection: Any,
        leases: Sequence[Lease],
        max_events: int,
        max_each: int | None = None,
    ) -> list[tuple[Lease, list[Event]]]:
        self.polled += [each.partition_id for each in leases]
        found = {each: self.log.get(each.partition_id, [])[each.position :] for each in leases}
        return [(lease, events[:max_events]) for lease, events in found.items() if events]

    def commit(
        self, connection: Any, wanted: Sequence[tuple[Lease, int]], after: Sequence[int]
    ) -> None:
        self.statements.append([lease.partition_id for lease, _ in wanted])
        for lease, _ in wanted:
            if lease.partition_id in self.refused:
                raise self.refused[lease.partition_id]
        self.positions |= {lease.partition_id: position for lease, position in wanted}

    def release(self, connection: Any, leases: Sequence[Lease]) -> None:
        """They are gone from the dictionary."""

    def position(self, connection: Any, lease: Lease) -> int:
        return self.positions[lease.partition_id]

    def held(self, connection: Any) -> list[Lease]:
        return self.leases()


class Parts:
    """An assignment of three partitions and what works on it; time stands still."""

    def __init__(self, **options: Any) -> None:
        self.now = 100.0
        self.told: list[tuple[str, Any]] = []
        self.handled: list[int] = []
        given = {"handler": lambda event: self.handled.append(event.sequence)} | options
        self.options = ConsumerOptions(
            clock=lambda: self.now,
            rng=random.Random(1),
            on_assigned=lambda said: self.told.append(("assigned", said)),
            on_revoked=lambda said: self.told.append(("revoked", said)),
            **given,
        )
        self.stats = LoopStats()
        leases = [Lease("t/a", n, n, 1, "ACTIVE", 0, 1) for n in range(3)]
        self.keeper = Kept(leases, self.options.clock)
        self.executor: InlineExecutor[Any, Any] = InlineExecutor(
            handling("tests", self.options),
            1,
            deliver=lambda unit, own: Batch(unit, own, keeper=self.keeper, in_order=True),
            clock=self.options.clock,
            slice_seconds=1.0,
            stopping=lambda: False,
        )
        self.assignment = PartitionBuffers(self.keeper, self.stats, self.executor, self.options)
        self.reader = Reader(
            self.assignment, self.keeper, self.options, connect=lambda: NOWHERE, ahead_rows=0
        )
        self.committer = Committer(
            self.assignment,
            self.keeper,
            self.stats,
            self.options,
            every_seconds=self.options.commit_every_seconds,
        )
        self.retrier = Retrier(
            assignment=self.assignment,
            committer=self.committer,
            reader=self.reader,
            executor=self.executor,
            keeper=self.keeper,
            stats=self.stats,
            options=self.options,
        )

    def done(self, events: int = 2) -> list[PartitionBuffer]:
        """All partitions in hand, with so many events done in each."""
        hands = self.assignment.look_at_leases()
        for each in hands:
            each.take([event(n) for n in range(1, events + 1)])
            unit = self.assignment.begin(each)
            assert unit is not None
            self.assignment.end(unit, events)
        return hands


def test_the_assignment_follows_the_leases_and_tells_of_them() -> None:
    parts = Parts()
    first = parts.assignment.look_at_leases()
    places = [TopicPartition("t/a", n) for n in range(3)]
    assert parts.told == [("assigned", dict.fromkeys(places, 0))]
    assert parts.assignment.look_at_leases() == []
    kept, further_back, lost = (each.lease for each in first)
    first[1].was_committed(5)
    parts.keeper.hold([kept, further_back])
    again = parts.assignment.look_at_leases()
    assert [each.lease for each in again] == [further_back]
    assert [each.closed for each in first] == [False, True, True]
    assert parts.told[1:] == [("revoked", places[1:]), ("assigned", {places[1]: 0})]
    assert parts.assignment.of(lost) is None


def test_a_commit_is_one_statement_and_due_by_time_or_count() -> None:
    parts = Parts(commit_every_events=3)
    parts.done(2)
    parts.committer.commit_due(NOWHERE, idle=False)
    assert parts.keeper.statements == []
    parts.now += 1
    parts.committer.commit_due(NOWHERE, idle=False)
    assert parts.keeper.statements == [[0, 1, 2]]
    assert parts.keeper.positions == {0: 2, 1: 2, 2: 2}
    assert (parts.stats.events, parts.stats.batches) == (6, 3)
    other = Parts(commit_every_events=2)
    other.done(2)
    other.committer.commit_due(NOWHERE, idle=False)
    assert other.keeper.statements == [[0, 1, 2]]


@pytest.mark.parametrize("every_seconds", [1.0, 0.001])
def test_what_comes_within_a_moment_shares_a_commit(every_seconds: float) -> None:
    """Also when there is nothing to do.  Guard: Committer.idle_seconds, and never above its own."""
    parts = Parts(commit_every_seconds=every_seconds)
    parts.done(1)
    parts.committer.commit_due(NOWHERE, idle=True)
    assert parts.keeper.statements == []
    parts.now += 0.002
    parts.committer.commit_due(NOWHERE, idle=True)
    assert parts.keeper.statements == ([] if every_seconds == 1.0 else [[0, 1, 2]])
    parts.now += 0.004
    parts.committer.commit_due(NOWHERE, idle=True)
    assert parts.keeper.statements == [[0, 1, 2]]
    other = Parts()
    other.done(1)
    other.committer.commit_done(NOWHERE)
    assert other.keeper.statements == [[0, 1, 2]], "a risky handler is about to begin"


def test_a_commit_that_has_to_wait_wakes_nobody() -> None:
    """Else the loop spins until the unit has ended.  Guards: _has_to_wait and stands_until."""
    parts = Parts()
    (first, second, _) = parts.done(1)
    parts.committer.commit_due(NOWHERE, idle=True)
    assert list(parts.committer.next_due()) == [parts.now + 0.005] * 3
    first.under_way, second.stands_until = 1, parts.now + 10
    assert list(parts.committer.next_due()) == [parts.now + 10, parts.now + 0.005]


def test_a_commit_that_is_refused_for_one_leaves_the_others() -> None:
    """Guard: Committer._write is told of several; each is then written alone."""
    parts = Parts()
    hands = parts.done(2)
    parts.keeper.refused[1] = StaleLease("gone")
    parts.committer.commit(NOWHERE, hands)
    assert parts.keeper.statements == [[0, 1, 2], [0], [1], [2]]
    assert parts.keeper.positions == {0: 2, 2: 2}
    assert [each.closed for each in hands] == [False, True, False]
    assert (parts.stats.stale_commits, parts.keeper.holds(hands[1].lease)) == (1, False)


def test_a_commit_whose_answer_was_lost_is_looked_up() -> None:
    parts = Parts()
    hand = parts.done(3)[0]
    parts.keeper.refused[0], parts.keeper.positions[0] = BackwardCommit("it stands there"), 3
    parts.committer.commit(NOWHERE, [hand])
    assert (hand.committed, hand.closed) == (3, False)
    parts.keeper.positions[0] = 1
    with pytest.raises(StaleLease):
        parts.committer.stands_at(hand, 1)


def test_only_what_is_not_under_way_is_let_go() -> None:
    parts = Parts()
    hands = parts.done(1)
    hands[0].take([event(2)])
    assert parts.assignment.begin(hands[0]) is not None
    leases = [each.lease for each in hands]
    assert parts.committer.let_go(NOWHERE, leases) == leases[1:]
    assert parts.keeper.positions == {1: 1, 2: 1}


def test_the_reader_asks_for_what_has_nothing_left() -> None:
    parts = Parts(batch_size=2)
    parts.keeper.log = {0: [event(n) for n in range(1, 4)], 1: [event(1)]}
    hands = parts.assignment.look_at_leases()
    parts.reader.read(NOWHERE, None, parts.assignment.ready())
    assert [each.read for each in hands] == [2, 1, 0]
    parts.keeper.polled.clear()
    parts.reader.read(NOWHERE, None, parts.assignment.ready())
    assert parts.keeper.polled == [2]


def test_what_fails_comes_again_alone_after_a_growing_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def begin_attempt(*_: Any, uncounted: int, **__: Any) -> int:
        return uncounted + 1

    monkeypatch.setattr(dead_letters, "begin_attempt", begin_attempt)
    parts = Parts()
    (hand, *_) = parts.assignment.look_at_leases()
    hand.take([event(n) for n in range(1, 4)])
    parts.retrier.policy = POLICY
    for pause in (2.0, 4.0):
        unit = parts.assignment.begin(hand)
        assert unit is not None
        unit.policy = POLICY
        assert parts.retrier.prepared(NOWHERE, unit)
        assert parts.retrier.unit_failed(unit, ValueError("no")) == 0
        assert hand.next_pause_end == parts.now + pause
        assert parts.assignment.begin(hand) is None
        parts.now += pause
    alone = parts.assignment.begin(hand)
    assert alone is not None
    assert [each.sequence for each in alone.events] == [1]
    alone.done = 1
    assert parts.retrier.unit_done(NOWHERE, alone) == 1
    assert not parts.retrier.failures


def test_an_executor_says_how_far_it_came() -> None:
    def handle(event: Event) -> None:
        if event.sequence == 2:
            raise ValueError("two")

    parts = Parts(handler=handle)
    (hand, *_) = parts.assignment.look_at_leases()
    hand.take([event(n) for n in range(1, 4)])
    unit = parts.assignment.begin(hand)
    assert unit is not None
    with parts.executor.at_work():
        parts.executor.submit(unit)
        assert parts.executor.free == 0
        (outcome,) = parts.executor.arrived()
    assert (outcome.unit.done, type(outcome.error)) == (1, ValueError)
    assert parts.executor.free == 1


def test_options_are_listed_once_and_fixed() -> None:
    options = ConsumerOptions(handler=print, types=["x"])
    with pytest.raises(FrozenInstanceError):
        options.batch_size = 1  # type: ignore[misc]
    names = [each.name for each in fields(ConsumerOptions)]
    for kind in (penstock.Consumer, penstock.AsyncConsumer):
        assert list(inspect.signature(kind).parameters) == ["url", "subscription", *names]
    assert replace(options, batch_size=7).types == frozenset("x")
    with pytest.raises(InvalidArgument, match="did you mean batch_size"):
        penstock.Consumer("postgresql://nowhere/none", "a", handler=print, batchsize=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidArgument, match="batch_size"):
        replace(options, batch_size=0)


def test_a_coroutine_that_a_task_runs_is_refused_and_goes_on() -> None:
    """Only one that nobody has begun is closed: another would be cut off in the middle."""

    async def work(gate: asyncio.Event) -> str:
        await gate.wait()
        return "whole"

    async def scenario() -> str:
        gate = asyncio.Event()
        coroutine = work(gate)
        task = asyncio.create_task(coroutine)
        await asyncio.sleep(0)
        with pytest.raises(InvalidArgument, match="nobody awaits"):
            has_run("the handler", coroutine, is_async=True)
        gate.set()
        return await task

    assert asyncio.run(scenario()) == "whole"


class _Unbound:
    """A proxy that raises as soon as it is asked what it stands for."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise AssertionError("asked")


def test_what_has_run_is_let_through() -> None:
    """It means nothing to a consumer, and is looked at by its type alone."""
    answers: list[Any] = [None, "ok", [], False, len, _Unbound()]
    for answer in answers:
        assert has_run("the handler", answer, is_async=True) is answer


@proves("S16, what never ran", guard="the look into a list")
def test_what_is_returned_in_a_list_has_run_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deeper it is not looked for.  Mutant: nor is it there."""

    def generator() -> Iterator[None]:
        yield

    failed: Future[None] = Future()
    failed.set_exception(ValueError("in a pool"))
    unrun = [generator(), map(print, "a"), filter(print, "a"), Future(), failed]
    for each in unrun:
        for answer in ([1, each], (each,), {each}):
            with pytest.raises(InvalidArgument, match=f"a {type(answer).__name__} with a "):
                has_run("the handler", answer, is_async=False)
        assert has_run("the handler", [[each]], is_async=False)
    monkeypatch.setattr(handlers, "_SEVERAL", frozenset())
    assert [has_run("the handler", [each], is_async=False) for each in unrun]


@proves("S16, what never ran", how="in a list, where what is done may stand")
def test_what_a_handler_has_waited_for_it_may_return() -> None:
    """Tasks and futures that are done, a coroutine that was awaited, a generator at its end."""

    async def work() -> None: ...

    async def scenario() -> None:
        coroutine, task, generator = work(), asyncio.create_task(work()), (each for each in "a")
        await coroutine
        done: Future[None] = Future()
        done.set_result(None)
        answer = [coroutine, *(await asyncio.wait([task]))[0], done, generator, *generator]
        assert has_run("the handler", answer, is_async=True) is answer

    asyncio.run(scenario())
