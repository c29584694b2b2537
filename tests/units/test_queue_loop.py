"""When a worker of a queue acknowledges, scripted: a clock that stands, handlers that wait.

The queue is in memory.  What the engines have to do with it is in tests/contract/queue.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

import penstock
from penstock import queue
from penstock.consumer.queue.backlog import Backlog
from penstock.consumer.queue.consumer import QueueConsumer
from penstock.consumer.queue.delivery import HeldDelivery, QueueDelivery
from penstock.consumer.queue.settling import Settler
from penstock.errors import InvalidArgument, SubscriptionNotFound
from penstock.leases.loop import LoopStats
from penstock.records import Message
from penstock.subscriptions.verdicts import Verdict
from tests.kit.log import wait_until
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, TOPIC, pass_time
from tests.kit.queue_script import Script, in_hand, outcome_of
from tests.kit.stream import running

#: Longer than any test: only the injected clock can pass it.
LONG = 50.0
#: What a unit has that nobody looks at.
NOTHING: Any = None


@proves("a worker acknowledges in time")
@pytest.mark.parametrize(("together", "most"), [(1, 1), (5, 9)])
def test_a_handler_waits_for_no_acknowledgement(
    together: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one call is made, as many again are handled.  Guards: after_one, the limit in _take."""
    assert _handled_meanwhile(together, monkeypatch, most) == most


@proves("a worker acknowledges in time", guard="the supply")
def test_without_the_supply_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: only the consumer's thread gives a handler its next event."""
    original = Backlog.after_one
    monkeypatch.setattr(
        Backlog, "after_one", lambda backlog, outcome, **_: original(backlog, outcome, is_last=True)
    )
    assert _handled_meanwhile(5, monkeypatch, 6) == 6


@proves("a worker acknowledges in time", guard="the limit in _take")
def test_without_the_limit_more_would_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: nothing counts what the database does not know."""

    def take(backlog: Backlog) -> HeldDelivery | None:
        return backlog._units.popleft() if backlog._units else None

    monkeypatch.setattr(Backlog, "_take", take)
    assert _handled_meanwhile(5, monkeypatch, 29) == 29


def _handled_meanwhile(together: int, monkeypatch: pytest.MonkeyPatch, most: int) -> int:
    """How many of 30 events one handler does while the first acknowledgement is under way."""
    begun, go_on, real = threading.Event(), threading.Event(), queue.acknowledge

    def slow(*args: Any, **options: Any) -> list[bool]:
        begun.set()
        assert go_on.wait(30)
        return real(*args, **options)

    script = Script(30, concurrency=1, acknowledge_every_events=together)
    monkeypatch.setattr(queue, "acknowledge", slow)
    with running(script.consumer):
        assert begun.wait(30)
        executor = script.consumer.executor
        wait_until(lambda: executor._mailbox.qsize() + len(_told(script)) >= most, "they are done")
        found = len(script.begun) - (script.last in script.begun)
        go_on.set()
        script.open.set()
        wait_until(lambda: not script.unfinished, "all are finished")
    assert len(script.begun) == 30
    return found


def _told(script: Script) -> list[Any]:
    return script.consumer.settler.outcomes


@proves("a worker acknowledges in time")
def test_it_waits_for_others_but_not_for_long() -> None:
    """Guard: Settler.due_at, from the end of the oldest on."""
    script = Script(4)
    with running(script.consumer):
        script.waits(3)
        assert (script.unfinished, script.consumer.stats.events) == (4, 0)
        script.now += 0.005
        wait_until(lambda: script.unfinished == 1, "they are acknowledged")
        script.open.set()
    assert (script.consumer.stats.events, script.consumer.stats.batches) == (4, 2)


def test_enough_are_acknowledged_at_once() -> None:
    """Guard: Settler.is_due counts."""
    script = Script(7, acknowledge_every_events=3)
    with running(script.consumer):
        wait_until(lambda: script.unfinished <= 4, "three are acknowledged")
        script.open.set()


@proves("a worker acknowledges in time")
def test_nothing_waits_when_nothing_else_is_in_hand() -> None:
    """run_until_idle leaves nothing.  Guard: is_idle in _settle."""
    script = Script(5, acknowledge_every_seconds=LONG)
    script.open.set()
    assert script.consumer.run_until_idle() == 5
    assert (script.unfinished, script.now) == (0, 0.0)


@proves("a worker acknowledges in time")
def test_a_claim_that_is_near_its_end_is_acknowledged_not_extended() -> None:
    """Guard: the end of the claim in _collect."""
    script = Script(3, acknowledge_every_seconds=LONG)
    with running(script.consumer):
        script.waits(2)
        receipts = [each.unit.receipt for each in script.consumer.settler.outcomes]
        script.now += 15
        wait_until(lambda: script.unfinished == 1, "they are acknowledged")
        script.open.set()
    assert (script.consumer.stats.events, len(receipts)) == (3, 2)
    assert script.consumer.stats.stale_commits == 0


@proves("a worker acknowledges in time")
def test_a_stop_leaves_nothing_unacknowledged() -> None:
    """Guard: session settles after the last handler has ended."""
    script = Script(3, acknowledge_every_seconds=LONG)
    with running(script.consumer) as stop:
        script.waits(2)
        stop.set()
        script.open.set()
    assert (script.consumer.stats.events, script.unfinished) == (3, 0)


def test_a_failure_is_told_at_once() -> None:
    """With what waits.  Guards: Settler.add, and that after_one wakes the consumer for it."""
    script = Script(10, acknowledge_every_seconds=LONG, prefetch=8, idle_seconds=10)
    fail = threading.Event()

    def handle(delivery: QueueDelivery) -> Verdict | None:
        number = int(delivery.payload)
        assert number == 1 or (fail if number == 2 else script.open).wait(30)
        return queue.again(1000) if number == 2 else None

    script.use(handle)
    with running(script.consumer) as stop:
        script.waits(1)
        fail.set()
        wait_until(lambda: script.unfinished == 9, "the first is acknowledged")
        assert queue.statistics(script.own, QUEUE).delayed == 1
        stop.set()
        script.open.set()


@proves("a worker acknowledges in time")
@pytest.mark.parametrize("seconds", [None, LONG])
def test_where_keys_have_an_order_the_next_one_does_not_wait(seconds: float | None) -> None:
    """Guard: no pause where the order is by key, or not known.  With one, the key waits for it."""
    script = Script(0, acknowledge_every_seconds=seconds)
    script.last = "b"
    queue.configure(script.own, QUEUE, order="key")
    events = [Message(TOPIC, text.encode(), key=text[0], partition=0) for text in ("b", "a1", "a2")]
    penstock.publish_batch(script.own, events)
    script.database.run_until_idle()
    with running(script.consumer):
        if seconds is None:
            wait_until(lambda: "a2" in script.begun, "it comes although b is under way")
        else:
            script.waits(1)
            assert "a2" not in script.begun
        script.open.set()
        wait_until(lambda: not script.unfinished, "all are finished")


def _received(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has an entry for each call of receive from now on."""
    received, real = [], queue.receive

    def counted(*args: Any, **named: Any) -> Any:
        received.append(1)
        return real(*args, **named)

    monkeypatch.setattr(queue, "receive", counted)
    return received


