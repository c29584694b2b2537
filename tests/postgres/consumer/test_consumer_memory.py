"""The memory of a consumer that reads ahead: `prefetch_bytes` limits it, however much waits."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock import Message, publish_bulk
from penstock.subscriptions import stream
from tests.consumers.process import ROOT
from tests.kit.log import Connection, drain, topic
from tests.kit.proof import proves
from tests.kit.stream import STREAM, SUBSCRIPTION

MIB = 1024 * 1024
SIZE = 10 * 1024

#: Handles batch by batch; the first one only when what is read ahead no longer grows.
_PROGRAM = """
import sys, threading, time
import psutil
import penstock

url, count, rows, size = sys.argv[1], *map(int, sys.argv[2:])
stop, left, most, base = threading.Event(), [count], [0], psutil.Process().memory_info().rss

def handle(batch):
    if left[0] == count:
        before = -1
        while before != consumer.assignment.rows():
            before = consumer.assignment.rows()
            time.sleep(0.5)
        print(before)
    most[0] = max(most[0], psutil.Process().memory_info().rss)
    left[0] -= len(batch)
    if left[0] == 0:
        stop.set()

consumer = penstock.Consumer(
    url, "tests", batch_handler=handle, prefetch_rows=rows, prefetch_bytes=size, idle_seconds=0.05
)
consumer.run(stop)
print(base // 2**20, most[0] // 2**20, consumer.stats.failures)
"""


def _consumed(connection: Connection, url: str, count: int, size: int) -> tuple[int, int, int]:
    """The most rows that were read ahead; resident MiB before, and at most."""
    topic(connection, 4, STREAM)
    payload = bytes(SIZE)
    for first in range(0, count, 10_000):
        rows = range(first, min(first + 10_000, count))
        with connection.transaction():
            publish_bulk(connection, (Message(STREAM, payload, partition=n % 4) for n in rows))
        drain(connection)
    stream.subscribe(connection, SUBSCRIPTION, [STREAM])
    answer = subprocess.run(
        [sys.executable, "-c", _PROGRAM, url, str(count), "1000000", str(size)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert answer[3] == "0"
    return int(answer[0]), int(answer[1]), int(answer[2])


@proves("R5")
def test_memory_is_bounded_by_bytes(connection: Connection, database_url: str) -> None:
    """The small form: 30 MiB of events, 8 MiB of them in memory."""
    ahead, base, most = _consumed(connection, database_url, 3_000, 8 * MIB)
    assert 300 < ahead <= 8 * MIB / SIZE
    assert most - base < 45


@proves("R5", how="the long form")
@pytest.mark.long
@pytest.mark.timeout(7_200)
def test_a_million_events_of_10_kib(connection: Connection, database_url: str) -> None:
    """With 64 MiB read ahead, less than 250 MiB are resident."""
    ahead, _, most = _consumed(connection, database_url, 1_000_000, 64 * MIB)
    assert ahead <= 64 * MIB / SIZE
    assert most < 250
