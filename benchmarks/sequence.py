"""Giving sequences to rows that were just inserted, in committed passes of at most 50,000."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

from benchmarks.bench import PASS, Bench
from benchmarks.measure import Aim, Case, Settings

#: Rows, rows over more partitions, and the aim. Fewer where an engine fills a log more slowly.
POSTGRES = 200_000, 100_000, Aim(value=500_000)
OTHERS = 100_000, 50_000, Aim(value=80_000)
MANY_PARTITIONS, MANY_TOPICS = 1_024, 1_000
SMALL_TOPICS = 20


def cases(bench: Bench, settings: Settings) -> Iterator[Case]:
    """16 partitions.  Then the cost when the same events are in many more of them."""
    one = bench.new_topic()
    rows, spread_rows, aim = POSTGRES if bench.engine == "postgres" else OTHERS
    count = settings.amount(rows)
    yield Case("sequence", count, min(PASS, count), _run(bench, [one], count), aim=aim)
    count = settings.amount(spread_rows)
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


def _run(bench: Bench, topics: Sequence[str], count: int) -> Callable[[], float]:
    def run() -> float:
        bench.work_off()
        # Before the rows are made: after a checkpoint the first reader of a page logs all of it.
        bench.settle()
        bench.fill(topics, count)
        begun = perf_counter()
        done = bench.work_off()
        spent = perf_counter() - begun
        if done != count:
            raise RuntimeError(f"sequenced {done} of {count} events")
        return spent

    return run
