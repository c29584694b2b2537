"""The latency of an event: from the answer to its COMMIT until its handler is called.

The publisher, the consumer and the daemon that sequences are separate processes. All read the
machine's monotonic clock, so the difference of two times is a duration.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

from benchmarks import latency_steps, machine
from benchmarks.bench import Bench
from benchmarks.measure import Aim, Figure, Settings, figure
from benchmarks.picture import histogram
from benchmarks.processor import processor_seconds
from penstock.subscriptions import queue, stream
from penstock.topics import names

RATE, SECONDS, WARM_SECONDS = 1_000, 60, 5
COLD_EVENTS, COLD_AFTER_SECONDS = 60, 60.0
#: Commits for each second. Where one takes longer than a millisecond, more events share a commit.
COMMITS = {"postgres": 1_000, "mysql": 100, "mariadb": 100}
READY_SECONDS = 60.0
#: By engine: the median and the 99th percentile of a hot partition, the 99th of a cold one.
AIMS = {"postgres": (2.5, 5, 60), "mysql": (None, 30, 250), "mariadb": (None, 30, 250)}
#: The median and the 99th percentile of a queue.
QUEUE_AIMS = {"postgres": (3.5, 8), "mysql": (None, None), "mariadb": (None, None)}
#: The 99th of a cold one whose publisher wakes the sequencer.
WOKEN_AIM = 50
#: The most that the database may take of a core at 1,000 events/s in a hot partition, in percent.
BUSY_AIMS = {"postgres": 60, "mysql": None, "mariadb": None}
SUBSCRIPTION = "latency"
#: The programs whose calls are timed: the one that sequences, and the consumer.
PROGRAMS = ("consumers", "benchmarks.latency_consumer")


@dataclass(frozen=True, slots=True)
class Sample:
    """Milliseconds of every event, in the order in which they were committed."""

    milliseconds: Sequence[float]
    #: What the database took of a core meanwhile, in percent.
    database: float

    def percentile(self, number: int) -> float:
        """The value below which this many in a hundred are."""
        return quantiles(self.milliseconds, n=100, method="inclusive")[number - 1]


def cases(bench: Bench, settings: Settings) -> Iterator[Figure]:
    """A hot partition at 1,000 events/s, then partitions that were idle for a minute."""
    middle, hot_end, cold_end = AIMS[bench.engine]
    yield figure(
        "latency_fsync", machine.fsync_milliseconds(), unit="ms", rows=machine.FSYNCS, batch=1,
        against="4 KiB written and synced",
    )  # fmt: skip
    count = settings.amount(RATE * SECONDS)
    per_commit = RATE // COMMITS[bench.engine]
    warm = min(RATE * WARM_SECONDS, count // 2)
    hot_work = ["hot", str(count), str(COMMITS[bench.engine]), str(per_commit)]
    hot = measured(bench, 1, hot_work, warm)
    yield figure_of("latency_hot_p50", hot.percentile(50), hot, per_commit, middle)
    yield figure_of("latency_hot_p99", hot.percentile(99), hot, per_commit, hot_end)
    yield figure_of("latency_hot_max", max(hot.milliseconds), hot, per_commit, None)
    busy = BUSY_AIMS[bench.engine]
    yield figure(
        "latency_hot_database", hot.database, unit="% of a core", rows=len(hot.milliseconds),
        batch=per_commit, aim=None if busy is None else Aim(at_most=busy),
    )  # fmt: skip
    middle, end = QUEUE_AIMS[bench.engine]
    queued = measured(bench, 1, hot_work, warm, kind="queue")
    yield figure_of("latency_queue_p50", queued.percentile(50), queued, per_commit, middle)
    yield figure_of("latency_queue_p99", queued.percentile(99), queued, per_commit, end)
    if settings.short:
        return
    is_whole = settings.rows is None
    events, idle = (COLD_EVENTS, COLD_AFTER_SECONDS) if is_whole else (3, 1.0)
    cold = measured(bench, events, ["cold", str(events), str(idle)])
    yield figure_of("latency_cold_p50", cold.percentile(50), cold, 1, None)
    yield figure_of("latency_cold_p99", cold.percentile(99), cold, 1, cold_end)
    drawn = {f"hot, {RATE:,} events/s": hot.milliseconds, "cold": cold.milliseconds}
    if bench.engine == "postgres":
        woken = measured(bench, events, ["woken", str(events), str(idle)])
        yield figure_of("latency_woken_p50", woken.percentile(50), woken, 1, None)
        yield figure_of("latency_woken_p99", woken.percentile(99), woken, 1, WOKEN_AIM)
        drawn["cold, with a waker"] = woken.milliseconds
    if is_whole:
        histogram(
            f"latency-{bench.engine}",
            f"From COMMIT to handler, {bench.title}",
            drawn,
        )


def figure_of(
    name: str, value: float, sample: Sample, per_commit: int, at_most: float | None
) -> Figure:
    return figure(
        name, value, unit="ms", rows=len(sample.milliseconds), batch=per_commit,
        aim=None if at_most is None else Aim(at_most=at_most),
    )  # fmt: skip


def measured(
    bench: Bench,
    partitions: int,
    work: Sequence[str],
    warm: int = 0,
    *,
    kind: str = "stream",
    sink: str = "",
) -> Sample:
    """Run the three processes once.  Prints the time of each step, without the first events."""
    topic = bench.new_topic(partitions)
    subscription = f"{SUBSCRIPTION}-{kind}-{work[0]}"
    subscribe = queue.subscribe if kind == "queue" else stream.subscribe
    subscribe(bench.connection, subscription, [topic])
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-latency-") as name:
            folder = Path(name)
            committed, handled = folder / "committed", folder / "handled"
            reading = (kind, subscription, str(handled), *filter(None, [sink]))
            with (
                _running(folder, bench.url, PROGRAMS[0], "--roles", "sequencer") as sequencer,
                _running(folder, bench.url, PROGRAMS[1], *reading) as consumer,
            ):
                _await(handled)
                processes = {
                    "sequencer": sequencer, "consumer": consumer, "database": bench.server_pid
                }  # fmt: skip
                with _processor_time(processes) as shares:
                    publisher = [sys.executable, "-m", "benchmarks.latency_publisher", topic]
                    subprocess.run(
                        [*publisher, str(committed), *work], env=_environment(bench.url), check=True
                    )
                    sent, came = _joined(committed, handled)
            sequenced, read = (latency_steps.read(folder / f"{each}.calls") for each in PROGRAMS)
            if kind != "relay":  # it makes other calls
                steps = latency_steps.lines(sent, came, sequenced, read, warm)
                print(*steps, sep="\n", flush=True)
            # A handler may be called before the publisher has seen the answer to its COMMIT.
            late = [max(0, end - begin) / 1e6 for begin, end in zip(sent, came, strict=True)]
            return Sample(late[warm:], shares["database"])
    finally:
        stream.unsubscribe(bench.connection, subscription)
        names.delete_topic(bench.connection, topic)


@contextlib.contextmanager
def _processor_time(processes: dict[str, int]) -> Iterator[dict[str, float]]:
    """Print and return the percentage of a core that each took while the block ran."""
    shares: dict[str, float] = {}
    begun = time.monotonic()
    mine = os.times()
    before = {name: processor_seconds(pid) for name, pid in processes.items()}
    yield shares
    seconds = time.monotonic() - begun
    after = os.times()
    spent = {name: processor_seconds(pid) - before[name] for name, pid in processes.items()}
    spent["publisher"] = sum(after[2:4]) - sum(mine[2:4])
    shares |= {name: 100 * each / seconds for name, each in spent.items()}
    told = (f"{name} {share:.1f}" for name, share in shares.items())
    print("  % of a core:", ", ".join(told), flush=True)


def _joined(committed: Path, handled: Path) -> tuple[list[int], list[int]]:
    """When each event was committed and handled.  An event that never came is an error."""
    sent = [int(line) for line in committed.read_text().split()]
    deadline = time.monotonic() + READY_SECONDS
    while len(lines := handled.read_text().splitlines()) <= len(sent):  # the first says: ready
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(lines) - 1} of {len(sent)} events came")
        time.sleep(0.1)
    came = {int(number): int(at) for number, at in map(str.split, lines[1:])}
    return sent, [came[number] for number in range(len(sent))]


def _await(handled: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not handled.exists() or not handled.read_text():
        if time.monotonic() > deadline:
            raise RuntimeError("the consumer did not start")
        time.sleep(0.05)


@contextlib.contextmanager
def _running(folder: Path, url: str, module: str, *arguments: str) -> Iterator[int]:
    """Run one of our programs while the block runs.  SIGTERM ends it, as an operator would."""
    output = folder / module
    timed = ["benchmarks.latency_steps", str(folder / f"{module}.calls"), module]
    with output.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *timed, *arguments],
            env=_environment(url), stdout=log, stderr=log, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            if process.wait(30) != 0:
                print(output.read_text(), file=sys.stderr)


def _environment(url: str) -> dict[str, str]:
    return os.environ | {"PENSTOCK_DATABASE_URL": url}
