"""A relay in a separate process, so that a test can kill it or stop it.

    python -m tests.relay.process [--textbook] [--crash before|after] URL SUBSCRIPTION SINK

``--blind`` keeps the Pulsar sink from looking at what Pulsar holds.  ``--crash`` ends the process
by SIGKILL at its third block: before the block is sent, or after it is stored and before its end is
committed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import threading

from ops.relay.block import Backoff
from ops.relay.lanes import AT_ONCE
from ops.relay.relay import Relay
from ops.sinks.address import configured_sink
from ops.sinks.base import Channel, RelayBlock, Sink
from ops.sinks.pulsar_channel import PulsarChannel
from tests.kit.sinks import InFront

_CRASHES_AT = 3


class CrashingSink(InFront):
    """A sink whose process dies at a chosen place."""

    def __init__(self, sink: Sink, where: str) -> None:
        super().__init__(sink)
        self._where = where
        self._numbers = itertools.count(1)  # blocks are sent by several threads

    def send_block(self, channel: Channel, block: RelayBlock) -> None:
        """As the sink, up to the third block."""
        number = next(self._numbers)
        if number == _CRASHES_AT and self._where == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        channel.send_block(block)
        if number == _CRASHES_AT:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Relay until the end of the process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--textbook", action="store_true")
    parser.add_argument("--crash", choices=["before", "after"])
    parser.add_argument("--blind", action="store_true")
    parser.add_argument("--block-events", type=int)
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    parser.add_argument("url")
    parser.add_argument("subscription")
    parser.add_argument("sink")
    given = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    if given.textbook:
        from tests.relay.textbook import textbook_consumer

        textbook_consumer(
            given.url, given.subscription, given.sink, given.block_events, crash=bool(given.crash)
        ).run(stop)
        os._exit(0)
    if given.blind:
        PulsarChannel._held = lambda *_: 0  # type: ignore[method-assign]
    sink = configured_sink(given.sink)
    if given.block_events:
        sink.max_block_events = given.block_events
    if given.crash:
        sink = CrashingSink(sink, given.crash)
    backoff = Backoff(base_seconds=0.1, max_seconds=1)
    Relay(
        given.url,
        given.subscription,
        sink,
        idle_seconds=0.05,
        backoff=backoff,
        at_once=given.at_once,
    ).run(stop)
    sink.close()


if __name__ == "__main__":
    main()
