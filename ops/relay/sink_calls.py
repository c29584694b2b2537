"""Calls of a sink: each in a thread, and each ends for the relay, whatever the sink does.

The relay's own thread begins them, and takes what has become of them. A call may never end by
itself. One that has to end is told to (`abort`). One that goes on all the same is left behind in
its thread and counted: the relay goes on without it, nobody looks at what it returns, and another
thread takes its place. Only so many are replaced at a time. When it ends after all, it gives that
place back.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from ops.relay.threads import SideThreads
from ops.sinks.base import Channel, Sink, SinkLease, SinkUnavailable, abort_of
from ops.sinks.ends import SinkBehind

log = logging.getLogger(__name__)

T = TypeVar("T")

#: How long a call may go on that was told to end.
ABORT_SECONDS = 5.0
#: So many threads of calls that do not end are replaced at a time.
MOST_LEFT = 32

#: How often it is looked whether a call has to end.
_LOOK_SECONDS = 0.5


@dataclass(slots=True, eq=False)
class SinkCall(Generic[T]):
    """One call, and what has become of it.  ``item``: what the relay makes it for."""

    item: T
    served: SinkLease
    began: float
    #: What it goes over.  When it is over: what the next call can go over.
    channel: Channel | None = None
    error: BaseException | None = None
    #: When the sink was told to end it.  The channel is of no use after that.
    aborted_at: float | None = None
    #: It did not end all the same, and nobody looks at it any more.
    is_left: bool = False
    #: It has returned: there is nothing to end, and nothing to leave behind.
    is_over: bool = False
    #: It closes its channel: nothing of it can be ended, and `abort` is not for what closes.
    is_closing: bool = False

    @property
    def is_given_up(self) -> bool:
        """Whether the relay has not waited for its end."""
        return self.is_left or self.aborted_at is not None

    @property
    def leave_at(self) -> float | None:
        """When it is left behind, if it has not ended until then."""
        aborted_at = self.aborted_at  # once: another thread may set it back
        return None if aborted_at is None else aborted_at + ABORT_SECONDS

    def close(self) -> None:
        """Close its channel."""
        channel, self.channel = self.channel, None
        close_channel(channel, self.served.topic)


class SinkCalls(Generic[T]):
    """What is under way, and what is finished.  Its methods are called by one thread.

    ``must_end`` says whether a call has to end; a thread asks it too, so that calls end also while
    the relay waits for its database.
    """

    def __init__(
        self,
        sink: Sink,
        at_once: int,
        must_end: Callable[[SinkCall[T]], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        #: Called from a thread when something is finished.
        self.wake: Callable[[], None] = lambda: None
        #: How many calls are left behind and go on, and how many ever were.
        self.left = self.left_behind = 0
        self._sink = sink
        self._at_once = at_once
        self._must_end = must_end
        self._clock = clock
        self._threads: SideThreads | None = None
        self._closed = threading.Event()
        self._busy: dict[SinkCall[T], None] = {}
        self._finished: queue.SimpleQueue[SinkCall[T]] = queue.SimpleQueue()
        #: A call is told to end, left behind or over: its own thread and others decide one by one.
        self._lock = threading.Lock()

    @property
    def busy(self) -> int:
        """How many calls are under way."""
        return len(self._busy)

    @property
    def free(self) -> int:
        """How many more can be begun."""
        return self._at_once - max(0, self.left - MOST_LEFT) - len(self._busy)

    def wait(self, seconds: float | None = None) -> None:
        """Wait until something is finished."""
        try:
            self._finished.put(self._finished.get(timeout=seconds))
        except queue.Empty:
            return

    def begin(self, call: SinkCall[T], work: Callable[[SinkCall[T]], object]) -> None:
        """Make a call in a thread."""
        self._busy[call] = None
        try:
            self._side_threads().give(partial(self._run, call, work))
        except RuntimeError as error:  # the machine has no thread for it now
            self._end(call, SinkUnavailable(f"the relay cannot start a thread: {error}"))

    def channel(self, call: SinkCall[T]) -> Channel:
        """What a call goes over, in its thread."""
        if call.channel is None:
            call.channel = self._sink.open(call.served)
        if call.is_given_up:  # before it was there
            raise SinkUnavailable("the relay has given the call up")
        return call.channel

    def over(self) -> list[SinkCall[T]]:
        """What is finished since this was asked last, and what is left behind now."""
        found = self._taken()  # first: what has ended is not too late
        self._look()
        return found + self._leave(filter(self._is_overdue, list(self._busy)))

    def all_over(self, seconds: float) -> Iterator[SinkCall[T]]:
        """What is finished from now on, until nothing is under way.

        After ``seconds`` calls are told to end.  Those that do not are left behind.
        """
        aborted_at = self._clock() + seconds
        left_at = aborted_at + ABORT_SECONDS
        while self._busy:
            now = self._clock()
            if now >= aborted_at:
                self._abort(list(self._busy))
            if now < left_at:
                self.wait(max(0.0, (aborted_at if now < aborted_at else left_at) - now))
            yield from self.over()
            if now >= left_at:
                yield from self._leave(list(self._busy))

    def end_calls(self) -> None:
        """End the threads.  What is under way is told to end, and nobody waits for it for long.

        It was given no time, so it does not count as a call that does not end.
        """
        self._abort(list(self._busy))
        self._closed.set()
        if self._threads is not None:
            self._threads.end()
            self._threads = None
        for call in list(self._busy):
            if self._let_go(call):
                del self._busy[call]
            else:  # it is over: nobody has taken its channel from it
                call.close()
        self.wake = lambda: None

    def _side_threads(self) -> SideThreads:
        if self._threads is None:
            closed = self._closed = threading.Event()
            threads = SideThreads(self._at_once + 1, "relay")
            threads.give(partial(self._look_on, closed))
            self._threads = threads
        return self._threads

    def _look_on(self, closed: threading.Event) -> None:
        while not closed.wait(_LOOK_SECONDS):
            self._look()
            if any(map(self._is_overdue, list(self._busy))):
                self.wake()

    def _look(self) -> None:
        self._abort(filter(self._must_end, list(self._busy)))

    def _is_overdue(self, call: SinkCall[T]) -> bool:
        leave_at = call.leave_at
        return leave_at is not None and self._clock() >= leave_at

    def _taken(self) -> list[SinkCall[T]]:
        found = []
        while not self._finished.empty():
            call = self._finished.get()
            if call in self._busy:  # else it was left behind
                del self._busy[call]
                found.append(call)
        return found

    def _run(self, call: SinkCall[T], work: Callable[[SinkCall[T]], object]) -> None:
        error: BaseException | None = None
        try:
            work(call)
        except BaseException as caught:  # it is handled where the call is looked at
            error = caught
        self._end(call, error)

    def _end(self, call: SinkCall[T], error: BaseException | None) -> None:
        """A call has returned.  Its channel goes on only if nothing has spoiled it."""
        # A sink that is only behind goes on over the same channel when it has what it lacks.
        if call.is_given_up or not (error is None or isinstance(error, SinkBehind)):
            call.close()  # it may take as long as the call, so it is a part of it
        spoiled: Channel | None = None
        with self._lock:
            call.is_over = True
            if call.is_left:
                self._count_left(-1)
            else:
                call.error = error
            if call.is_given_up:  # meanwhile
                spoiled, call.channel = call.channel, None
        self._finished.put(call)
        close_channel(spoiled, call.served.topic)
        self.wake()

    def _abort(self, calls: Iterable[SinkCall[T]]) -> None:
        """Tell the sink to end them.  Each in a thread: nobody waits for that."""
        for call in calls:
            with self._lock:
                if call.is_over or call.is_given_up:
                    continue
                # Before the thread runs: the call may return at once.
                call.aborted_at = self._clock()
                channel = None if call.is_closing else call.channel
            if channel is None:
                continue
            try:
                threading.Thread(target=_end_call, args=(channel,), daemon=True).start()
            except RuntimeError as error:  # the machine has no thread for it: at the next look
                log.warning("a call of %s cannot be ended now: %s", self._sink.name, error)
                with self._lock:
                    call.aborted_at = None

    def _leave(self, calls: Iterable[SinkCall[T]]) -> list[SinkCall[T]]:
        """Go on without calls that do not end."""
        left = []
        for call in calls:
            if not self._let_go(call):
                continue
            self.left_behind += 1
            log.error(
                "%s partition %s: a call of the sink %s does not end, and is left behind",
                call.served.topic, call.served.partition, self._sink.name,
            )  # fmt: skip
            del self._busy[call]
            left.append(call)
        return left

    def _let_go(self, call: SinkCall[T]) -> bool:
        """Leave it behind.  False when it is over: then its channel is the caller's again."""
        with self._lock:
            if call.is_over:
                return False
            call.is_left = True
            call.error = SinkUnavailable("a call of the sink does not end")
            self._count_left(1)
        return True

    def _count_left(self, more: int) -> None:
        self.left += more
        if self._threads is not None:
            self._threads.replaced = min(self.left, MOST_LEFT)


def close_channel(channel: Channel | None, topic: str) -> None:
    """Close it.  What it does not give back ends with the process."""
    if channel is None:
        return
    try:
        channel.close()
    except BaseException:
        log.warning("a channel of %s could not be closed", topic, exc_info=True)


def _end_call(channel: Channel) -> None:
    try:
        abort_of(channel)()
    except BaseException:
        log.warning("a call of a sink could not be ended", exc_info=True)
