"""Who handles: the consumer's own thread, threads of their own, or tasks of an event loop.

Whoever it is, the consumer's thread hands over units and takes back outcomes; only it touches the
position of what it did not hand over.  ``wake`` is set when an outcome has come.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock import database
from penstock.delivery import Batch, Delivery, HandlerTimedOut
from penstock.dialects import work
from penstock.errors import InvalidArgument
from penstock.handling import Handling
from penstock.in_hand import Unit
from penstock.wake import Wake

if TYPE_CHECKING:
    from penstock.database import Connection

log = logging.getLogger(__name__)

Clock = Callable[[], float]


@dataclass(slots=True)
class Outcome:
    """What became of a unit; how many of its events are done stands in the unit."""

    unit: Unit
    batch: Batch
    error: BaseException | None = None
    #: The connection that it had of the consumer is gone.
    cut_off: bool = False
    outlived: bool = False


class Hands(ABC):
    """So many units at once."""

    def __init__(
        self,
        handling: Handling,
        count: int,
        *,
        deliver: Callable[[Unit], Batch],
        clock: Clock,
        slice_seconds: float,
    ) -> None:
        self.handling = handling
        self.count = count
        self._mailbox: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self.under_way: list[Unit] = []
        self._deliver = deliver
        self._clock = clock
        self._slice_seconds = slice_seconds

    @property
    def free(self) -> int:
        """How many more units can be taken."""
        return self.count - len(self.under_way)

    def submit(self, unit: Unit) -> None:
        """Handle a unit; the outcome comes into the mailbox."""
        unit.began = self._clock()
        self.under_way.append(unit)
        self._start(unit)

    def arrived(self) -> list[Outcome]:
        """What has come."""
        came: list[Outcome] = []
        with contextlib.suppress(queue.Empty):
            while True:
                outcome = self._mailbox.get_nowait()
                if not outcome.unit.abandoned:
                    self.under_way.remove(outcome.unit)
                    came.append(outcome)
        return came

    def abandon(self, unit: Unit) -> bool:
        """Wait no longer for a unit; False when it has ended meanwhile."""
        unit.abandoned = True
        self.under_way.remove(unit)
        return True

    wake: Wake

    @property
    @abstractmethod
    def connection(self) -> Connection:
        """The connection on which the present thread's handler may work."""

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """While the block lasts; what is under way behind it is waited for no longer."""
        self.wake = Wake()
        self._open()
        try:
            yield
        finally:
            self._close()
            self.wake.close()

    def _open(self) -> None:  # noqa: B027 - there may be nothing to begin
        """Begin."""

    def _close(self) -> None:  # noqa: B027 - nor to end
        """End."""

    def async_connection(self) -> contextlib.AbstractAsyncContextManager[Any]:
        """A connection for a coroutine."""
        raise InvalidArgument(
            "this consumer's handler is not async", hint="use `with`, not `async with`"
        )

    def tell(self, callback: Callable[[Any], Any], said: Any) -> None:
        """Call a function of the application, and wait for it."""
        callback(said)

    @abstractmethod
    def _start(self, unit: Unit) -> None: ...

    def _post(self, outcome: Outcome) -> None:
        self._mailbox.put(outcome)
        self.wake.set()

    def _handle(self, unit: Unit) -> Outcome:
        batch = self._deliver(unit)
        call = self.handling.call
        try:
            if self.handling.by_batch:
                call(batch)
                unit.done = len(unit.events)
            else:
                until = unit.began + self._slice_seconds
                for event in unit.events:
                    call(Delivery.of(event, batch))
                    unit.done += 1
                    unit.began = self._clock()
                    if unit.began >= until or unit.abandoned:
                        break
        except (Exception, SystemExit) as error:  # who leaves so has not handled it
            return _failed(unit, batch, error)
        return Outcome(unit, batch)


class Inline(Hands):
    """The consumer's own thread."""

    _connection: Connection | None = None

    @property
    def connection(self) -> Connection:
        assert self._connection is not None
        return self._connection

    def on(self, connection: Connection) -> None:
        """The consumer works on this connection now."""
        self._connection = connection

    def _start(self, unit: Unit) -> None:
        self._mailbox.put(self._handle(unit))


