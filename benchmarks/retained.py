"""What it costs to keep ten million events: the same work on a long log and on a short one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter

from benchmarks.bench import PARTITIONS, PASS
from benchmarks.bench_database import FILL, BenchDatabase, bench_database
from benchmarks.events import messages
from benchmarks.measure import Aim, Case, Figure, Settings, batches, figure
from benchmarks.pgbench import run_script
from benchmarks.publish import publishing_events
from benchmarks.single import publish_script
from penstock import log

SHORT = 10_000
BATCHED, SINGLE, TICKS, READS = 10_000, 8_000, 300, 20
NEWEST = 100  # events that are read from the end of each partition

#: Calls after which a session has planned everything that a tick needs.
WARM = 7
_EMPTY_TICK = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM penstock.sequence({PASS})"

Work = Callable[[BenchDatabase, str], Callable[[], float]]


def cases(bench: BenchDatabase, settings: Settings) -> Iterator[Case | Figure]:
    """Publishing, an empty tick and reading the newest, each against a log of 10,000 events."""
    with bench_database(bench.server, f"{bench.name}_short") as short:
        long_topic = _log(bench, settings.retained_events)
        short_topic = _log(short, min(SHORT, settings.retained_events))
        for name, rows, unit, work in _work(settings):
            yield Case(
                f"retained_{name}", rows, 1, work(bench, long_topic), work(short, short_topic),
                f"a log of {SHORT:,}", Aim(cost=1.2), unit,
            )  # fmt: skip
        for database in (bench, short):
            database.work_off()
        yield figure(
            "retained_empty_tick_buffers", tick_buffers(bench), unit="buffers",
            peer=tick_buffers(short), rows=settings.retained_events, batch=1,
            against=f"a log of {SHORT:,}", aim=Aim(at_most=100),
        )  # fmt: skip


def _log(bench: BenchDatabase, count: int) -> str:
    """A topic with this many sequenced events, after the work of the daemon and autovacuum."""
    topic = bench.new_topic()
    for part in batches(count, FILL):
        bench.fill([topic], len(part))
        bench.work_off()
        log.ensure_slices(bench.connection)
    bench.connection.execute("VACUUM ANALYZE")
    bench.settle()
    return topic


def _work(settings: Settings) -> Iterator[tuple[str, int, str, Work]]:
    batched, single = settings.amount(BATCHED), settings.amount(SINGLE)
    ticks = min(TICKS, settings.amount(TICKS))
    yield (
        "publish_batch_500",
        batched,
        "events/s",
        lambda b, topic: publishing_events(b, messages(topic, batched)),
    )
    yield "publish_8_clients", single, "events/s", lambda b, topic: _single(b, topic, single)
    yield "empty_tick", ticks, "ticks/s", lambda b, _: _ticks(b, ticks)
    yield "read_newest", READS * PARTITIONS, "fetches/s", _newest


def _single(bench: BenchDatabase, topic: str, rows: int) -> Callable[[], float]:
    def run() -> float:
        bench.settle()
        return run_script(bench, publish_script(topic), rows)

    return run


def _ticks(bench: BenchDatabase, ticks: int) -> Callable[[], float]:
    def run() -> float:
        bench.work_off()
        bench.settle()
        begun = perf_counter()
        for _ in range(ticks):
            log.sequence(bench.connection, PASS)
        return perf_counter() - begun

    return run


def _newest(bench: BenchDatabase, topic: str) -> Callable[[], float]:
    def run() -> float:
        bench.work_off()
        begun = perf_counter()
        for _ in range(READS):
            for partition, newest in log.high_watermarks(bench.connection, topic).items():
                first = max(1, newest - NEWEST + 1)
                log.fetch(bench.connection, topic, partition, first, NEWEST)
        return perf_counter() - begun

    return run


def tick_buffers(bench: BenchDatabase) -> int:
    """The buffers that an empty tick reads, in a session that has planned its statements."""
    for _ in range(WARM):
        log.sequence(bench.connection, PASS)
    plan = bench.figure(_EMPTY_TICK)[0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])
