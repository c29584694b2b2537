"""A relay in a process of its own, which the attack kills and pauses.

python -m tests.faults.relay.worker [--point NAME:COUNT] [--textbook] URL SUBSCRIPTION SINK
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from contextlib import closing

from ops.relay.block import Backoff
from ops.relay.relay import Relay
from ops.sinks.address import open_sink
from tests.faults.relay.points import Points, put_into

BACKOFF = Backoff(base_seconds=0.1, max_seconds=0.5)


def main() -> None:
    """Relay until the end of the process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--point")
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
    with closing(open_sink(given.sink)) as sink:
        sink.max_block_events = given.block_events
        relay = Relay(given.url, given.subscription, sink, idle_seconds=0.05, backoff=BACKOFF)
        relay.run(stop)


if __name__ == "__main__":
    main()
