"""How long a new process takes for its first events out of the archive, without a JVM."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from statistics import median
from time import perf_counter

from benchmarks.bench import Bench
from benchmarks.measure import Aim, Figure, Settings, figure
from benchmarks.spark.session import checked
from penstock import database
from penstock.archive.targets import Target

EVENTS, AIM = 100, Aim(at_most=300)
_PROGRAM = """
import sys

from penstock.archive import read
from penstock.archive.targets import Target

url, topic, name, uri = sys.argv[1:]
with read(url, topic, 0, 1, {events}, targets=[Target(name, uri)]) as batches:
    print(sum(batch.num_rows for batch in batches))
"""


def figures(bench: Bench, settings: Settings, topic: str, target: Target) -> Iterator[Figure]:
    """A process reads events that the database is taken not to have any more."""
    database.execute(bench.connection, "UPDATE penstock.partitions SET low_sequence = 1000000000")
    runs = [_run(bench.url, topic, target) for _ in range(settings.rounds + 1)][1:]
    clock, processor = (1_000 * median(each) for each in zip(*runs, strict=True))
    yield figure("cold_start", clock, unit="ms", rows=EVENTS, batch=EVENTS, aim=AIM)
    yield figure("cold_start_processor", processor, unit="ms", rows=EVENTS, batch=EVENTS)


def _run(url: str, topic: str, target: Target) -> tuple[float, float]:
    """Seconds by the clock, and of the processor."""
    before, begun = _children(), perf_counter()
    done = subprocess.run(
        [
            sys.executable, "-c", _PROGRAM.format(events=EVENTS), url, topic, target.name,
            target.uri,
        ],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    spent = perf_counter() - begun
    checked(int(done.stdout), EVENTS)
    return spent, _children() - before


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
