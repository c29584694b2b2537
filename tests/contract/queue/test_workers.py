"""`penstock.QueueConsumer`: what it hands to handlers, extends, finishes and gives back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import penstock
from penstock import database, subscriptions
from penstock.consumer.handlers.failures import HandlerFailed
from penstock.consumer.queue.consumer import QueueConsumer
from penstock.consumer.queue.delivery import DeliveryWork, HeldDelivery, QueueDelivery
from penstock.errors import InvalidArgument, StaleReceipt
from penstock.subscriptions import dead_letters, queue
from penstock.subscriptions.verdicts import Verdict
from tests.contract.databases import ContractDatabase
from tests.contract.kit import end_sessions, kill
from tests.kit.log import Connection, wait_until
from tests.kit.proof import proves
from tests.kit.queue import (
    QUEUE,
    TOPIC,
    acknowledge,
    filled,
    more,
    pass_time,
    receive,
    rows,
    texts,
)
from tests.kit.stream import running


class Hands:
    """A clock that a test moves, and a handler that waits until it may go on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.open = threading.Event()
        self.begun: list[QueueDelivery] = []

    def clock(self) -> float:
        return self.now

    def is_kept(self) -> bool:
        """Whether the claim of the first event lasts for more than half of 30 seconds."""
        return self.begun[0]._claim.unit.until > self.now + 15

    def handle(self, delivery: QueueDelivery) -> None:
        self.begun.append(delivery)
        assert self.open.wait(60)


def consumer_of(db: ContractDatabase, handler: Any, **options: Any) -> QueueConsumer:
    given: dict[str, Any] = {"idle_seconds": 0.05} | options
    return QueueConsumer(db.url, QUEUE, handler=handler, **given)


def counts(connection: Connection) -> tuple[int, int, int, int]:
    """Ready, in flight, delayed, dead."""
    found = queue.statistics(connection, QUEUE)
    return found.ready, found.in_flight, found.delayed, found.dead


def effects(connection: Connection) -> None:
    """A table of the application."""
    database.execute(connection, "CREATE TABLE effects (number INT)")


def write(connection: Connection, number: int) -> None:
    """What a handler does."""
    database.execute(connection, "INSERT INTO effects VALUES (%(number)s)", {"number": number})


def written(connection: Connection) -> list[int]:
    return [int(number) for (number,) in rows(connection, "SELECT number FROM effects ORDER BY 1")]


@pytest.mark.parametrize("concurrency", [1, pytest.param(8, marks=pytest.mark.long)])
def test_each_event_is_handled_once(
    db: ContractDatabase, own: Connection, concurrency: int
) -> None:
    filled(own, 50, partitions=3)
    seen: list[tuple[int, int]] = []

    def handle(delivery: QueueDelivery) -> None:
        assert (delivery.deliveries, delivery.failures, delivery.subscription) == (1, 0, QUEUE)
        seen.append((delivery.partition, delivery.sequence))

    assert consumer_of(db, handle, concurrency=concurrency).run_until_idle() == 150
    assert (len(seen), len(set(seen))) == (150, 150)
    assert counts(own) == (0, 0, 0, 0)


def test_verdicts(db: ContractDatabase, own: Connection) -> None:
    """O-F20: done, again, discard; an exception is a failure; anything else is refused."""
    filled(own, 6)
    said: dict[str, Any] = {
        "1": None,
        "2": queue.DONE,
        "3": queue.DISCARD,
        "4": queue.again(500, "later"),
        "5": queue.AGAIN,
    }

    def handle(delivery: QueueDelivery) -> Verdict | None:
        text = delivery.payload.decode()
        if text == "6":
            raise ValueError("bad")
        verdict: Verdict | None = said[text]
        return verdict

    with pytest.raises(HandlerFailed, match="bad"):
        consumer_of(db, handle).run_until_idle()
    assert counts(own) == (0, 0, 3, 0)
    pass_time(own, 10)
    found = receive(own, 10)
    assert sorted(texts(found)) == ["5", "6"]
    assert {each.failures for each in found} == {1}
    reasons = rows(own, "SELECT reason FROM penstock.queue_waiting ORDER BY sequence")
    assert [reason for (reason,) in reasons] == [
        "later", "the handler asked for it again", "ValueError: bad",
    ]  # fmt: skip


