"""A relay as a worker of the daemon; its other workers are those of penstock."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from ops.relay.queue_relay import QueueRelay
from ops.relay.relay import Relay
from ops.sinks.base import Channel, Sink, SinkLease, abort_of
from ops.sinks.routed import routing_of
from penstock.consumer.running.worker import ConsumerWorker
from penstock.leases.loop import LoopStats


class RelayWorker(ConsumerWorker):
    """A relay that opens its own sink at every start.  ``timed`` measures the sink's blocks."""

    prefix = "relayed"

    def __init__(
        self,
        name: str,
        make: Callable[[Sink], Relay | QueueRelay],
        open_sink: Callable[[], Sink],
        timed: Callable[[str, Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        super().__init__(name, lambda: make(self._sink))
        self._open_sink = open_sink
        self._timed = timed
        self._sink: Sink

    def counted(self, stats: LoopStats) -> dict[str, float]:
        """Also what rules have left out, and what became dead letters."""
        return super().counted(stats) | {
            "relayed_left_out": stats.filtered,
            "relayed_dead_letters": stats.dead_letters,
        }

    def run(self, stop: threading.Event) -> None:
        """Relay until told to stop."""
        self._sink = _TimedSink(self._open_sink(), functools.partial(self._timed, self.name))
        try:
            super().run(stop)
        finally:
            self._sink.close()


class _TimedSink:
    """A sink whose blocks are measured."""

    def __init__(self, sink: Sink, timed: Callable[[Callable[..., Any]], Callable[..., Any]]):
        self.name = sink.name
        self.any_order = getattr(sink, "any_order", False)
        self.max_block_events = sink.max_block_events
        self.max_block_bytes = sink.max_block_bytes
        self.preflight = sink.preflight
        self.close = sink.close
        self.routing = routing_of(sink)
        self._sink = sink
        self._timed = timed

    def open(self, lease: SinkLease) -> Channel:
        """A channel whose blocks are measured."""
        channel = self._sink.open(lease)
        return _TimedChannel(channel, self._timed(channel.send_block))


class _TimedChannel:
    """A channel with another ``send_block``."""

    def __init__(self, channel: Channel, send_block: Callable[..., Any]) -> None:
        self.seen = channel.seen
        self.close = channel.close
        self.abort = abort_of(channel)
        self.send_block = send_block
