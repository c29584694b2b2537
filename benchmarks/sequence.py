"""Giving sequences to rows that were just inserted, over 16 partitions, in committed passes."""

from __future__ import annotations

from time import perf_counter

from benchmarks.bench_database import PASS, BenchDatabase, messages
from benchmarks.measure import Case
from penstock.publish import publish_bulk

ROWS = 200_000


def cases(bench: BenchDatabase, rows: int | None) -> list[Case]:
    """sequence; no peer, a bare table has nothing that would compare."""
    count = rows or ROWS
    events = messages(bench.new_topic(), count)
    connection = bench.connection

    def ours() -> float:
        bench.work_off()
        with connection.transaction():
            publish_bulk(connection, events)
        bench.settle()
        begun = perf_counter()
        done = bench.work_off()
        spent = perf_counter() - begun
        if done != count:
            raise RuntimeError(f"sequenced {done} of {count} events")
        return spent

    return [Case("sequence", count, min(PASS, count), ours)]
