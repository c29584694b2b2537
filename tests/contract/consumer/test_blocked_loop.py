"""An async handler that never awaits blocks its event loop: only that handler is given up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock.consumer.handlers.executors import Executor
from penstock.consumer.handlers.task_executor import TaskExecutor
from penstock.consumer.running.async_consumer import AsyncConsumer
from penstock.consumer.stream.consumer import Consumer
from penstock.records import Event
from penstock.subscriptions import dead_letters, stream
from tests.contract.consumer.test_consumer_work import Gate
from tests.contract.databases import ContractDatabase
from tests.kit.log import wait_until
from tests.kit.proof import proves
from tests.kit.stream import SUBSCRIPTION, filled, retry, running, stored

LIMIT = 0.3
BLOCKER = 2


class Handler:
    """The first event awaits, the second one blocks the loop, the others come after it."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.gate = Gate()
        self.late: list[str] = []

    async def __call__(self, event: Event) -> None:
        self.calls.append(event.sequence)
        if event.sequence == BLOCKER:
            self.gate.wait()
        elif event.sequence < BLOCKER and not self.gate.reached.is_set():
            await asyncio.sleep(LIMIT / 2)


def _filled(db: ContractDatabase) -> Any:
    own = db.connect()
    filled(own, events=4)
    retry(own, max_attempts=2)
    stream.configure_subscription(
        own, SUBSCRIPTION, heartbeat_seconds=1, lease_seconds=180, release_seconds=60
    )
    return own


def _consumer(db: ContractDatabase, handler: Callable[[Event], Any]) -> Consumer:
    return Consumer(
        db.url, SUBSCRIPTION, handler=handler, handler_seconds=LIMIT, idle_seconds=0.05,
        concurrency=4,
    )  # fmt: skip


@proves("S16 of a blocked loop")
@pytest.mark.long_on("mysql", "mariadb")
def test_only_the_handler_that_blocks_is_given_up(db: ContractDatabase) -> None:
    """Guard: TaskExecutor.hanging. Others get another loop, and none of them has failed."""
    own, handler = _filled(db), Handler()
    consumer = _consumer(db, handler)
    with running(consumer):
        wait_until(lambda: stored(own) == 4, "the others take their way", 60)
    assert (consumer.stats.timeouts, consumer.stats.dead_letters) == (2, 1)
    assert [each.sequence for each in dead_letters.dead_letters(own, SUBSCRIPTION)] == [2]
    assert handler.calls.count(BLOCKER) == 2
    handler.gate.open()


@proves("S16 of a blocked loop", guard="TaskExecutor.hanging asks who blocks")
def test_without_the_question_who_blocks_others_pay(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Mutant: every handler that takes too long has failed, also one that waits for the loop."""
    monkeypatch.setattr(TaskExecutor, "hanging", Executor.hanging)
    _, handler = _filled(db), Handler()
    consumer = _consumer(db, handler)
    with running(consumer):
        wait_until(lambda: consumer.stats.timeouts == 1, "one is given up", 60)
        handler.gate.open()
    assert "handler failed at tests/stream partition 0 sequence 1, attempt 1" in caplog.text


@proves("S16 of a blocked loop")
def test_an_applications_loop_is_waited_for(db: ContractDatabase) -> None:
    """It cannot be replaced; when it goes on, what was cancelled late has not failed."""
    own, handler = _filled(db), Handler()
    retry(own, max_attempts=3)

    async def work() -> AsyncConsumer:
        stop = asyncio.Event()

        consumer = AsyncConsumer(
            db.url, SUBSCRIPTION, handler=handler, handler_seconds=LIMIT, idle_seconds=0.05,
            concurrency=4,
        )  # fmt: skip

        loop = asyncio.get_running_loop()

        def open_the_gate() -> None:
            wait_until(lambda: consumer.stats.timeouts == 1, "the one that blocks is given up", 60)
            handler.gate.open()
            wait_until(lambda: stored(own) == 4, "all are handled", 60)
            loop.call_soon_threadsafe(stop.set)

        opener = threading.Thread(target=open_the_gate)
        opener.start()
        await asyncio.wait_for(consumer.run(stop), 120)
        opener.join()
        return consumer

    consumer = asyncio.run(work())
    assert (consumer.stats.timeouts, consumer.stats.dead_letters, stored(own)) == (1, 0, 4)
