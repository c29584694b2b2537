"""Sends single events of a queue to a sink, several at a time, each with a time limit.

A call that takes longer has failed, and has to end (`sink_calls`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ops.relay.sink_calls import SinkCall, SinkCalls, close_channel
from ops.sinks.base import Channel, RelayBlock, Sink, SinkLease, SinkUnavailable
from penstock.subscriptions.queue import Delivery

#: One event on its way, and what became of it.
Sending = SinkCall[Delivery]


class QueueSender(SinkCalls[Delivery]):
    """The events on their way.  Each goes over a channel of its topic that no other uses now."""

    def __init__(
        self,
        sink: Sink,
        *,
        at_once: int,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(sink, at_once, lambda one: clock() - one.began >= seconds, clock)
        self._seconds = seconds
        #: Open channels of each topic that nobody uses now.
        self._idle: dict[str, list[Channel]] = {}

    def send(self, delivery: Delivery, block: RelayBlock, served: SinkLease) -> None:
        """Send one event in a thread."""
        idle = self._idle.get(served.topic)
        channel = idle.pop() if idle else None
        one = SinkCall(delivery, served, self._clock(), channel)
        self.begin(one, lambda call: self.channel(call).send_block(block))

    def wait(self, seconds: float | None = None) -> None:
        """Wait until something is finished, but no longer than the next call may take."""
        limit = self.next_limit()
        if limit is not None:
            left = max(0.01, limit - self._clock())
            seconds = left if seconds is None else min(seconds, left)
        super().wait(seconds)

    def next_limit(self) -> float | None:
        """When a call has taken too long; None while there is none."""
        return min(map(self._limit, self._busy), default=None)

    def _limit(self, one: Sending) -> float:
        leave_at = one.leave_at
        return one.began + self._seconds if leave_at is None else leave_at

    def results(self) -> list[Sending]:
        """What is finished since this was asked last, also what takes too long."""
        found = self.over()
        for one in found:
            if one.channel is not None:
                self._idle.setdefault(one.served.topic, []).append(one.channel)
            if one.error is not None and one.is_given_up:
                text = f"the sink did not take it within {self._seconds:g} s"
                text += ", and does not end the call" if one.is_left else ""
                one.error = SinkUnavailable(text)
        return found

    def close(self) -> None:
        """Close every channel.  What is under way is told to end, and left."""
        self.end_calls()
        while self._idle:
            topic, channels = self._idle.popitem()
            for each in channels:
                close_channel(each, topic)
