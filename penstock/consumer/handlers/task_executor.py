"""Handlers as tasks of an event loop: the caller's, or one in a separate thread."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from penstock import event_loops
from penstock.consumer.handlers.executors import B, Executor, Outcome, U, failed
from penstock.consumer.handlers.failures import HandlerTimedOut
from penstock.database.async_connections import connect_async
from penstock.errors import InvalidArgument, is_interruption

if TYPE_CHECKING:
    from penstock.database import Connection

log = logging.getLogger(__name__)

#: A handler in a blocked event loop cannot be cancelled.  It is given up after so long.
BLOCKED_LOOP_FACTOR = 2
#: How long to wait until an event loop ends.
CLOSE_SECONDS = 5.0


class _LoopWasBlocked(Exception):
    """A handler was cancelled long after its time, because another one blocked the event loop."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the event loop was blocked for {seconds:.1f} s: a handler calls what does not await"
        )


class TaskExecutor(Executor[U, B]):
    """Runs handlers as tasks of an event loop: the caller's, or one in a separate thread."""

    def __init__(
        self,
        *given: Any,
        url: str,
        application_name: str,
        handler_seconds: float | None,
        **options: Any,
    ) -> None:
        super().__init__(*given, **options)
        if handler_seconds is not None:
            self.overdue_seconds = handler_seconds * BLOCKED_LOOP_FACTOR
        self.loop: asyncio.AbstractEventLoop | None = None
        self._url = url
        self._application_name = application_name
        self._handler_seconds = handler_seconds
        self._own_thread: threading.Thread | None = None
        self._idle_connections: list[Any] = []
        self._tasks: dict[asyncio.Task[None], U] = {}
        self._stranded: list[U] = []
        # Asks the event loop whether it runs: when this was asked, the answer, and since when
        # it has answered.
        self._asked_at: float | None = None
        self._answered = threading.Event()
        self._runs_since: float | None = None

    @property
    def connection(self) -> Connection:
        raise InvalidArgument(
            "a handler that is a coroutine must not wait for the database in the event loop",
            hint="use `async with`, or `commit_async` on a connection of your own",
        )

    def use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the handlers on this event loop, not on one of its own."""
        self.loop = loop

    def _open(self) -> None:
        """Start an event loop where none was given."""
        self._context = contextvars.copy_context()
        if self.loop is None:
            self._open_loop()

    def _open_loop(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._own_thread = event_loops.start(self.loop, "penstock-handlers")

    def _close(self) -> None:
        """End the event loop if this executor started it."""
        if self.loop is None:
            return
        if self._own_thread is not None:
            self._leave_loop().join(CLOSE_SECONDS)
        elif not self.loop.is_closed():
            with contextlib.suppress(Exception):
                closing = _close(self._idle_connections)
                asyncio.run_coroutine_threadsafe(closing, self.loop).result(CLOSE_SECONDS)
        self.loop = None

    def _leave_loop(self) -> threading.Thread:
        """Have this executor's own event loop end, as soon as it runs.  Returns its thread."""
        assert self.loop is not None and self._own_thread is not None
        asyncio.run_coroutine_threadsafe(_wind_up(self._idle_connections), self.loop)
        left, self._own_thread, self._idle_connections = self._own_thread, None, []
        return left

    def hanging(self, overdue: list[U]) -> list[U]:
        """In a blocked event loop every handler waits: only the one that runs hangs."""
        assert self.loop is not None
        now = self._clock()
        if not overdue:
            self._asked_at = self._runs_since = None
            return []
        if self._asked_at is not None and self._answered.is_set():
            self._asked_at = None
            self._runs_since = now if self._runs_since is None else self._runs_since
        if self._asked_at is None:
            self._asked_at, self._answered = now, threading.Event()
            self.loop.call_soon_threadsafe(self._answered.set)
        if self._is_blocked(now):
            self._runs_since = None
            running = asyncio.current_task(self.loop)
            blocking = [unit for task, unit in list(self._tasks.items()) if task is running]
            return blocking or overdue  # it may be a task that a handler has made
        # The event loop runs, and the handler is still there: it refuses to be cancelled.
        return overdue if self._has_passed(self._runs_since, now) else []

    def _is_blocked(self, now: float) -> bool:
        return self._has_passed(self._asked_at, now) and not self._answered.is_set()

    def _has_passed(self, since: float | None, now: float) -> bool:
        assert self._handler_seconds is not None
        return since is not None and now - since > self._handler_seconds

    def abandon(self, unit: U) -> bool:
        """Leave a blocked event loop to the handler that blocks it.  Its other units strand."""
        if not super().abandon(unit):
            return False
        if self._is_blocked(self._clock()) and self._own_thread is not None:
            self._asked_at = None
            under_way = list(self.under_way)
            self._stranded = [each for each in under_way if Executor.abandon(self, each)]
            self._leave_loop()
            self._open_loop()
        return True

    def stranded(self) -> list[U]:
        """The units that were under way on an event loop that was left."""
        stranded, self._stranded = self._stranded, []
        return stranded

    def tell(self, callback: Callable[[Any], Any], said: Any) -> None:
        """Call the function in the event loop; await it where it is a coroutine."""

        async def call() -> None:
            answer = callback(said)
            if asyncio.iscoroutine(answer):
                await answer

        assert self.loop is not None
        asyncio.run_coroutine_threadsafe(call(), self.loop).result()

    @asynccontextmanager
    async def async_connection(self) -> AsyncIterator[Any]:
        """An asynchronous connection of the consumer, kept for the next unit."""
        idle = self._idle_connections  # of this event loop, which is left before the unit ends
        if idle:
            connection = idle.pop()
        else:
            connection = await connect_async(self._url, application_name=self._application_name)
        try:
            yield connection
        finally:
            if connection.closed or connection.broken:
                await connection.close()
            else:
                idle.append(connection)

    def _begin(self, unit: U) -> None:
        super()._begin(unit)
        unit.began = math.inf  # not before the event loop runs it

    def _start(self, unit: U) -> None:
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self._spawn, unit)

    def _spawn(self, unit: U) -> None:
        """Each unit has a task and a context of its own, and the event loop goes on in between."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._run(unit), context=self._context.copy())
        self._tasks[task] = unit
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task that was cancelled before it began has no outcome yet."""
        unit = self._tasks.pop(task)
        if task.cancelled() and unit.ended is None:
            self._post(self._cancelled(unit, self._deliver(unit, self)))

    async def _run(self, unit: U) -> None:
        if unit.abandoned:
            return
        unit.began = began = self._clock()
        outcome = await self._handled(unit)
        outcome.took = self._clock() - began
        following = self._post(outcome)
        if following is not None:
            self._spawn(following)

    async def _handled(self, unit: U) -> Outcome[U, B]:
        batch = self._deliver(unit, self)
        try:
            await self._handle_async(unit, batch)
            return Outcome(unit, batch)
        except _LoopWasBlocked as late:
            log.warning("%s", late)
            return Outcome(unit, batch)  # its events that are not done come again
        except asyncio.CancelledError:
            return self._cancelled(unit, batch)
        except BaseException as error:
            if is_interruption(error):
                raise
            return failed(unit, batch, error)

    def _cancelled(self, unit: U, batch: B) -> Outcome[U, B]:
        """The application cancelled it: the event comes again.  While it ends, that is no attempt.

        An event loop that ends cancels all its tasks.
        """
        if self._stopping():
            return Outcome(unit, batch)
        return Outcome(unit, batch, HandlerTimedOut("the handler was cancelled"))

    async def _handle_async(self, unit: U, batch: B) -> None:
        call = self.handling.call
        if self.handling.by_batch:
            await self._within_limit(call(batch))
            unit.done = len(unit.events)
            return
        until = unit.began + self._slice_seconds
        for event in unit.events:
            await self._within_limit(call(batch.each(event)))
            unit.done += 1
            unit.began = self._clock()
            if self._is_over(unit, until):
                break

    async def _within_limit(self, called: Any) -> None:
        if self._handler_seconds is None:
            await called
            return
        begun = time.monotonic()
        limit = asyncio.timeout(self._handler_seconds)
        try:
            async with limit:
                await called
        except TimeoutError as error:
            if not limit.expired():
                raise  # the handler's own time limit
            late = time.monotonic() - begun - self._handler_seconds
            if late > self._handler_seconds * (BLOCKED_LOOP_FACTOR - 1):
                raise _LoopWasBlocked(late) from error
            raise HandlerTimedOut(
                f"the handler was cancelled after {self._handler_seconds} s"
            ) from error


async def _wind_up(connections: list[Any]) -> None:
    """End the tasks of an event loop, and then the loop."""
    try:
        await event_loops.end_tasks(CLOSE_SECONDS)
        await _close(connections)
    finally:
        asyncio.get_running_loop().stop()


async def _close(connections: list[Any]) -> None:
    while connections:
        await connections.pop().close()
