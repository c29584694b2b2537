"""How it grows with the clients: 1, 2, 4 and so on up to twice the cores, beside pgmq.

Client and server share the machine.  After the run there is a chart, docs/images/cores.svg.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import picture, queue
from benchmarks.bench_database import BenchDatabase
from benchmarks.events import messages
from benchmarks.measure import Aim, Case, Figure, Gap, Run, Settings, figure
from benchmarks.peers.install import PeerMissing
from benchmarks.peers.pgmq import Pgmq
from benchmarks.pgbench import run_script
from benchmarks.single import KEY, insert_statement, publish_script
from penstock.publishing.publish import publish_batch

CORES = os.cpu_count() or 1
PARTITIONS = 64
BATCH_SIZE = 500
#: Events of a run for each client, as far as there is a core for it.
SINGLE, BATCH = 3_000, 20_000
#: The same of a queue, by how many events are taken at once.
TAKEN = {500: 30_000, 10: 6_000, 1: 1_000}
#: How the rows of the chart are called, and what pgmq is there.
KINDS = {
    "scale_single": "one by one",
    "scale_500": "by 500",
    "scale_queue_500": "queue by 500",
    "scale_queue_10": "queue by 10",
    "scale_queue_1": "queue one by one",
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
        for size, events in TAKEN.items():
            rows = settings.amount(events * at_once)
            ours = queue.Working(
                bench, queue.filled(bench, rows, PARTITIONS), rows, size, workers=count
            )
            theirs = queue.pgmq_working(bench, peer, rows, size, count)
            yield Case(f"scale_queue_{size}_by_{count}", rows, size, ours, theirs, "pgmq")
    bench.connection.execute("SELECT pg_stat_force_next_flush()")
    yield figure(
        "scale_deadlocks", bench.figure(_DEADLOCKS), unit="deadlocks", rows=2 * CORES, batch=1,
        aim=Aim(at_most=0),
    )  # fmt: skip


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
        if found is None or each.peer is None or found[1] not in KINDS:
            continue
        lines = panels.setdefault(KINDS[found[1]], {"Penstock": {}, "pgmq": {}})
        lines["Penstock"][int(found[2])], lines["pgmq"][int(found[2])] = each.value, each.peer
    return picture.by_clients(name, title, panels) if panels else None
