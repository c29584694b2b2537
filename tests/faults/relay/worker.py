"""A relay in a process of its own, which the attack kills and pauses.

python -m tests.faults.relay.worker [--point NAME:COUNT] [--textbook] [--begun FILE]
    [--block-events N] URL SUBSCRIPTION SINK
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from contextlib import closing
from pathlib import Path

from ops.relay.block import Backoff
from ops.relay.relay import Relay
from ops.sinks.address import configured_sink
from ops.sinks.base import Channel, RelayBlock, Sink
from ops.sinks.routed import routing_of
from tests.faults.relay.points import Points, put_into
from tests.kit.sinks import InFront

BACKOFF = Backoff(base_seconds=0.1, max_seconds=0.5)


class Noting(InFront):
    """Writes down each block that it begins to send: its partition, first and last sequence."""

    def __init__(self, sink: Sink, path: Path) -> None:
        super().__init__(sink)
        self.routing = routing_of(sink)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def send_block(self, channel: Channel, block: RelayBlock) -> None:
        """One write for each, so that those of other processes stay whole."""
        line = f"{block.partition} {block.first_sequence} {block.last_sequence}\n"
        os.write(self._file, line.encode())
        super().send_block(channel, block)


def main() -> None:
    """Relay until the end of the process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--point")
    parser.add_argument("--begun", type=Path)
    parser.add_argument("--textbook", action="store_true")
    parser.add_argument("--block-events", type=int, default=500)
    parser.add_argument("url")
    parser.add_argument("subscription")
    parser.add_argument("sink")
    given = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    if given.textbook:
        from tests.faults.relay.textbook import textbook_consumer

        textbook_consumer(given.url, given.subscription, given.sink, given.block_events).run(stop)
        os._exit(0)
    if given.point:
        name, _, count = given.point.partition(":")
        put_into(Points(name, int(count)), given.sink.partition(":")[0].partition("+")[0])
    sink = configured_sink(given.sink)
    if given.begun:
        sink = Noting(sink, given.begun)
    with closing(sink):
        sink.max_block_events = given.block_events
        relay = Relay(given.url, given.subscription, sink, idle_seconds=0.05, backoff=BACKOFF)
        relay.run(stop)


if __name__ == "__main__":
    main()
