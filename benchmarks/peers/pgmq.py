"""pgmq: its SQL functions, called by the same client and driver as those of Penstock."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

from benchmarks.bench_database import BenchDatabase
from benchmarks.events import CONTENT_TYPE, TYPE
from benchmarks.measure import batches
from benchmarks.peers.install import pgmq_sql
from benchmarks.peers.protocol import BATCH_SIZE, PAYLOAD
from benchmarks.pgbench import CLIENTS, run_script
from benchmarks.single import KEY
from penstock.records import Message

VISIBILITY_SECONDS = 600
FILL = 50_000  # messages of one statement
BODY = json.dumps({"data": PAYLOAD[:188].decode()})  # 200 bytes with the rest of the JSON

_READ = "SELECT msg_id, enqueued_at, message::text FROM pgmq.read(%s, %s, %s)"
#: The headers of one message. The client chooses its key, as for ours.
_HEADERS = (
    f"""('{{"type": "{TYPE}", "content_type": "{CONTENT_TYPE}", "source": "bench", "number": 7,"""
    """ "key": "account-' || :key || '"}')::jsonb"""
)
_DELETE = "SELECT count(*) FROM pgmq.delete(%s, %s::bigint[])"


class Pgmq:
    """A database in which pgmq's own SQL has installed it."""

    def __init__(self, bench: BenchDatabase) -> None:
        bench.connection.execute(pgmq_sql().encode())
        self._bench = bench
        self._numbers: Iterator[int] = itertools.count(1)

    def single(
        self, rows: int, *, full: bool = False, clients: int = CLIENTS
    ) -> Callable[[], float]:
        """Send with a commit for each message, by clients of pgbench."""
        queue = self.new_queue()
        script = f"SELECT pgmq.send('{queue}', '{BODY}'::jsonb);\n"
        if full:
            script = f"{KEY}SELECT pgmq.send('{queue}', '{BODY}'::jsonb, {_HEADERS});\n"

        def run() -> float:
            self._bench.settle()
            return run_script(self._bench, script, rows, clients=clients)

        return run

    def batch(self, events: Sequence[Message] | int) -> Callable[[], float]:
        """Send with a commit for each 500.  The headers, if any, hold what an event has."""
        queue = self.new_queue()
        rows = events if isinstance(events, int) else len(events)

        def run() -> float:
            self._bench.settle()
            begun = perf_counter()
            for part in batches(rows, BATCH_SIZE):
                if isinstance(events, int):
                    self._send(queue, len(part))
                else:
                    self.send(self._bench.connection, queue, events[part.start : part.stop])
            return perf_counter() - begun

        return run

    def work(self, rows: int) -> Callable[[], float]:
        """Read and delete by 500.  Reads id, time and payload, and does not decode the payload."""
        queue = self.new_queue()
        connection = self._bench.connection

        def run() -> float:
            self.fill(queue, rows)
            self._bench.settle()
            begun = perf_counter()
            done = 0
            while count := self.turn(connection, queue, BATCH_SIZE):
                done += count
            spent = perf_counter() - begun
            if done != rows:
                raise RuntimeError(f"pgmq worked on {done} of {rows} messages")
            return spent

        return run

    def _send(self, queue: str, count: int) -> None:
        send = "SELECT count(*) FROM pgmq.send_batch(%s, %s::jsonb[])"
        self._bench.connection.execute(send, (queue, [BODY] * count))

    def send(self, connection: Any, queue: str, events: Sequence[Message]) -> None:
        """Send a batch.  The headers hold what an event has beside its payload."""
        send = "SELECT count(*) FROM pgmq.send_batch(%s, %s::jsonb[], %s::jsonb[])"
        headers = [
            json.dumps(
                {"key": event.key, "type": TYPE, "content_type": CONTENT_TYPE}
                | dict(event.headers or {})
            )
            for event in events
        ]
        connection.execute(send, (queue, [BODY] * len(events), headers))

    def turn(self, connection: Any, queue: str, size: int) -> int:
        """Read at most so many and delete them.  Returns how many."""
        binds = (queue, VISIBILITY_SECONDS, size)
        found = connection.execute(_READ, binds, binary=True).fetchall()
        if found:
            connection.execute(_DELETE, (queue, [row[0] for row in found]))
        return len(found)

    def fill(self, queue: str, rows: int) -> None:
        """Send so many messages; the queue has been empty."""
        send = "SELECT count(*) FROM pgmq.send_batch(%s, array_fill(%s::jsonb, ARRAY[%s]))"
        for part in batches(rows, FILL):
            self._bench.connection.execute(send, (queue, BODY, len(part)))
        self._bench.connection.execute(f"VACUUM ANALYZE pgmq.q_{queue}".encode())

    def new_queue(self) -> str:
        """The name of an empty queue."""
        queue = f"bench{next(self._numbers)}"
        self._bench.connection.execute("SELECT pgmq.create(%s)", (queue,))
        return queue