def test_a_handler_that_ends_is_no_reason_to_receive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two notices there is nothing new.  Guards: _look_at, and what sets it back."""
    script, received = Script(3), _received(monkeypatch)
    with script.handed_over() as connection:
        for _ in range(5):
            script.consumer.round(connection)
        assert len(received) == 2, "what there was, and that there is no more"
        script.consumer.heard(["a notice"])
        script.consumer.round(connection)
        assert len(received) == 3
        script.now += 1.0
        script.consumer.round(connection)
        assert len(received) == 4, "the pause of an idle worker is over"


def test_nobody_asks_again_and_again_while_a_handler_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard: run_until_idle looks at once only when nothing is under way."""
    script, received = Script(1, concurrency=2, idle_seconds=1), _received(monkeypatch)
    script.use(lambda _: script.open.wait(0.3) or None)
    assert script.consumer.run_until_idle() == 1
    assert len(received) <= 5


def test_without_the_pause_each_round_receives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: the next look is always due."""
    monkeypatch.setattr(QueueConsumer, "_look_again", lambda *_, **__: False)
    with pytest.raises(AssertionError, match="no more"):
        test_a_handler_that_ends_is_no_reason_to_receive(monkeypatch)


@pytest.mark.parametrize("order", ["none", "key"])
def test_what_may_be_free_by_an_outcome_is_looked_for_at_once(order: str) -> None:
    """The next event of a key, or the same event again.  Guard: _look_at in _settle."""
    script = Script(2)
    if order == "key":
        queue.configure(script.own, QUEUE, order="key")
    script.use(lambda delivery: queue.again(0.0) if order == "none" else None)
    with script.handed_over() as connection:
        script.consumer.round(connection)
        script.consumer._look_at = LONG
        wait_until(lambda: script.consumer.executor._mailbox.qsize() > 0, "one has ended")
        script.consumer.round(connection)
        assert script.consumer._look_at < LONG


def test_it_is_the_handler_that_is_measured() -> None:
    """Guard: Outcome.took.  What is received ahead follows from it."""
    script = Script(1, prefetch=None, concurrency=1)

    def slow(delivery: QueueDelivery) -> None:
        script.now += 10

    script.use(slow)
    assert script.consumer.run_until_idle() == 1
    assert script.consumer._ahead() == 0


def test_what_has_ended_is_not_given_up() -> None:
    """Guard: abandon looks whether it has ended.  Its outcome counts, though nobody took it yet."""
    script = Script(1, concurrency=1)
    consumer = script.consumer
    with script.handed_over():
        (unit,) = consumer.executor.under_way
        wait_until(lambda: unit.ended is not None, "it ends")
        assert not consumer.executor.abandon(unit)
        assert (len(consumer.executor.arrived()), unit.abandoned) == (1, False)
        consumer.backlog.count(-1)


def test_what_is_near_its_end_is_not_begun() -> None:
    """Guard: _is_late in _take.  The consumer gives it back."""
    now = 0.0
    backlog = Backlog(lambda: now, together=3)
    backlog.spare_seconds = 15.0
    early, late = in_hand(30.0), in_hand(31.0)
    backlog.extend([early, late])
    now = 15.0
    assert (backlog.take(), backlog.late_at()) == (None, 15.0)
    assert backlog.take_late() == [early]
    assert (backlog.take(), backlog.take(), len(backlog)) == (late, None, 0)


def test_when_the_consumer_has_to_look() -> None:
    """After the first, after enough, when little is left, and when a handler gets nothing."""
    backlog = Backlog(lambda: 0.0, together=4)
    backlog.extend(in_hand(30.0) for _ in range(8))
    backlog.low = 5
    done, failed = outcome_of(), outcome_of(ValueError("no"))
    answers = [backlog.after_one(each, is_last=False)[1] for each in (done,) * 5 + (failed, done)]
    assert answers == [True, False, True, True, False, True, True]
    backlog.count(-7)
    assert backlog.after_one(done, is_last=True) == (None, True)
    assert len(backlog) == 2


def test_each_event_has_a_context_of_its_own_and_the_event_loop_goes_on() -> None:
    """Guards: the context and the task of each unit.  Handlers that await nothing block no one."""
    script = Script(5)
    said = contextvars.ContextVar("said", default="nothing")
    found: list[str] = []
    turns: list[int] = []

    async def handle(delivery: QueueDelivery) -> None:
        found.append(said.get())
        said.set("something")
        assert len(turns) == len(found) - 1, "what was asked for before has been called"
        asyncio.get_running_loop().call_soon(turns.append, delivery.sequence)

    consumer = penstock.AsyncQueueConsumer(script.database.url, QUEUE, handler=handle)
    assert asyncio.run(consumer.run_until_idle()) == 5
    assert (set(found), len(turns)) == ({"nothing"}, 5)


def test_a_settler_keeps_what_it_could_not_tell() -> None:
    """An outage in between: the outcomes stay, and the count of what is not told with them."""
    script = Script(2, concurrency=1)
    consumer = script.consumer
    with script.handed_over() as connection:
        wait_until(lambda: consumer.backlog._untold == 2, "both are done")
        consumer._collect()
        with pytest.raises(InvalidArgument, match="not a database connection"):
            consumer._settle(None)  # type: ignore[arg-type]
        assert (len(consumer.settler.outcomes), consumer.backlog._untold) == (2, 2)
        consumer._settle(connection)
        assert (len(consumer.settler.outcomes), consumer.backlog._untold) == (0, 0)
    assert not Settler(QUEUE, LoopStats(), lambda: 0.0, together=3).is_due(1e9)


def test_a_delay_begins_when_the_handler_says_so() -> None:
    """Guard: Settler._rest_of; without it the delay begins when the database is told."""
    script = Script(1, concurrency=1)
    script.use(lambda _: queue.again(30.0))
    consumer = script.consumer
    with script.handed_over() as connection:
        (unit,) = consumer.executor.under_way
        wait_until(lambda: unit.ended is not None, "it ends")
        script.now += 20.0
        consumer._collect()
        consumer._settle(connection)
    pass_time(script.own, 9.0)
    assert queue.receive(script.own, QUEUE) == []
    pass_time(script.own, 1.5)
    assert len(queue.receive(script.own, QUEUE)) == 1


def test_options_have_bounds() -> None:
    wrong: list[dict[str, Any]] = [
        {"acknowledge_every_events": 0}, {"acknowledge_every_events": 1_001},
        {"acknowledge_every_events": None}, {"acknowledge_every_seconds": -1},
        {"acknowledge_every_seconds": 61},
    ]  # fmt: skip
    for options in wrong:
        with pytest.raises(InvalidArgument, match="acknowledge_every"):
            QueueConsumer("postgresql://localhost/none", QUEUE, handler=print, **options)


@pytest.mark.parametrize("paused_for", [0.0, 31.0])
def test_what_outlived_its_claim_is_acknowledged_before_more_is_received(paused_for: float) -> None:
    """A late receipt is good until the next hand-out.  Guard: late_at in _receives_first."""
    script = Script(1, concurrency=1, acknowledge_every_seconds=LONG)
    script.open.set()
    consumer = script.consumer
    with consumer.at_work(), consumer.open() as connection, consumer.session(connection):
        consumer.turn(connection)
        wait_until(lambda: consumer.backlog._untold == 1, "it is done")
        pass_time(script.own, paused_for)
        script.now += paused_for
        consumer.turn(connection)
    assert (script.begun, script.unfinished, consumer.stats.stale_commits) == (["1"], 0, 0)


def test_who_may_not_see_the_settings_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A login that has only the rights to receive and acknowledge: the order may be by key."""

    def hidden(*_: object) -> object:
        raise SubscriptionNotFound("there is no such subscription")

    monkeypatch.setattr(queue, "describe", hidden)
    script = Script(1, visibility_seconds=20)
    script.open.set()
    assert script.consumer.run_until_idle() == 1
    assert script.consumer._together_seconds == 0
    with pytest.raises(SubscriptionNotFound):
        Script(1).consumer.run_until_idle()
