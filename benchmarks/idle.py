"""What an idle daemon costs: its processor time, the database's, and its calls."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.events import messages
from benchmarks.measure import Aim, Figure, Settings, figure
from benchmarks.processor import processor_seconds
from penstock import subscriptions
from penstock.publishing.publish import publish_batch
from penstock.subscriptions import stream

ROOT = Path(__file__).resolve().parents[1]
PARTITIONS = 1_024
SUBSCRIPTION = "idle"
#: For a while a consumer keeps a partition that has nothing to read, and polls it.
RELEASE_SECONDS = 120.0
SETTLE_SECONDS = 10.0
CORE = Aim(at_most=2)
CALLS = Aim(at_most=50)


def cases(bench: Bench, settings: Settings) -> Iterator[Figure]:
    """A daemon with sequencer, sweep and a consumer.  Every partition has been read once."""
    partitions = min(PARTITIONS, settings.amount(PARTITIONS))
    topic = bench.new_topic(partitions)
    stream.subscribe(bench.connection, SUBSCRIPTION, [topic])
    with bench.transaction():
        publish_batch(
            bench.connection,
            [replace(each, partition=n) for n, each in enumerate(messages(topic, partitions))],
        )
    with _daemon(bench) as daemon:
        _wait_until_read(bench, partitions)
        _wait_until_released(bench, min(RELEASE_SECONDS, settings.hold_seconds))
        time.sleep(min(SETTLE_SECONDS, settings.hold_seconds))
        spent = _spent(bench, daemon, settings)
    for name, value, unit, aim in (
        ("idle_daemon", 100 * spent.daemon / spent.seconds, "% of a core", CORE),
        ("idle_database", 100 * spent.database / spent.seconds, "% of a core", CORE),
        ("idle_calls", spent.calls / spent.seconds, "calls/s", CALLS),
    ):
        yield figure(name, value, unit=unit, rows=partitions, batch=1, aim=aim)


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of the clock, seconds of processors, and the database's calls."""

    seconds: float
    daemon: float
    database: float
    calls: float


def _spent(bench: Bench, daemon: int, settings: Settings) -> Spent:
    begun = time.monotonic()
    before = _counters(bench, daemon)
    time.sleep(min(60.0, settings.hold_seconds))
    after = _counters(bench, daemon)
    seconds = time.monotonic() - begun
    return Spent(seconds, *(now - then for now, then in zip(after, before, strict=True)))


def _counters(bench: Bench, daemon: int) -> tuple[float, float, float]:
    return processor_seconds(daemon), processor_seconds(bench.server_pid), bench.calls()


@contextmanager
def _daemon(bench: Bench) -> Iterator[int]:
    process = subprocess.Popen(
        [
            sys.executable, "-m", "consumers", "--roles", "sequencer,sweep,consumers",
            "--batch-consumer", f"{SUBSCRIPTION}=benchmarks.idle:nothing",
        ],
        cwd=ROOT,
        env=os.environ | {"PENSTOCK_DATABASE_URL": bench.url},
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait(60)


def nothing(batch: object) -> None:
    """The handler, which does nothing."""


def _wait_until_read(bench: Bench, events: int) -> None:
    deadline = time.monotonic() + 120
    while sum(each.position for each in subscriptions.lag(bench.connection, SUBSCRIPTION)) < events:
        if time.monotonic() > deadline:
            raise RuntimeError("the daemon has not read what there was")
        time.sleep(0.2)


def _wait_until_released(bench: Bench, most_seconds: float) -> None:
    deadline = time.monotonic() + most_seconds
    while any(each.holder for each in subscriptions.lag(bench.connection, SUBSCRIPTION)):
        if time.monotonic() > deadline:
            print("  partitions with nothing to read are still held", flush=True)
            return
        time.sleep(0.5)
