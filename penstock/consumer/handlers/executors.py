"""What runs the handlers: the consumer's own thread, other threads, or tasks of an event loop.

In each case the consumer's thread hands over units and takes back outcomes.  Only that thread
touches the position of events that it did not hand over.  ``wake`` is set when an outcome has come.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from penstock.consumer.handlers.failures import HandlerTimedOut
from penstock.consumer.handlers.handler import Handling
from penstock.consumer.handlers.working import Connections
from penstock.database import sessions
from penstock.database.wake import Wake
from penstock.errors import InvalidArgument, is_interruption

if TYPE_CHECKING:
    import asyncio

    from penstock.database import Connection

log = logging.getLogger(__name__)

Clock = Callable[[], float]

#: How soon to look again at why a handler takes too long.
HANGING_LOOK_SECONDS = 0.05


class Handed(Protocol):
    """What an executor needs of a unit: of a stream's, or of a queue's."""

    done: int
    began: float
    #: When the handler was done with it, as far as it is.
    ended: float | None
    abandoned: bool

    @property
    def events(self) -> Sequence[Any]:
        """What the handler is called for."""


class Given(Protocol):
    """What an executor needs of what a handler is given."""

    disturbed: bool

    def each(self, event: Any) -> Any:
        """One event of it, as a handler gets it."""

    @property
    def cut_off(self) -> bool:
        """Whether the consumer's own connection is lost, and not one of the handler's."""

    def outlived_lease(self, error: BaseException) -> bool:
        """Whether it is lost because the transaction took too long."""


U = TypeVar("U", bound=Handed)
B = TypeVar("B", bound=Given)
U_co = TypeVar("U_co", bound=Handed, covariant=True)


class Supply(Protocol[U_co]):
    """Where a handler takes its next unit, so that it waits neither for a thread nor a database."""

    def after_one(self, outcome: Outcome[Any, Any], *, is_last: bool) -> tuple[U_co | None, bool]:
        """Count a unit that has ended.

        Returns the next one, if this was not the last, and whether the consumer has to look.
        """


@dataclass(slots=True)
class Outcome(Generic[U, B]):
    """What became of a unit.  The unit itself says how many of its events are done."""

    unit: U
    batch: B
    error: BaseException | None = None
    #: The connection that the consumer gave it is lost.
    cut_off: bool = False
    outlived: bool = False
    #: How long it was under way.
    took: float = 0.0

    @property
    def disturbed(self) -> bool:
        """Whether the database failed the handler, and the handler was within its time."""
        return self.batch.disturbed and not self.outlived


class Executor(ABC, Generic[U, B]):
    """Runs up to so many units at once."""

    def __init__(
        self,
        handling: Handling,
        count: int,
        *,
        deliver: Callable[[U, Connections], B],
        clock: Clock,
        slice_seconds: float,
        stopping: Callable[[], bool],
        handler_seconds: float | None = None,
        supply: Supply[U] | None = None,
    ) -> None:
        self.handling = handling
        self.count = count
        #: How long a unit may be under way until it is abandoned.
        self.overdue_seconds = handler_seconds
        self._mailbox: queue.SimpleQueue[Outcome[U, B]] = queue.SimpleQueue()
        self.under_way: list[U] = []
        self._deliver = deliver
        self._clock = clock
        self._slice_seconds = slice_seconds
        self._stopping = stopping
        self._supply = supply
        #: Held to end a unit and to abandon it, of which only the first counts.
        self._lock = threading.Lock()
        self._is_open = False

    @property
    def free(self) -> int:
        """How many more units can be taken."""
        return max(0, self.count - len(self.under_way))

    def submit(self, unit: U) -> None:
        """Handle a unit.  Its outcome comes into the mailbox."""
        self._begin(unit)
        self._start(unit)

    def _begin(self, unit: U) -> None:
        unit.began, unit.ended = self._clock(), None
        self.under_way.append(unit)

    def arrived(self) -> list[Outcome[U, B]]:
        """The outcomes that have come."""
        came: list[Outcome[U, B]] = []
        with contextlib.suppress(queue.Empty):
            while True:
                outcome = self._mailbox.get_nowait()
                if not outcome.unit.abandoned:
                    self.under_way.remove(outcome.unit)
                    came.append(outcome)
        return came

    def give_up_overdue(self) -> list[U]:
        """Abandon the units whose handlers hang, and return them.  No thread can be ended."""
        if self.overdue_seconds is None:
            return []
        latest = self._clock() - self.overdue_seconds
        overdue = [unit for unit in self.under_way if unit.began < latest]
        return [unit for unit in self.hanging(overdue) if self.abandon(unit)]

    def overdue_error(self) -> HandlerTimedOut:
        """What became of a unit that was abandoned."""
        return HandlerTimedOut(f"the handler is at it for more than {self.overdue_seconds} s")

    def next_limits(self, now: float) -> list[float]:
        """When to look at the units under way."""
        if self.overdue_seconds is None:
            return []
        limits = [unit.began + self.overdue_seconds for unit in self.under_way]
        return [each if each > now else now + HANGING_LOOK_SECONDS for each in limits]

    def wait(self, most_seconds: float) -> None:
        """Wait until an outcome has come, or something else wakes the consumer."""
        self.wake.wait(most_seconds)
        self.wake.clear()

    def hanging(self, overdue: list[U]) -> list[U]:
        """Of the units that take too long, those that cause it themselves."""
        return overdue

    def abandon(self, unit: U) -> bool:
        """Stop waiting for a unit.  Returns False when it has ended meanwhile."""
        with self._lock:
            if unit.abandoned or unit.ended is not None:
                return False
            unit.abandoned = True
            self.under_way.remove(unit)
            return True

    def stranded(self) -> list[U]:
        """Units that ended only because another one was abandoned."""
        return []

    wake: Wake

    @property
    @abstractmethod
    def connection(self) -> Connection:
        """The connection on which the present thread's handler may work."""

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Run handlers while the block lasts.  After it, nothing waits for units under way."""
        self.wake = Wake()
        self._open()
        self._is_open = True
        try:
            yield
        finally:
            with self._lock:
                self._is_open = False
            self._close()
            self.wake.close()

    def _open(self) -> None:
        """Begin."""

    def _close(self) -> None:
        """End."""

    def async_connection(self) -> contextlib.AbstractAsyncContextManager[Any]:
        """A connection for a coroutine."""
        raise InvalidArgument(
            "this consumer's handler is not async", hint="use `with`, not `async with`"
        )

    def use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the handlers on this event loop, where they are coroutines."""
        raise InvalidArgument("the handler is not async", hint="write it as `async def`")

    def tell(self, callback: Callable[[Any], Any], said: Any) -> None:
        """Call a function of the application, and wait for it."""
        callback(said)

    @abstractmethod
    def _start(self, unit: U) -> None: ...

    def _is_over(self, unit: U, until: float) -> bool:
        """Whether a unit ends here, and the rest of it comes again."""
        return unit.began >= until or unit.abandoned or self._stopping()

    def _post(self, outcome: Outcome[U, B]) -> U | None:
        """Put an outcome into the mailbox.  Returns the unit that the same handler begins next."""
        unit, following, has_to_look = outcome.unit, None, True
        with self._lock:
            if unit.abandoned:
                return None
            unit.ended = self._clock()
            if self._supply is not None:
                is_last = not self._is_open or self._stopping()
                following, has_to_look = self._supply.after_one(outcome, is_last=is_last)
            if following is not None:
                self._begin(following)
            self._mailbox.put(outcome)
        if has_to_look:
            self.wake.set()
        return following

    def _handle(self, unit: U) -> Outcome[U, B]:
        """Call the handler."""
        began = unit.began
        outcome = self._called(unit)
        outcome.took = self._clock() - began
        return outcome

    def _called(self, unit: U) -> Outcome[U, B]:
        batch = self._deliver(unit, self)
        call = self.handling.call
        try:
            if self.handling.by_batch:
                call(batch)
                unit.done = len(unit.events)
            else:
                until = unit.began + self._slice_seconds
                for event in unit.events:
                    call(batch.each(event))
                    unit.done += 1
                    unit.began = self._clock()
                    if unit.done < len(unit.events) and self._is_over(unit, until):
                        break
        except BaseException as error:
            # All are failures, SystemExit and an extension's panic too: an event that ended the
            # consumer would be tried again by the next one, and never be given up.
            if is_interruption(error):
                raise
            return failed(unit, batch, error)
        return Outcome(unit, batch)


