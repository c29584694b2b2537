"""Handlers that raise what is no Exception, or what cannot say what it is: attempts too."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from ops.relay.block import Backoff
from ops.sinks.base import Channel, RelayBlock
from ops.sinks.jsonl import JsonlSink
from penstock.consumer.handlers.executors import Executor
from penstock.consumer.handlers.failures import HandlerFailed
from penstock.consumer.queue.consumer import QueueConsumer
from penstock.consumer.stream.consumer import Consumer
from penstock.subscriptions import dead_letters, queue
from tests.contract.databases import ContractDatabase
from tests.contract.kit import kill
from tests.contract.poison_kit import letters_of, new_consumer
from tests.kit.log import wait_until
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, filled as filled_queue, rows
from tests.kit.sinks import InFront, relay_once
from tests.kit.stream import (
    SUBSCRIPTION,
    filled,
    member_with_lease,
    retry,
    running,
    slow_leases,
    stored,
)


class Panic(BaseException):
    """As an extension in Rust raises, or gevent when its time is over."""


class Silent(Exception):
    """Whoever asks it what it says, gets an error."""

    def __str__(self) -> str:
        raise ValueError("nothing to say")

    __repr__ = __str__


class Worse(Silent):
    """And this one is no Exception."""

    def __str__(self) -> str:
        raise Panic

    @property
    def sqlstate(self) -> str:
        """Drivers' errors have one."""
        raise Panic


def _cancelled(event: Any) -> None:
    """An event loop of the handler's own, in which somebody cancels the work."""

    async def work() -> None:
        raise asyncio.CancelledError

    asyncio.run(work())


def _raising(kind: type[BaseException]) -> Any:
    def handle(event: Any) -> None:
        raise kind

    return handle


ODD = {
    "panic": _raising(Panic),
    "cancelled": _cancelled,
    "exit": _raising(GeneratorExit),
    "interrupt of a thread": _raising(KeyboardInterrupt),
    "silent": _raising(Silent),
    "worse": _raising(Worse),
}


def _as_task(handle: Any) -> Any:
    async def handle_async(event: Any) -> None:
        if handle is _cancelled:
            raise asyncio.CancelledError
        handle(event)

    return handle_async


@proves("S16, whatever is raised")
@pytest.mark.parametrize("way", ["inline", "threads", "tasks"])
def test_whatever_a_handler_of_a_stream_raises_is_an_attempt(
    db: ContractDatabase, way: str
) -> None:
    """Guard: is_interruption and error_text.  The consumer ended without an attempt counted."""
    own = db.connect()
    filled(own, events=len(ODD) + 1)
    slow_leases(own)
    retry(own, max_attempts=2)
    odd = dict(enumerate(ODD.values(), 1))

    def handle(event: Any) -> None:
        odd.get(event.sequence, lambda _: None)(event)

    async def handle_async(event: Any) -> None:
        if event.sequence in odd:
            await _as_task(odd[event.sequence])(event)

    handler: Any = handle_async if way == "tasks" else handle
    consumer = new_consumer(db, handler=handler, handler_seconds=None if way == "inline" else 60)
    with running(consumer):
        wait_until(lambda: stored(own) == len(ODD) + 1, "all are done with")
    assert letters_of(own) == [(each, "dead", 2) for each in odd]
    reasons = [each.reason for each in dead_letters.dead_letters(own, SUBSCRIPTION)]
    assert {each.partition(":")[0] for each in reasons} >= {"Panic", "Silent", "Worse"}
    assert "Silent: (its text cannot be read: ValueError)" in reasons


@proves("S16, whatever is raised")
@pytest.mark.parametrize("is_async", [False, True])
def test_whatever_a_handler_of_a_queue_raises_is_an_attempt(
    db: ContractDatabase, is_async: bool
) -> None:
    """An error without a text ended the worker at each start.  Guard: error_text."""
    own = db.connect()
    filled_queue(own, len(ODD))
    odd = dict(enumerate(ODD.values(), 1))

    def handle(event: Any) -> None:
        odd[event.sequence](event)

    async def handle_async(event: Any) -> None:
        await _as_task(odd[event.sequence])(event)

    handler: Any = handle_async if is_async else handle
    with pytest.raises(HandlerFailed):
        QueueConsumer(db.url, QUEUE, handler=handler).run_until_idle()
    found = queue.statistics(own, QUEUE)
    assert (found.size, found.delayed) == (len(ODD), len(ODD))
    reasons = [reason for (reason,) in rows(own, "SELECT reason FROM penstock.queue_waiting")]
    assert "Worse: (its text cannot be read: Panic)" in reasons


