"""How it grows with the clients: 1, 2, 4 and so on up to twice the cores, beside pgmq.

Client and server share the machine.  After the run there is a chart, docs/images/cores.svg.
`--waiting 3000000` measures the queues once more, while so many messages wait in them.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks import picture, queue
from benchmarks.bench_database import BenchDatabase
from benchmarks.events import messages
from benchmarks.measure import Aim, Case, Figure, Gap, Run, Settings, figure
from benchmarks.peers.install import PeerMissing
from benchmarks.peers.pgmq import Pgmq
from benchmarks.pgbench import run_script
from benchmarks.single import KEY, insert_statement, publish_script
from penstock.consumer.stream.consumer import Batch, Consumer
from penstock.publishing.publish import publish_batch
from penstock.subscriptions import stream

CORES = os.cpu_count() or 1
PARTITIONS = 64
BATCH_SIZE = 500
#: Events of a run for each client, as far as there is a core for it.
SINGLE, BATCH = 3_000, 20_000
#: The same of a queue, by how many events are taken at once.
TAKEN = {500: 30_000, 10: 6_000, 1: 1_000}
#: So many messages are left in a queue when a run ends.
WAITING = 10_000
#: Workers of a queue that are compared with each other.
FEW, MANY = 16, 64
#: They take so many times as many: each session plans its first calls.
MORE_OF_MANY = 4
NO_SLOWER = Aim(ratio=0.95)
#: Events of a run of consumers for each core.
CONSUMED = 200_000
#: How the rows of the chart are called, and what pgmq is there.
KINDS = {
    "scale_single": "one by one",
    "scale_500": "by 500",
    "scale_queue_500": "queue by 500",
    "scale_queue_10": "queue by 10",
    "scale_queue_1": "queue one by one",
    "scale_backlog_500": "queue by 500, many waiting",
    "scale_backlog_10": "queue by 10, many waiting",
    "scale_backlog_1": "queue one by one, many waiting",
    "scale_consumer": "penstock.Consumer",
}
_ROW = re.compile(r"(\w+?)_by_(\d+)")
_DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


def clients() -> list[int]:
    """1, 2, 4 and so on, up to twice the cores."""
    return [1 << power for power in range((2 * CORES).bit_length())]


def cases(bench: BenchDatabase, settings: Settings) -> Iterator[Case | Figure | Gap]:
    """Every kind of work by every number of clients; deadlocks of all of it."""
    try:
        peer = Pgmq(bench)
    except PeerMissing as error:
        yield Gap("scale", str(error))
        return
    for count in clients():
        at_once = min(count, CORES)
        yield from _one_by_one(bench, peer, settings.amount(SINGLE * at_once), count)
        yield _by_batch(bench, peer, settings.amount(BATCH * at_once), count)
    yield from _queues(bench, peer, settings, WAITING, "scale_queue")
    yield from _many_workers(bench, settings)
    yield from _consumers(bench, settings)
    if settings.waiting:
        yield from _queues(bench, peer, settings, settings.waiting, "scale_backlog")
    bench.connection.execute("SELECT pg_stat_force_next_flush()")
    yield figure(
        "scale_deadlocks", bench.figure(_DEADLOCKS), unit="deadlocks", rows=2 * CORES, batch=1,
        aim=Aim(at_most=0),
    )  # fmt: skip


def _queues(
    bench: BenchDatabase, peer: Pgmq, settings: Settings, waiting: int, name: str
) -> Iterator[Case]:
    """Both sides begin each run with as many messages."""
    rows = {size: settings.amount(events * CORES) for size, events in TAKEN.items()}
    filled = waiting + max(rows.values())
    topic, theirs = queue.filled(bench, filled, PARTITIONS), peer.new_queue()
    peer.fill(theirs, filled)
    for count, size in itertools.product(clients(), TAKEN):
        taken = rows[size] * min(count, CORES) // CORES
        yield Case(
            f"{name}_{size}_by_{count}", taken, size,
            queue.Working(bench, topic, taken, size, workers=count, whole=False),
            queue.pgmq_working(bench, peer, taken, size, count, beside=theirs),
            f"pgmq, at least {waiting:,} waiting",
        )  # fmt: skip


def _many_workers(bench: BenchDatabase, settings: Settings) -> Iterator[Case]:
    """More workers than cores are no slower."""
    for size, events in TAKEN.items():
        rows = settings.amount(MORE_OF_MANY * events * CORES)
        topic = queue.filled(bench, rows, PARTITIONS)
        many, few = (queue.Working(bench, topic, rows, size, workers) for workers in (MANY, FEW))
        yield Case(
            f"scale_queue_{size}_{MANY}_workers", rows, size, many, few, f"{FEW} workers", NO_SLOWER
        )


def _consumers(bench: BenchDatabase, settings: Settings) -> Iterator[Case]:
    topic = queue.filled(bench, settings.amount(CONSUMED * CORES), PARTITIONS)
    for count in clients():
        rows = settings.amount(CONSUMED * CORES)
        yield Case(
            f"scale_consumer_by_{count}", rows, BATCH_SIZE, Consumers(bench, topic, rows, count)
        )


@dataclass
class Consumers:
    """Runs in which so many processes consume a whole topic, each time by a new subscription.

    That they join and share the partitions is counted.  Then an event can come twice.
    """

    bench: BenchDatabase
    topic: str
    rows: int
    count: int
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __call__(self) -> float:
        name = f"{self.topic.rpartition('/')[2]}-{self.count}-{next(self._numbers)}"
        stream.subscribe(self.bench.connection, name, [self.topic])
        stream.configure_subscription(
            self.bench.connection, name, heartbeat_seconds=0.2, lease_seconds=10, release_seconds=10
        )
        self.bench.settle()
        fork = multiprocessing.get_context("fork")
        begin, begun = queue.together(fork, self.count + 1)
        done = fork.Value("q", 0)

        def work() -> None:
            stop = threading.Event()

            def handle(batch: Batch) -> None:
                with done.get_lock():
                    done.value += len(batch)

            def end() -> None:
                while done.value < self.rows:
                    stop.wait(0.01)
                stop.set()

            begin.wait(queue.READY_SECONDS)
            threading.Thread(target=end).start()
            Consumer(self.bench.url, name, batch_handler=handle, batch_size=BATCH_SIZE).run(stop)

        processes = [fork.Process(target=work) for _ in range(self.count)]
        for each in processes:
            each.start()
        begin.wait(queue.READY_SECONDS)
        for each in processes:
            each.join()
        spent = perf_counter() - begun.value
        if done.value < self.rows or any(each.exitcode for each in processes):
            raise RuntimeError(f"{done.value} of {self.rows} events were handled")
        stream.unsubscribe(self.bench.connection, name)
        return spent


def _one_by_one(bench: BenchDatabase, peer: Pgmq, rows: int, count: int) -> Iterator[Case]:
    ours = _script(bench, publish_script(bench.new_topic(PARTITIONS)), rows, count)
    bare = _script(bench, KEY + insert_statement(bench.new_bare_table()), rows, count)
    theirs = peer.single(rows, full=True, clients=count)
    yield Case(f"scale_single_by_{count}", rows, 1, ours, theirs, "pgmq, with a key in headers")
    yield Case(f"scale_single_bare_by_{count}", rows, 1, ours, bare, "INSERT into a bare table")


def _script(bench: BenchDatabase, script: str, rows: int, count: int) -> Run:
    def run() -> float:
        bench.settle()
        return run_script(bench, script, rows, clients=count)

    return run


def _by_batch(bench: BenchDatabase, peer: Pgmq, rows: int, count: int) -> Case:
    batch = messages(bench.new_topic(PARTITIONS), min(BATCH_SIZE, rows))
    queue_name = peer.new_queue()

    def ours(connection: Any) -> int:
        publish_batch(connection, batch)
        return len(batch)

    def theirs(connection: Any) -> int:
        peer.send(connection, queue_name, batch)
        return len(batch)

    def working(turn: queue.Turn) -> Run:
        def run() -> float:
            bench.settle()
            return queue.work_off(bench.url, turn, rows, count, exactly=False)

        return run

    return Case(f"scale_500_by_{count}", rows, len(batch), working(ours), working(theirs), "pgmq")


def draw(
    figures: Iterable[Figure], name: str = "cores", title: str = f"{CORES} cores"
) -> Path | None:
    """The chart of a run that has these rows; else nothing."""
    panels: dict[str, dict[str, dict[int, float]]] = {}
    for each in figures:
        found = _ROW.fullmatch(each.name)
        if found is None or found[1] not in KINDS:
            continue
        lines = panels.setdefault(KINDS[found[1]], {})
        lines.setdefault("Penstock", {})[int(found[2])] = each.value
        if each.peer is not None:
            lines.setdefault("pgmq", {})[int(found[2])] = each.peer
    return picture.by_clients(name, title, panels) if panels else None
