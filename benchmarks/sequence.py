"""Giving sequences to rows that were just inserted, in committed passes of at most 50,000."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

from benchmarks.bench_database import PASS, BenchDatabase
from benchmarks.measure import Aim, Case, Settings

ROWS, SPREAD_ROWS = 200_000, 100_000
MANY_PARTITIONS, MANY_TOPICS = 1_024, 1_000
SMALL_TOPICS = 20


def cases(bench: BenchDatabase, settings: Settings) -> Iterator[Case]:
    """16 partitions; then what it costs when the same events lie in far more of them."""
    one = bench.new_topic()
    count = settings.amount(ROWS)
    yield Case(
        "sequence", count, min(PASS, count), _run(bench, [one], count), aim=Aim(value=500_000)
    )
    count = settings.amount(SPREAD_ROWS)
    few = _run(bench, [one], count)
    wide = _run(bench, [bench.new_topic(MANY_PARTITIONS)], count)
    yield Case(
        "sequence_1024_partitions", count, min(PASS, count), wide, few, "a topic of 16",
        Aim(cost=1.5),
    )  # fmt: skip
    topics = MANY_TOPICS if settings.rows is None else SMALL_TOPICS
    many = _run(bench, [bench.new_topic() for _ in range(topics)], count)
    yield Case(
        f"sequence_{topics}_topics", count, min(PASS, count), many, few, "one topic", Aim(cost=4)
    )


def _run(bench: BenchDatabase, topics: Sequence[str], count: int) -> Callable[[], float]:
    def run() -> float:
        bench.work_off()
        # Before the rows are made: behind a checkpoint the first reader of a page logs all of it.
        bench.settle()
        bench.fill(topics, count)
        begun = perf_counter()
        done = bench.work_off()
        spent = perf_counter() - begun
        if done != count:
            raise RuntimeError(f"sequenced {done} of {count} events")
        return spent

    return run