class InlineExecutor(Executor[U, B]):
    """The consumer's own thread."""

    _connection: Connection | None = None

    @property
    def connection(self) -> Connection:
        assert self._connection is not None
        return self._connection

    def on(self, connection: Connection) -> None:
        """The consumer works on this connection now."""
        self._connection = connection

    def _start(self, unit: U) -> None:
        self._mailbox.put(self._handle(unit))


class ThreadExecutor(Executor[U, B]):
    """Threads, each with a connection that opens when a handler first asks for one."""

    def __init__(self, *given: Any, connect: Callable[[], Connection], **options: Any) -> None:
        super().__init__(*given, **options)
        self._connect = connect
        self._own = threading.local()
        self._tasks: queue.SimpleQueue[U | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    @property
    def connection(self) -> Connection:
        present: Connection | None = getattr(self._own, "connection", None)
        if present is None or sessions.of_connection(present).is_closed(present):
            present = self._own.connection = self._connect()
        return present

    def _open(self) -> None:
        """Start them."""
        for _ in range(self.count):
            self._add()

    def _close(self) -> None:
        """Tell the threads to end after what they have in hand."""
        for _ in self._threads:
            self._tasks.put(None)
        self._threads.clear()

    def abandon(self, unit: U) -> bool:
        """Start another thread in place of the one that hangs, which cannot be ended."""
        if not super().abandon(unit):
            return False
        self._add()
        return True

    def _add(self) -> None:
        thread = threading.Thread(target=self._run, name="penstock-handler", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _start(self, unit: U) -> None:
        self._tasks.put(unit)

    def _run(self) -> None:
        try:
            while (unit := self._tasks.get()) is not None:
                following: U | None = unit
                while following is not None:
                    unit = following
                    following = self._post(self._handle(unit))
                if unit.abandoned:
                    return  # its place was taken
        finally:
            connection = getattr(self._own, "connection", None)
            if connection is not None:
                connection.close()


def failed(unit: U, batch: B, error: BaseException) -> Outcome[U, B]:
    """What became of a unit whose handler raised."""
    cut_off = batch.cut_off
    return Outcome(unit, batch, error, cut_off, cut_off and batch.outlived_lease(error))
