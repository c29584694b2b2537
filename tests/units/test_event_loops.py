"""An event loop with a thread of its own: nothing is under way in it when it ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import event_loops
from penstock.consumer.handlers import task_executor
from penstock.consumer.handlers.task_executor import TaskExecutor


async def _stop(seconds: float) -> None:
    await event_loops.end_tasks(seconds)
    asyncio.get_running_loop().stop()


def _ended(begun: list[str], seconds: float) -> set[asyncio.Task[None]]:
    """Tasks that begin others while they end, and a generator that was left.  What remained."""
    loop, at_work = asyncio.new_event_loop(), threading.Event()

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            begun.append("the generator has ended")

    async def work(name: str, following: str | None) -> None:
        begun.append(name)
        try:
            await asyncio.sleep(3600)
        finally:
            if following:
                left.append(asyncio.create_task(work(following, None)))

    async def begin() -> None:
        left.append(asyncio.create_task(work("first", "second")))
        kept.append(numbers())
        await anext(kept[0])
        loop.call_later(0, at_work.set)

    left: list[asyncio.Task[None]] = []
    kept: list[AsyncIterator[int]] = []
    thread = event_loops.start(loop, "test")
    asyncio.run_coroutine_threadsafe(begin(), loop)
    assert at_work.wait(20)
    asyncio.run_coroutine_threadsafe(_stop(seconds), loop)
    thread.join(20)
    assert loop.is_closed()
    return {each for each in left if not each.done()}


def test_a_task_that_is_begun_at_the_end_ends_too() -> None:
    begun: list[str] = []
    assert _ended(begun, 20) == set()
    assert begun == ["first", "second", "the generator has ended"]


def test_a_task_that_refuses_to_end_is_waited_for_no_longer() -> None:
    loop, begun = asyncio.new_event_loop(), threading.Event()

    async def refuse() -> None:
        for _ in range(1_000):
            begun.set()
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    loop.set_exception_handler(lambda *_: None)  # the task that is left is told to nobody
    thread = event_loops.start(loop, "test")
    asyncio.run_coroutine_threadsafe(refuse(), loop)
    assert begun.wait(20)
    asyncio.run_coroutine_threadsafe(_stop(0.05), loop)
    thread.join(20)
    assert loop.is_closed()


class _Connection:
    """What the executor asks of one."""

    closed = broken = False

    async def close(self) -> None:
        self.closed = True


def test_the_connection_of_a_handler_that_is_cancelled_at_the_end_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was kept for the next handler, and there was none.  Guard: idle, of its own loop."""
    opened, begun = _Connection(), threading.Event()

    async def connect(*_: Any, **__: Any) -> Any:
        return opened

    async def handle(batch: Any) -> None:
        kept = executor._idle_connections
        async with executor.async_connection():
            begun.set()
            try:
                await asyncio.sleep(3600)
            finally:
                while executor._idle_connections is kept:  # the loop is left before it ends
                    await asyncio.sleep(0.001)

    monkeypatch.setattr(task_executor, "connect_async", connect)
    executor: Any = TaskExecutor(
        SimpleNamespace(call=handle, by_batch=True), 1, url="", application_name="",
        handler_seconds=None, deliver=lambda unit, own: unit, clock=time.monotonic,
        slice_seconds=0.0, stopping=lambda: True,
    )  # fmt: skip
    with executor.at_work():
        executor.submit(SimpleNamespace(events=[1], done=0, began=0.0, ended=None, abandoned=False))
        assert begun.wait(20)
    assert opened.closed
