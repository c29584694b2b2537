"""How long a new process takes, from its start to its end.  What it imports is compiled already."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from time import perf_counter

from benchmarks.bench import Bench
from benchmarks.measure import Aim, Figure, Settings, figure

#: So many starts; one more comes before, which may compile.
STARTS = 10
AIM = Aim(at_most=300)
_COMMAND = "from penstock.cli.main import app; app()"


def cases(bench: Bench, settings: Settings) -> Iterator[Figure]:
    """Importing Penstock, its command, and one event published by the command."""
    topic = bench.new_topic()
    starts: Mapping[str, Sequence[str]] = {
        "start_import": ["import penstock"],
        "start_publisher": ["import penstock; penstock.publish"],
        "start_consumer": ["import penstock; penstock.Consumer"],
        "start_version": [_COMMAND, "--version"],
        "start_publish": [_COMMAND, "publish", topic, "x"],
    }
    count = min(STARTS, settings.amount(STARTS))
    for name, program in starts.items():
        taken = [_seconds(bench, program) for _ in range(count + 1)][1:]
        yield figure(name, 1_000 * median(taken), unit="ms", rows=count, batch=1, aim=AIM)


def _seconds(bench: Bench, program: Sequence[str]) -> float:
    environment = os.environ | {"PENSTOCK_DATABASE_URL": bench.url}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    begun = perf_counter()
    subprocess.run(
        [sys.executable, "-c", *program], check=True, capture_output=True, timeout=60,
        env=environment,
    )  # fmt: skip
    return perf_counter() - begun
