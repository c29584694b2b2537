"""Sends single events of a queue to a sink, several at a time, each with a time limit.

A call that takes longer is told to end (`abort`). One that goes on all the same is left behind in
its thread: its event has failed, another thread takes its place, and what it returns later is not
looked at. Only so many are left behind; after that their threads are not replaced.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ops.relay.threads import SideThreads
from ops.sinks.base import Channel, RelayBlock, Sink, SinkLease, SinkUnavailable, abort_of
from penstock.subscriptions.queue import Delivery

log = logging.getLogger(__name__)

#: How long a call may go on that was told to end.
ABORT_SECONDS = 5.0
#: So many calls that do not end are replaced by a new thread.
MOST_LEFT = 32


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


@dataclass(slots=True)
class _Channels:
    """Open channels of each topic that nobody uses now."""

    idle: dict[str, list[Channel]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, topic: str) -> Channel | None:
        with self.lock:
            found = self.idle.get(topic)
            return found.pop() if found else None

    def give(self, topic: str, channel: Channel) -> None:
        with self.lock:
            self.idle.setdefault(topic, []).append(channel)

    def close(self) -> None:
        with self.lock:
            idle, self.idle = self.idle, {}
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
        self._threads = SideThreads(at_once, "relay")
        self._channels = _Channels()
        self._busy: dict[int, Sending] = {}
        self._finished: queue.SimpleQueue[Sending] = queue.SimpleQueue()
        #: How many calls did not end, and are left behind.
        self.left = 0

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

    def wait(self, seconds: float) -> None:
        """Wait until something is finished, but no longer than the next call may take."""
        limits = [each.began + self._seconds for each in self._busy.values()]
        if limits:
            seconds = min(seconds, max(0.01, min(limits) - self._clock()))
        try:
            self._finished.put(self._finished.get(timeout=max(0.0, seconds)))
        except queue.Empty:
            return

    def results(self) -> list[Sending]:
        """What is finished since this was asked last, also what takes too long."""
        self._end_overdue()
        found = []
        while not self._finished.empty():
            one = self._finished.get()
            if self._busy.pop(id(one), None) is not None:
                found.append(one)
        return found

    def abort(self) -> None:
        """Tell every call to end."""
        for one in self._busy.values():
            self._abort(one)

    def close(self) -> None:
        """Close every channel.  What is under way is left behind."""
        for one in self._busy.values():
            one.is_left = True
        self._busy.clear()
        self._channels.close()
        self._threads.end()

    def _run(self, one: Sending, served: SinkLease) -> None:
        channel: Channel | None = None
        try:
            channel = self._channels.take(served.topic) or self._sink.open(served)
            one.channel = channel
            if one.aborted is not None:  # before it was there
                raise SinkUnavailable("the relay has given the call up")
            channel.send_block(one.block)
        except BaseException as error:  # it is handled where the result is looked at
            one.error = error
        if channel is not None and one.error is None and one.aborted is None and not one.is_left:
            self._channels.give(served.topic, channel)
        elif channel is not None:
            _close(channel)
        self._finished.put(one)

    def _end_overdue(self) -> None:
        now = self._clock()
        for one in list(self._busy.values()):
            if one.aborted is None and now - one.began >= self._seconds:
                self._abort(one)
            elif one.aborted is not None and now - one.aborted >= ABORT_SECONDS:
                self._leave(one)

    def _abort(self, one: Sending) -> None:
        if one.aborted is None:
            one.aborted = self._clock()
            if one.channel is not None:
                threading.Thread(target=_end, args=(one.channel,), daemon=True).start()

    def _leave(self, one: Sending) -> None:
        one.is_left = True
        one.error = SinkUnavailable(
            f"a call has not ended in {self._seconds:g} s, nor when told to"
        )
        self.left += 1
        if self.left <= MOST_LEFT:
            self._threads.replace()
        log.error("a call of the sink %s does not end, and is left behind", self._sink.name)
        self._finished.put(one)


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


def _end(channel: Channel) -> None:
    try:
        abort_of(channel)()
    except BaseException:
        log.warning("a call could not be ended", exc_info=True)
