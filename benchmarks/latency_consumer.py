"""The consumer of the latency benchmark, a separate process.

python -m benchmarks.latency_consumer stream|queue SUBSCRIPTION FILE

FILE gets a line when it has joined, and then one for each event: its number and when its handler
was called, in nanoseconds of the machine's monotonic clock.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

from penstock.consumer.queue.consumer import QueueConsumer
from penstock.consumer.stream.consumer import Consumer
from penstock.records import Event

#: A usual worker has several.
QUEUE_HANDLERS = 16


def main() -> None:
    """Consume until SIGTERM."""
    kind, subscription, file = sys.argv[1:]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with Path(file).open("w", buffering=1) as out:

        def handle(event: Event) -> None:
            called = time.monotonic_ns()
            out.write(f"{event.payload.decode()} {called}\n")

        out.write("ready\n")
        if kind == "stream":
            Consumer(None, subscription, handler=handle).run(stop)
        else:
            QueueConsumer(None, subscription, handler=handle, concurrency=QUEUE_HANDLERS).run(stop)


if __name__ == "__main__":
    main()
