"""What a worker of a queue outlives: odd errors, verdicts that cannot be, rolled back calls."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pymysql
import pytest

from penstock import queue
from penstock.consumer.handlers.failures import HandlerFailed
from penstock.consumer.queue.delivery import QueueDelivery
from tests.kit.log import wait_until
from tests.kit.proof import proves
from tests.kit.queue import QUEUE
from tests.kit.queue_script import Script
from tests.kit.stream import running


class Odd(BaseException):
    """No Exception, as asyncio.CancelledError is none."""


@proves("a worker of a queue goes on")
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("kind", [Odd, SystemExit, asyncio.CancelledError, GeneratorExit])
def test_whatever_a_handler_raises_is_a_failure(kind: type[BaseException], is_async: bool) -> None:
    """Its event would be under way for ever.  Guard: Executor._called."""
    script = Script(2)

    def handle(delivery: QueueDelivery) -> None:
        if delivery.sequence == 1:
            raise kind

    async def handle_async(delivery: QueueDelivery) -> None:
        handle(delivery)

    script.use(handle_async if is_async else handle)
    with pytest.raises(HandlerFailed):
        script.consumer.run_until_idle()
    found = queue.statistics(script.own, QUEUE)
    assert (found.size, found.delayed) == (1, 1)


@proves("a worker of a queue goes on")
@pytest.mark.parametrize("wrong", [(-1,), (1e9,), (float("nan"),), ("soon",), (None, 5)])
def test_a_verdict_that_cannot_be_is_the_handlers_failure(wrong: Any) -> None:
    """And does not end the worker.  Guard: Verdict.__post_init__."""
    script = Script(2)
    script.use(lambda delivery: queue.again(*wrong))
    with pytest.raises(HandlerFailed, match="InvalidArgument"):
        script.consumer.run_until_idle()
    assert queue.statistics(script.own, QUEUE).delayed == 2


@proves("a worker of a queue goes on")
@pytest.mark.parametrize(
    "error",
    [
        psycopg.errors.DeadlockDetected(), psycopg.errors.QueryCanceled(),
        pymysql.err.OperationalError(1213, "Deadlock found"),
        pymysql.err.OperationalError(1205, "Lock wait timeout exceeded"),
    ],
)  # fmt: skip
def test_a_worker_outlives_a_call_that_was_rolled_back(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deadlock, or a wait that took too long.  Guard: goes_on_after."""
    script = Script(2, concurrency=1)
    script.open.set()
    real, told = queue.acknowledge, list[int]()

    def failing(connection: Any, name: str, receipts: Any, **options: Any) -> list[bool]:
        told.append(len(receipts))
        if len(told) == 1:
            raise error
        return real(connection, name, receipts, **options)

    monkeypatch.setattr(queue, "acknowledge", failing)
    with running(script.consumer):
        wait_until(lambda: not script.unfinished, "both are finished")
    assert (script.begun, script.consumer.stats.events) == (["1", "2"], 2)