def test_a_failing_event_ends_in_the_dead_letters(db: ContractDatabase, own: Connection) -> None:
    filled(own, 1, max_failures=2)

    def fail(delivery: QueueDelivery) -> None:
        raise ValueError("never")

    for _ in range(2):
        with pytest.raises(HandlerFailed):
            consumer_of(db, fail).run_until_idle()
        pass_time(own, 100)
    assert counts(own) == (0, 0, 0, 1)
    (letter,) = dead_letters.dead_letters(own, QUEUE)
    assert letter.reason == "ValueError: never"


@proves("a worker keeps what it works on")
def test_a_long_handler_keeps_its_event(db: ContractDatabase, own: Connection) -> None:
    """Guard: the loop extends the claim when half of its time is over."""
    filled(own, 1, visibility_seconds=30)
    hands = Hands()
    with running(consumer_of(db, hands.handle, clock=hands.clock)):
        wait_until(lambda: hands.begun, "the handler begins")
        first = hands.begun[0]._claim.unit.receipt
        for _ in range(3):
            hands.now += 20
            wait_until(hands.is_kept, "the claim is extended")
            pass_time(own, 20)
            assert receive(own) == []
        with pytest.raises(StaleReceipt):
            queue.acknowledge(own, QUEUE, [first])
        hands.open.set()
        wait_until(lambda: counts(own) == (0, 0, 0, 0), "it is finished")
    assert len(hands.begun) == 1