class Threads(Hands):
    """Threads with connections of their own, opened when a handler first asks for one."""

    def __init__(self, *given: Any, connect: Callable[[], Connection], **options: Any) -> None:
        super().__init__(*given, **options)
        self._connect = connect
        self._own = threading.local()
        self._tasks: queue.SimpleQueue[Unit | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    @property
    def connection(self) -> Connection:
        present: Connection | None = getattr(self._own, "connection", None)
        if present is None or work.of_connection(present).is_closed(present):
            present = self._own.connection = self._connect()
        return present

    def _open(self) -> None:
        """Start them."""
        for _ in range(self.count):
            self._add()

    def _close(self) -> None:
        """They end when what they have in hand is done."""
        for _ in self._threads:
            self._tasks.put(None)
        self._threads.clear()

    def abandon(self, unit: Unit) -> bool:
        """Another thread takes the place of the one that hangs, which cannot be ended."""
        with self._lock:
            if unit.abandoned:
                return False
            super().abandon(unit)
        self._add()
        return True

    def _add(self) -> None:
        thread = threading.Thread(target=self._run, name="penstock-handler", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _start(self, unit: Unit) -> None:
        self._tasks.put(unit)

    def _run(self) -> None:
        try:
            while (unit := self._tasks.get()) is not None:
                outcome = self._handle(unit)
                with self._lock:
                    if unit.abandoned:
                        return  # its place was taken
                    self._post(outcome)
        finally:
            connection = getattr(self._own, "connection", None)
            if connection is not None:
                connection.close()


class Tasks(Hands):
    """Tasks of an event loop: the caller's, or one in a thread of its own."""

    def __init__(
        self,
        *given: Any,
        url: str,
        application_name: str,
        handler_seconds: float | None,
        **options: Any,
    ) -> None:
        super().__init__(*given, **options)
        self.loop: asyncio.AbstractEventLoop | None = None
        self._url = url
        self._application_name = application_name
        self._handler_seconds = handler_seconds
        self._own_thread: threading.Thread | None = None
        self._idle_connections: list[Any] = []

    @property
    def connection(self) -> Connection:
        raise InvalidArgument(
            "a handler that is a coroutine must not wait for the database in the event loop",
            hint="use `async with`, or `commit_async` on a connection of your own",
        )

    def _open(self) -> None:
        """Start a loop where none was given."""
        if self.loop is not None:
            return
        self.loop = asyncio.new_event_loop()
        self._own_thread = threading.Thread(
            target=self.loop.run_forever, name="penstock-handlers", daemon=True
        )
        self._own_thread.start()

    def _close(self) -> None:
        """End the loop if it is an own one."""
        if self.loop is None:
            return
        if not self.loop.is_closed():
            with contextlib.suppress(Exception):
                asyncio.run_coroutine_threadsafe(self._close_connections(), self.loop).result(5)
        if self._own_thread is not None:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._own_thread.join()
            self.loop.close()
            self._own_thread = None
        self.loop = None

    def tell(self, callback: Callable[[Any], Any], said: Any) -> None:
        """In the event loop, as a coroutine where it is one."""

        async def call() -> None:
            answer = callback(said)
            if asyncio.iscoroutine(answer):
                await answer

        assert self.loop is not None
        asyncio.run_coroutine_threadsafe(call(), self.loop).result()

    @asynccontextmanager
    async def async_connection(self) -> AsyncIterator[Any]:
        """A psycopg.AsyncConnection of the consumer's, kept for the next one."""
        if self._idle_connections:
            connection = self._idle_connections.pop()
        else:
            connection = await database.connect_async(
                self._url, application_name=self._application_name
            )
        try:
            yield connection
        finally:
            if connection.closed or connection.broken:
                await connection.close()
            else:
                self._idle_connections.append(connection)

    def _start(self, unit: Unit) -> None:
        assert self.loop is not None
        asyncio.run_coroutine_threadsafe(self._run(unit), self.loop)

    async def _run(self, unit: Unit) -> None:
        batch = self._deliver(unit)
        try:
            await self._handle_async(unit, batch)
            outcome = Outcome(unit, batch)
        except (Exception, SystemExit) as error:
            outcome = _failed(unit, batch, error)
        except asyncio.CancelledError:
            # The application has cancelled it: the event comes again.
            outcome = Outcome(unit, batch, HandlerTimedOut("the handler was cancelled"))
        self._post(outcome)

    async def _handle_async(self, unit: Unit, batch: Batch) -> None:
        call = self.handling.call
        if self.handling.by_batch:
            await self._within_limit(call(batch))
            unit.done = len(unit.events)
            return
        until = unit.began + self._slice_seconds
        for event in unit.events:
            await self._within_limit(call(Delivery.of(event, batch)))
            unit.done += 1
            unit.began = self._clock()
            if unit.began >= until or unit.abandoned:
                break

    async def _within_limit(self, called: Any) -> None:
        if self._handler_seconds is None:
            await called
            return
        begun = time.monotonic()
        try:
            await asyncio.wait_for(called, self._handler_seconds)
        except TimeoutError as error:
            if time.monotonic() - begun < self._handler_seconds:
                raise  # a time limit of the handler's own
            raise HandlerTimedOut(
                f"the handler was cancelled after {self._handler_seconds} s"
            ) from error

    async def _close_connections(self) -> None:
        while self._idle_connections:
            await self._idle_connections.pop().close()


def _failed(unit: Unit, batch: Batch, error: BaseException) -> Outcome:
    cut_off = batch.cut_off
    return Outcome(unit, batch, error, cut_off, cut_off and batch.outlived_lease(error))
