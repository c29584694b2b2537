"""A consumer that polls, handles nothing and commits; the peer is a loop over a cursor row."""

from __future__ import annotations

import itertools
from dataclasses import replace
from time import perf_counter

from benchmarks.bench_database import BARE_COLUMNS, PARTITIONS, BenchDatabase
from benchmarks.fetch import filled
from benchmarks.measure import Case
from penstock import stream

ROWS = 100_000
BATCH_SIZE = 500
#: Check-ins until one consumer holds every partition.
MOST_CHECK_INS = 10


def cases(bench: BenchDatabase, rows: int | None) -> list[Case]:
    """consume, with a commit for each batch.

    The peer is what people write by hand for a single reader: SELECT the next 500 rows by id,
    UPDATE the one row that holds the position, COMMIT.
    """
    count = rows or ROWS
    topic, table = filled(bench, count)
    connection = bench.connection
    connection.execute(f"CREATE TABLE {table}_position (last uuid NOT NULL)")
    connection.execute(f"INSERT INTO {table}_position VALUES (%s)", (_NONE,))
    numbers = itertools.count(1)

    def ours() -> float:
        subscription = f"{table}-{next(numbers)}"
        stream.subscribe(connection, subscription, [topic])
        bench.settle()
        begun = perf_counter()
        handled = _consume(bench, subscription)
        spent = perf_counter() - begun
        stream.unsubscribe(connection, subscription)
        if handled != count:
            raise RuntimeError(f"handled {handled} of {count} events")
        return spent

    def peer() -> float:
        connection.execute(f"UPDATE {table}_position SET last = %s", (_NONE,))
        bench.settle()
        begun = perf_counter()
        handled = _cursor_loop(bench, table)
        spent = perf_counter() - begun
        if handled != count:
            raise RuntimeError(f"handled {handled} of {count} events")
        return spent

    return [Case("consume", count, BATCH_SIZE, ours, peer)]


_NONE = "00000000-0000-0000-0000-000000000000"


def _consume(bench: BenchDatabase, subscription: str) -> int:
    """Join, hold every partition, and read until nothing is left: all of it is on the clock."""
    connection = bench.connection
    member = stream.join(connection, subscription, "bench")
    leases = {lease.partition_id: lease for lease in stream.check_in(connection, member)}
    for _ in range(MOST_CHECK_INS):
        if len(leases) == PARTITIONS:
            break
        leases |= {lease.partition_id: lease for lease in stream.check_in(connection, member)}
    handled = 0
    heartbeat_due = perf_counter() + member.heartbeat_seconds
    while polled := stream.poll(connection, member, list(leases.values()), BATCH_SIZE):
        done = [(lease, events[-1].sequence) for lease, events in polled]
        stream.commit(connection, member, done)
        handled += sum(len(events) for _, events in polled)
        for lease, position in done:
            leases[lease.partition_id] = replace(lease, position=position)
        if perf_counter() >= heartbeat_due:
            stream.heartbeat(connection, member)
            heartbeat_due = perf_counter() + member.heartbeat_seconds
    stream.leave(connection, member)
    return handled


def _cursor_loop(bench: BenchDatabase, table: str) -> int:
    connection = bench.connection
    select = (
        f"SELECT {', '.join(BARE_COLUMNS)} FROM {table} "
        f"WHERE id > (SELECT last FROM {table}_position) ORDER BY id LIMIT {BATCH_SIZE}"
    )
    handled = 0
    while True:
        with connection.transaction():
            found = connection.execute(select).fetchall()
            if not found:
                return handled
            connection.execute(f"UPDATE {table}_position SET last = %s", (found[-1][0],))
        handled += len(found)