@proves("a worker keeps what it works on", guard="the extension")
def test_without_the_extension_another_one_gets_it(
    db: ContractDatabase, own: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: no claim is extended."""
    monkeypatch.setattr(QueueConsumer, "_extend", lambda *_: None)
    filled(own, 1, visibility_seconds=30)
    hands = Hands()
    consumer = consumer_of(db, hands.handle, clock=hands.clock)
    with running(consumer):
        wait_until(lambda: hands.begun, "the handler begins")
        hands.now += 31
        pass_time(own, 31)
        assert len(receive(own)) == 1
        hands.open.set()
        wait_until(lambda: consumer.stats.stale_commits, "its receipt is refused")
    assert consumer.stats.events == 0


@proves("D6 in workers of queues")
def test_effect_and_end_are_one_transaction(db: ContractDatabase, own: Connection) -> None:
    """Over handlers that fail before and after they write, and lose their connection."""
    filled(own, 40, first_backoff_seconds=0)
    effects(own)
    attempts: dict[int, int] = {}

    def handle(delivery: QueueDelivery) -> None:
        number = int(delivery.payload)
        attempt = attempts[number] = attempts.get(number, 0) + 1
        with delivery.transaction() as connection:
            write(connection, number)
            if attempt == 1 and number % 4 == 0:
                raise ValueError("after the write")
            if attempt == 1 and number % 10 == 1:
                kill(db, connection)
        if number % 4 == 1 and attempt == 1:
            raise ValueError("after the commit")

    with running(consumer_of(db, handle, concurrency=4)):
        wait_until(lambda: len(written(own)) >= 40 and not any(counts(own)), "all are done")
    assert written(own) == list(range(1, 41))


@proves("D6 in workers of queues")
def test_who_lost_the_event_changes_nothing(db: ContractDatabase, own: Connection) -> None:
    """Guard: the receipt is taken first, in the transaction of the writes."""
    filled(own, 1, visibility_seconds=30)
    effects(own)
    gate, begun, raised = threading.Event(), threading.Event(), list[BaseException]()

    def handle(delivery: QueueDelivery) -> None:
        begun.set()
        assert gate.wait(60)
        try:
            with delivery.transaction() as connection:
                write(connection, 1)
        except StaleReceipt as error:
            raised.append(error)
            raise

    consumer = consumer_of(db, handle)
    with running(consumer):
        assert begun.wait(20)
        pass_time(own, 31)
        (other,) = receive(own)  # the worker was paused, as it were
        gate.set()
        wait_until(lambda: raised, "the fence refuses")
        wait_until(lambda: consumer.stats.failures, "it is counted")
        assert (written(own), counts(own)) == ([], (0, 1, 0, 0))
        acknowledge(own, [other])


@proves("D6 in workers of queues", guard="the receipt is taken first")
def test_without_the_fence_a_paused_worker_writes(
    db: ContractDatabase, own: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the transaction does not begin with the acknowledgement."""

    def nothing(claim: DeliveryWork, position: int) -> Iterator[None]:
        yield from ()

    monkeypatch.setattr(DeliveryWork, "finish_steps", nothing)
    filled(own, 1, visibility_seconds=30)
    effects(own)
    gate, begun = threading.Event(), threading.Event()

    def handle(delivery: QueueDelivery) -> None:
        begun.set()
        assert gate.wait(60)
        with delivery.transaction() as connection:
            write(connection, 1)

    with running(consumer_of(db, handle)):
        assert begun.wait(20)
        pass_time(own, 31)
        receive(own)
        gate.set()
        wait_until(lambda: written(own) == [1], "it writes although another one has the event")


@pytest.mark.parametrize("events", [60, pytest.param(250, marks=pytest.mark.long)])
def test_ten_good_workers_and_a_failing_one(
    db: ContractDatabase, own: Connection, events: int
) -> None:
    """C-T12: ten workers that finish, one that fails: all events are seen, size 0."""
    filled(own, events, first_backoff_seconds=0, max_failures=1000, max_deliveries=1000)
    seen: list[int] = []

    def good(delivery: QueueDelivery) -> None:
        seen.append(delivery.sequence)

    def bad(delivery: QueueDelivery) -> None:
        raise ValueError("as always")

    with ExitStack() as workers:
        failing = consumer_of(db, bad)
        workers.enter_context(running(failing))
        wait_until(lambda: failing.stats.failures, "it has failed")
        for _ in range(10):
            workers.enter_context(running(consumer_of(db, good)))
        wait_until(lambda: queue.statistics(own, QUEUE).size == 0, "all are finished", 60)
    assert sorted(seen) == list(range(1, events + 1))


@proves("a worker keeps what it works on")
def test_a_stop_ends_what_is_begun_and_gives_back_the_rest(
    db: ContractDatabase, own: Connection
) -> None:
    """Guard: what nobody has begun is released, and that was no delivery."""
    filled(own, 5)
    hands = Hands()
    consumer = consumer_of(db, hands.handle, concurrency=2, prefetch=10)
    with running(consumer) as stop:
        wait_until(lambda: len(hands.begun) == 2, "two are under way")
        wait_until(lambda: counts(own) == (0, 5, 0, 0), "the rest is received ahead")
        stop.set()
        wait_until(lambda: counts(own)[0] == 3, "it is given back")
        hands.open.set()
    assert (consumer.stats.events, counts(own)) == (2, (3, 0, 0, 0))
    assert {each.deliveries for each in receive(own, 5)} == {1}


@proves("a worker keeps what it works on")
def test_what_is_received_ahead_is_given_back_in_time(
    db: ContractDatabase, own: Connection
) -> None:
    """An event that no handler has begun when half of its time is over goes to others."""
    filled(own, 3, visibility_seconds=30)
    hands = Hands()
    with running(consumer_of(db, hands.handle, prefetch=10, clock=hands.clock)):
        wait_until(lambda: hands.begun, "one is under way")
        assert counts(own) == (0, 3, 0, 0)  # and two are waiting
        subscriptions.pause(own, QUEUE)  # so that nobody receives them again
        hands.now += 20
        wait_until(lambda: counts(own) == (2, 1, 0, 0), "both are given back")
        wait_until(hands.is_kept, "the first is extended")
        hands.open.set()
    assert len(hands.begun) == 1


def test_a_handler_that_hangs_is_given_up(db: ContractDatabase, own: Connection) -> None:
    """Its event comes again for others, and its late end changes nothing."""
    filled(own, 2, first_backoff_seconds=0)
    gate, calls, late = threading.Event(), list[int](), list[BaseException]()

    def handle(delivery: QueueDelivery) -> None:
        calls.append(delivery.sequence)
        if calls.count(1) == 1 and delivery.sequence == 1:
            assert gate.wait(60)
            try:
                with delivery.transaction():
                    pass
            except StaleReceipt as error:
                late.append(error)

    consumer = consumer_of(db, handle, handler_seconds=0.2)
    with running(consumer):
        wait_until(lambda: counts(own) == (0, 0, 0, 0), "the others take their way")
        gate.set()
        wait_until(lambda: late, "the late end")
    assert (consumer.stats.timeouts, sorted(calls)) == (1, [1, 1, 2])


def test_a_lost_connection_is_survived(db: ContractDatabase, own: Connection) -> None:
    """Receipts are good on any connection: what is under way is not handled again."""
    filled(own, 3)
    hands = Hands()
    consumer = consumer_of(db, hands.handle, concurrency=3)
    with running(consumer):
        wait_until(lambda: len(hands.begun) == 3, "all are under way")
        end_sessions(db, own, "penstock mails")
        hands.open.set()
        wait_until(lambda: counts(own) == (0, 0, 0, 0), "they are finished", 40)
    assert (len(hands.begun), consumer.stats.events) == (3, 3)


def test_async_handlers_run_on_the_callers_loop(db: ContractDatabase, own: Connection) -> None:
    """Side by side, with transactions of their own."""
    filled(own, 20)
    effects(own)

    async def work() -> int:
        stop, together, loops = asyncio.Event(), asyncio.Barrier(4), set[Any]()

        async def handle(delivery: QueueDelivery) -> None:
            loops.add(asyncio.get_running_loop())
            if delivery.sequence <= 4:
                await asyncio.wait_for(together.wait(), 30)
            async with delivery.transaction() as connection:
                await connection.execute("INSERT INTO effects VALUES (%s)", (delivery.sequence,))
            if delivery.sequence == 20:
                stop.set()

        consumer = penstock.AsyncQueueConsumer(db.url, QUEUE, handler=handle, concurrency=4)
        await asyncio.wait_for(consumer.run(stop), 60)
        assert loops == {asyncio.get_running_loop()}
        return consumer.stats.events

    done = asyncio.run(work())
    done += consumer_of(db, lambda delivery: None).run_until_idle()
    assert (done, counts(own)) == (20, (0, 0, 0, 0))
    assert written(own) == sorted(set(written(own))) and written(own)


def test_an_application_declares_queues(db: ContractDatabase, own: Connection) -> None:
    """`penstock worker` makes the queue and runs its handler beside those of streams."""
    filled(own, 0)
    app = penstock.App(db.url)
    seen: list[int] = []
    stop = threading.Event()

    @app.queue("jobs", topics=[TOPIC], concurrency=2, idle_seconds=0.05)
    def work(delivery: QueueDelivery) -> None:
        seen.append(delivery.sequence)

    app.prepare()
    assert queue.describe(own, "jobs").max_deliveries == 5
    more(own, 3)
    (worker,) = app.workers()
    thread = threading.Thread(target=worker.run, args=(stop,))
    thread.start()
    try:
        wait_until(lambda: worker.counters()["consumed_events"] == 3, "all are handled")
    finally:
        stop.set()
        thread.join(20)
    assert sorted(seen) == [1, 2, 3]


def test_wrong_options_are_refused(db: ContractDatabase) -> None:
    """Before anything is connected."""

    async def handle(delivery: QueueDelivery) -> None: ...

    wrong: list[dict[str, Any]] = [
        {"concurrency": 0}, {"prefetch": -1}, {"visibility_seconds": 0.5}, {"idle_seconds": 0},
        {"handler_seconds": 0}, {"middleware": print}, {"handler": None}, {"handler": 5},
    ]  # fmt: skip
    for options in wrong:
        with pytest.raises(InvalidArgument):
            QueueConsumer("postgresql://localhost/none", QUEUE, **({"handler": print} | options))
    with pytest.raises(InvalidArgument, match="async def"):
        penstock.AsyncQueueConsumer("postgresql://localhost/none", QUEUE, handler=print)
    assert QueueConsumer("postgresql://localhost/none", QUEUE, handler=handle).is_async


def test_the_pace_of_a_worker(db: ContractDatabase, own: Connection) -> None:
    """O-F11: again at once after a full batch, slower while idle, up to a limit."""
    filled(own, 7)
    times = iter(range(100))
    consumer = consumer_of(
        db, print, prefetch=4, idle_seconds=0.08, clock=lambda: float(next(times))
    )
    with consumer.at_work(), consumer.open() as connection:
        assert consumer._receive(connection), "a full batch: there may be more"
        consumer.backlog.take_all()
        assert consumer._receive(connection), "a part of one after a full one"
        pauses = []
        for _ in range(5):
            consumer.backlog.take_all()
            assert not consumer._receive(connection)
            pauses.append(consumer._pause)
        assert pauses == [0.02, 0.04, 0.08, 0.08, 0.08]
        consumer.heard(["1"])
        assert consumer._pause == 0.01


def test_how_much_is_received_ahead(db: ContractDatabase, own: Connection) -> None:
    """What handlers do in a second, and within a quarter of the visibility."""
    consumer = consumer_of(db, print, concurrency=2, visibility_seconds=2)
    assert consumer._room() == 2, "nothing is known of the handler"
    for seconds, room in ((10.0, 2), (0.1, 12), (0.0001, 502)):
        consumer._mean = seconds
        assert consumer._room() == room
    filled(own, 1)
    (delivery,) = receive(own)
    held = HeldDelivery(delivery, delivery.receipt, 0.0)
    consumer.backlog.extend([held] * 300)
    assert consumer._room() == 0, "not before half of it is gone"
