"""Sends single events of a queue to a sink, several at a time, each with a time limit.

A call that takes longer is told to end (`abort`). One that goes on all the same is left behind in
its thread: its event has failed, another thread takes its place, and what it returns later is not
looked at. Only so many are replaced at a time; a call that ends after all gives its place back.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ops.relay.threads import ABORT_SECONDS, MOST_LEFT, SideThreads, end_call
from ops.sinks.base import Channel, RelayBlock, Sink, SinkLease, SinkUnavailable
from penstock.subscriptions.queue import Delivery

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Sending:
    """One event on its way, and what became of it."""

    delivery: Delivery
    block: RelayBlock
    began: float
    error: BaseException | None = None
    channel: Channel | None = None
    aborted: float | None = None
    is_left: bool = False
    #: The call has returned: there is nothing to end, and others may have its channel.
    is_over: bool = False


@dataclass(slots=True)
class _Channels:
    """Open channels of each topic that nobody uses now."""

    idle: dict[str, list[Channel]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_closed: bool = False

    def take(self, topic: str) -> Channel | None:
        with self.lock:
            found = self.idle.get(topic)
            return found.pop() if found else None

    def give(self, topic: str, channel: Channel) -> None:
        with self.lock:
            if not self.is_closed:
                self.idle.setdefault(topic, []).append(channel)
                return
        _close(channel)

    def close(self) -> None:
        with self.lock:
            idle, self.idle, self.is_closed = self.idle, {}, True
        for each in (channel for channels in idle.values() for channel in channels):
            _close(each)


class QueueSender:
    """What is under way, and what is finished.  Its methods are called by one thread."""

    def __init__(
        self,
        sink: Sink,
        *,
        at_once: int,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sink = sink
        self._at_once = at_once
        self._seconds = seconds
        self._clock = clock
        #: Called from a thread when something is finished.
        self.wake: Callable[[], None] = lambda: None
        self._threads = SideThreads(at_once, "relay")
        self._channels = _Channels()
        self._busy: dict[int, Sending] = {}
        self._finished: queue.SimpleQueue[Sending] = queue.SimpleQueue()
        #: A call is ended, left behind or over: its own thread and the relay's decide one by one.
        self._lock = threading.Lock()
        #: How many calls are left behind and go on, and how many ever were.
        self.left = self.left_behind = 0

    @property
    def busy(self) -> int:
        """How many events are under way."""
        return len(self._busy)

    @property
    def free(self) -> int:
        """How many more can be."""
        return self._at_once - max(0, self.left - MOST_LEFT) - len(self._busy)

    def send(self, delivery: Delivery, block: RelayBlock, served: SinkLease) -> None:
        """Send one event in a thread."""
        one = Sending(delivery, block, self._clock())
        self._busy[id(one)] = one
        try:
            self._threads.give(lambda: self._run(one, served))
        except RuntimeError as error:  # the machine has no thread for it now
            one.error = SinkUnavailable(f"the relay cannot start a thread: {error}")
            self._finished.put(one)
            self.wake()

    def wait(self, seconds: float) -> None:
        """Wait until something is finished, but no longer than the next call may take."""
        limit = self.next_limit()
        if limit is not None:
            seconds = min(seconds, max(0.01, limit - self._clock()))
        try:
            self._finished.put(self._finished.get(timeout=max(0.0, seconds)))
        except queue.Empty:
            return

    def next_limit(self) -> float | None:
        """When a call has taken too long; None while there is none."""
        return min(map(self._limit, self._busy.values()), default=None)

    def _limit(self, one: Sending) -> float:
        if one.aborted is None:
            return one.began + self._seconds
        return one.aborted + ABORT_SECONDS

    def results(self) -> list[Sending]:
        """What is finished since this was asked last, also what takes too long."""
        found = self._collected()
        self._end_overdue()
        return found + self._collected()

    def _collected(self) -> list[Sending]:
        found = []
        while not self._finished.empty():
            one = self._finished.get()
            if self._busy.pop(id(one), None) is not None:
                found.append(one)
        return found

    def close(self) -> None:
        """Close every channel.  What is under way is left behind."""
        with self._lock:
            for one in self._busy.values():
                if not one.is_over:
                    one.is_left = True
                    self._count_left(1)
        self._busy.clear()
        self._channels.close()
        self._threads.end()

    def _run(self, one: Sending, served: SinkLease) -> None:
        channel: Channel | None = None
        error: BaseException | None = None
        try:
            channel = self._channels.take(served.topic) or self._sink.open(served)
            one.channel = channel
            if one.aborted is not None:  # before it was there
                raise SinkUnavailable("the relay has given the call up")
            channel.send_block(one.block)
        except BaseException as caught:  # it is handled where the result is looked at
            error = caught
        is_well = self._is_over(one, error)
        if channel is not None and is_well:
            self._channels.give(served.topic, channel)
        elif channel is not None:
            _close(channel)
        self._finished.put(one)
        self.wake()

    def _is_over(self, one: Sending, error: BaseException | None) -> bool:
        """Note that a call has returned.  Whether others may have its channel."""
        with self._lock:
            one.is_over = True
            if not one.is_left:
                one.error = error
                return error is None and one.aborted is None
            self._count_left(-1)
            return False

    def _end_overdue(self) -> None:
        now = self._clock()
        for one in list(self._busy.values()):
            if one.aborted is None and now - one.began >= self._seconds:
                self._abort(one)
            elif one.aborted is not None and now - one.aborted >= ABORT_SECONDS:
                self._leave(one)

    def _abort(self, one: Sending) -> None:
        with self._lock:
            if one.is_over or one.aborted is not None:
                return
            one.aborted = self._clock()
            channel = one.channel
        if channel is not None:
            try:
                threading.Thread(target=end_call, args=(channel,), daemon=True).start()
            except RuntimeError as error:  # the machine has no thread for it: at the next look
                log.warning("a call of %s cannot be ended now: %s", self._sink.name, error)
                one.aborted = None

    def _leave(self, one: Sending) -> None:
        with self._lock:
            if one.is_over:
                return
            one.is_left = True
            one.error = SinkUnavailable(
                f"a call has not ended in {self._seconds:g} s, nor when told to"
            )
            self._count_left(1)
        self.left_behind += 1
        log.error("a call of the sink %s does not end, and is left behind", self._sink.name)
        self._finished.put(one)

    def _count_left(self, more: int) -> None:
        self.left += more
        self._threads.replaced = min(self.left, MOST_LEFT)


def too_late(one: Sending, seconds: float) -> BaseException | None:
    """The error of a call, said as its time limit where that has ended it."""
    if one.error is not None and one.aborted is not None and not one.is_left:
        return SinkUnavailable(f"the sink did not take it within {seconds:g} s")
    return one.error


def _close(channel: Channel) -> None:
    try:
        channel.close()
    except BaseException:
        log.warning("a channel could not be closed", exc_info=True)
