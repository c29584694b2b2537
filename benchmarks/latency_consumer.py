"""The consumer of the latency benchmark, a separate process.

python -m benchmarks.latency_consumer stream|queue|relay SUBSCRIPTION FILE [SINK]

FILE gets a line when it has joined, and then one for each event: its number and when its handler
was called, in nanoseconds of the machine's monotonic clock. For a relay that is when the sink has
stored its block.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from ops.relay.relay import Relay
from ops.sinks.address import open_sink
from ops.sinks.base import Channel, RelayBlock, Sink, SinkLease
from penstock.consumer.queue.consumer import QueueConsumer
from penstock.consumer.stream.consumer import Consumer
from penstock.records import Event

#: A usual worker has several.
QUEUE_HANDLERS = 16


def main() -> None:
    """Consume until SIGTERM."""
    kind, subscription, file, *sink = sys.argv[1:]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with Path(file).open("w", buffering=1) as out:

        def handle(event: Event) -> None:
            called = time.monotonic_ns()
            out.write(f"{event.payload.decode()} {called}\n")

        out.write("ready\n")
        if kind == "relay":
            with closing(open_sink(*sink)) as opened:
                Relay(None, subscription, _Told(opened, handle)).run(stop)
        elif kind == "stream":
            Consumer(None, subscription, handler=handle).run(stop)
        else:
            QueueConsumer(None, subscription, handler=handle, concurrency=QUEUE_HANDLERS).run(stop)


class _Told:
    """A sink that says when it has stored an event."""

    def __init__(self, sink: Sink, told: Callable[[Event], None]) -> None:
        self.name = sink.name
        self.max_block_events = sink.max_block_events
        self.max_block_bytes = sink.max_block_bytes
        self.preflight = sink.preflight
        self.close = sink.close
        self._sink = sink
        self._told = told

    def open(self, lease: SinkLease) -> Channel:
        """A channel that says so."""
        return _ToldChannel(self._sink.open(lease), self._told)


class _ToldChannel:
    def __init__(self, channel: Channel, told: Callable[[Event], None]) -> None:
        self.seen = channel.seen
        self.close = channel.close
        self.abort = channel.abort
        self._channel = channel
        self._told = told

    def send_block(self, block: RelayBlock) -> None:
        self._channel.send_block(block)
        for event in block.events:
            self._told(event)


if __name__ == "__main__":
    main()