def test_an_odd_error_in_a_lost_transaction_is_an_attempt(db: ContractDatabase) -> None:
    """Then the consumer looks into the error's text.  Guard: error_text in `outlived_lease`."""
    own = db.connect()
    filled(own, events=1)
    slow_leases(own)
    retry(own, max_attempts=1)
    calls: list[int] = []

    def handle(event: Any) -> None:
        calls.append(event.sequence)
        with event.transaction() as connection:
            if len(calls) == 1:
                kill(db, connection)
            raise Worse

    with running(new_consumer(db, handler=handle)):
        wait_until(lambda: letters_of(own) == [(1, "dead", 1)], "it is given up")


@proves("S16, whatever is raised")
@pytest.mark.parametrize("is_async", [False, True])
def test_callbacks_that_raise_do_not_end_the_consumer(db: ContractDatabase, is_async: bool) -> None:
    """On_assigned and on_revoked.  Guard: PartitionBuffers._tell."""
    own = db.connect()
    filled(own, events=2)
    handler: Any = _as_task(lambda event: None) if is_async else lambda event: None
    consumer = new_consumer(
        db, handler=handler, on_assigned=_raising(Panic), on_revoked=_raising(Worse)
    )
    assert consumer.run_until_idle() == 2
    assert (consumer.stats.failures, stored(own)) == (2, 2)


@proves("S16, whatever is raised", guard="what interrupts the program passes")
def test_what_interrupts_the_program_ends_the_run(db: ContractDatabase) -> None:
    """Ctrl-C in the main thread, and Dagster that ends its run, are no handler's failures."""
    own = db.connect()
    filled(own, events=1)
    kind = type("DagsterExecutionInterruptedError", (BaseException,), {})
    for interruption in (KeyboardInterrupt, kind):
        with pytest.raises(interruption):
            new_consumer(db, handler=_raising(interruption)).run_until_idle()
    assert (letters_of(own), stored(own)) == ([], 0)


@proves("S16, whatever is raised")
def test_a_task_that_the_application_cancels_before_it_began_comes_again(
    db: ContractDatabase,
) -> None:
    """Nobody would hear of it: it was under way for ever.  Guard: TaskExecutor._ended."""
    own = db.connect()
    filled(own, events=1)
    retry(own, max_attempts=5)
    handled, cancelled = list[int](), list[bool]()

    async def handle(event: Any) -> None:
        handled.append(event.sequence)

    async def work() -> None:
        consumer = Consumer(db.url, SUBSCRIPTION, handler=handle, idle_seconds=0.05)
        executor: Any = consumer.executor
        spawn = executor._spawn

        def spawn_and_cancel(unit: Any) -> None:
            spawn(unit)
            if not cancelled:
                (task,) = executor._tasks
                cancelled.append(task.cancel())

        executor._spawn = spawn_and_cancel
        consumer.executor.use_loop(asyncio.get_running_loop())
        stop = threading.Event()
        thread = threading.Thread(target=consumer.run, args=(stop,), daemon=True)
        thread.start()
        while not handled:
            await asyncio.sleep(0.01)
        stop.set()
        while thread.is_alive():
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(work(), 30))
    assert (handled, stored(own), letters_of(own)) == ([1], 1, [])


class _Sink(InFront):
    """Raises what the test says, then writes."""

    def __init__(self, folder: Path, *errors: type[BaseException]) -> None:
        super().__init__(JsonlSink(str(folder)))
        self._errors = list(errors)

    def send_block(self, channel: Channel, block: RelayBlock) -> None:
        """The next error, or the block."""
        if self._errors:
            raise self._errors.pop(0)
        channel.send_block(block)


@proves("S16, whatever is raised")
def test_whatever_a_sink_raises_is_a_failed_attempt(db: ContractDatabase, tmp_path: Path) -> None:
    """And counted in the database.  Guards: is_interruption and error_text in relay_once."""
    own = db.connect()
    filled(own, events=3)
    member, lease = member_with_lease(own, "relay")
    odd = (Panic, Silent, Worse, asyncio.CancelledError)
    sink = _Sink(tmp_path, *odd)
    sink.preflight(lease.topic, 1)
    quick = Backoff(base_seconds=0.001, max_seconds=0.001)
    for kind in odd:
        failed = relay_once(own, member, lease, sink, quick)
        assert failed is not None and failed.retry_after is not None
        assert failed.error.startswith(kind.__name__)
    sent = relay_once(own, member, lease, sink, quick)
    assert sent is not None and (sent.events, sent.retry_after) == (3, None)


@proves("S16, whatever is raised", guard="Executor._called")
def test_without_the_guard_a_panic_ends_the_consumer(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: only exceptions are failures, as before."""
    own = db.connect()
    filled(own, events=1)
    retry(own, max_attempts=1)
    called = Executor._called

    def only_exceptions(executor: Any, unit: Any) -> Any:
        outcome = called(executor, unit)
        if outcome.error is not None and not isinstance(outcome.error, Exception):
            raise outcome.error
        return outcome

    monkeypatch.setattr(Executor, "_called", only_exceptions)
    with pytest.raises(Panic):
        new_consumer(db, handler=_raising(Panic)).run_until_idle()
    assert not letters_of(own)
