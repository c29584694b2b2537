"""Reading all columns of a sequenced log; the peer selects by id range from the bare table."""

from __future__ import annotations

from time import perf_counter

from benchmarks.bench_database import (
    BARE_COLUMNS,
    BARE_TYPES,
    PARTITIONS,
    BenchDatabase,
    bare_row,
    messages,
)
from benchmarks.measure import Case
from penstock import log
from penstock.publish import publish_bulk
from penstock.records import Message

ROWS = 100_000
BATCH_SIZE = 1_000


def cases(bench: BenchDatabase, rows: int | None) -> list[Case]:
    """fetch, partition after partition."""
    count = rows or ROWS
    topic, table = filled(bench, count)
    connection = bench.connection

    def ours() -> float:
        begun = perf_counter()
        read = 0
        for partition in range(PARTITIONS):
            following = 1
            while events := log.fetch(connection, topic, partition, following, BATCH_SIZE):
                read += len(events)
                following = events[-1].sequence + 1
        return _checked(begun, read, count)

    select = (
        f"SELECT {', '.join(BARE_COLUMNS)} FROM {table} "
        f"WHERE id > %s ORDER BY id LIMIT {BATCH_SIZE}"
    )

    def peer() -> float:
        begun = perf_counter()
        read = 0
        last: object = "00000000-0000-0000-0000-000000000000"
        while found := connection.execute(select, (last,)).fetchall():
            read += len(found)
            last = found[-1][0]
        return _checked(begun, read, count)

    return [Case("fetch", count, BATCH_SIZE, ours, peer)]


def filled(bench: BenchDatabase, count: int) -> tuple[str, str]:
    """A sequenced topic and a bare table with the same events."""
    topic, table = bench.new_topic(), bench.new_bare_table()
    events = messages(topic, count)
    with bench.connection.transaction():
        publish_bulk(bench.connection, events)
        _fill_bare(bench, table, events)
    bench.work_off()
    bench.connection.execute("VACUUM ANALYZE")
    return topic, table


def _fill_bare(bench: BenchDatabase, table: str, events: list[Message]) -> None:
    """In the order of the ids, as rows lie whose ids rise."""
    statement = f"COPY {table} ({', '.join(BARE_COLUMNS)}) FROM STDIN (FORMAT BINARY)"
    rows = sorted(map(bare_row, events), key=lambda row: row[0])
    with bench.connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types(BARE_TYPES)
        for row in rows:
            copy.write_row(row)


def _checked(begun: float, read: int, wanted: int) -> float:
    spent = perf_counter() - begun
    if read != wanted:
        raise RuntimeError(f"read {read} of {wanted} events")
    return spent
