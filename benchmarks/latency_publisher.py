"""The publisher of the latency benchmark, a separate process.

python -m benchmarks.latency_publisher TOPIC FILE hot EVENTS COMMITS_A_SECOND EVENTS_A_COMMIT
python -m benchmarks.latency_publisher TOPIC FILE cold EVENTS IDLE_SECONDS
python -m benchmarks.latency_publisher TOPIC FILE woken EVENTS IDLE_SECONDS

``woken`` is ``cold`` with a waker.
FILE gets, for every event in order, when the answer to its COMMIT came: nanoseconds of the
machine's monotonic clock.  The payload of an event is its number.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from penstock import database
from penstock.publishing.publish import publish, publish_batch
from penstock.publishing.waker import Waker
from penstock.records import Message

#: Between two events of cold partitions: the daemon is idle by then and not in step with us.
COLD_PAUSE_SECONDS = (0.5, 2.0)


def main() -> None:
    """Publish at the given pace."""
    topic, file, kind, *rest = sys.argv[1:]
    with database.connect() as connection:
        if kind == "hot":
            count, commits, each = map(int, rest)
            committed = _hot(connection, topic, count, 1 / commits, each)
        else:
            waker = Waker() if kind == "woken" else None
            committed = _cold(connection, topic, int(rest[0]), float(rest[1]), waker)
    Path(file).write_text("\n".join(map(str, committed)) + "\n")


def _hot(
    connection: database.Connection, topic: str, count: int, pause: float, each: int
) -> list[int]:
    """Publish this many events at each beat.  A late beat is followed at once; none is left out."""
    committed: list[int] = []
    due = time.monotonic()
    while len(committed) < count:
        first = len(committed)
        batch = [Message(topic, str(number).encode()) for number in range(first, first + each)]
        publish_batch(connection, batch)
        committed += [time.monotonic_ns()] * each
        due += pause
        time.sleep(max(0.0, due - time.monotonic()))
    return committed


def _cold(
    connection: database.Connection, topic: str, count: int, idle: float, waker: Waker | None
) -> list[int]:
    """Publish one event to each partition, after all of them were idle for this long."""
    time.sleep(idle)
    committed = []
    for number in range(count):
        publish(connection, topic, str(number).encode(), partition=number)
        committed.append(time.monotonic_ns())
        if waker is not None:
            waker.wake()
        time.sleep(random.uniform(*COLD_PAUSE_SECONDS))
    return committed


if __name__ == "__main__":
    main()
