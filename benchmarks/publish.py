"""Publishing one by one, in batches and in bulk; the peer puts the same rows into a bare table."""

from __future__ import annotations

from time import perf_counter

from benchmarks.bench_database import (
    BARE_COLUMNS,
    BARE_TYPES,
    BenchDatabase,
    bare_row,
    messages,
)
from benchmarks.measure import Case, batches
from penstock.publish import publish, publish_batch, publish_bulk

SINGLE, BATCH, COPY = 1_000, 20_000, 50_000
BATCH_SIZE = 500


def cases(bench: BenchDatabase, rows: int | None) -> list[Case]:
    """publish_single, publish_batch_500, publish_copy."""
    return [
        _single(bench, rows or SINGLE),
        _batch(bench, rows or BATCH),
        _copy(bench, rows or COPY),
    ]


def _single(bench: BenchDatabase, rows: int) -> Case:
    """A commit for each event."""
    topic, table = bench.new_topic(), bench.new_bare_table()
    events = messages(topic, rows)
    connection = bench.connection
    insert = _insert(table)

    def ours() -> float:
        bench.settle()
        begun = perf_counter()
        for event in events:
            publish(
                connection,
                event.topic,
                event.payload,
                key=event.key,
                type=event.type,
                content_type=event.content_type,
                headers=event.headers,
            )
        return perf_counter() - begun

    def peer() -> float:
        bench.settle()
        begun = perf_counter()
        for event in events:
            connection.execute(insert, bare_row(event))
        return perf_counter() - begun

    return Case("publish_single", rows, 1, ours, peer)


def _batch(bench: BenchDatabase, rows: int) -> Case:
    """A commit for each 500 events; the peer by executemany, psycopg's own way for many rows."""
    topic, table = bench.new_topic(), bench.new_bare_table()
    events = messages(topic, rows)
    connection = bench.connection
    insert = _insert(table)

    def ours() -> float:
        bench.settle()
        begun = perf_counter()
        for part in batches(rows, BATCH_SIZE):
            publish_batch(connection, events[part.start : part.stop])
        return perf_counter() - begun

    def peer() -> float:
        bench.settle()
        begun = perf_counter()
        for part in batches(rows, BATCH_SIZE):
            with connection.transaction(), connection.cursor() as cursor:
                cursor.executemany(insert, map(bare_row, events[part.start : part.stop]))
        return perf_counter() - begun

    return Case("publish_batch_500", rows, BATCH_SIZE, ours, peer)


def _copy(bench: BenchDatabase, rows: int) -> Case:
    """All events in one transaction by COPY."""
    topic, table = bench.new_topic(), bench.new_bare_table()
    events = messages(topic, rows)
    connection = bench.connection
    statement = f"COPY {table} ({', '.join(BARE_COLUMNS)}) FROM STDIN (FORMAT BINARY)"

    def ours() -> float:
        bench.settle()
        begun = perf_counter()
        with connection.transaction():
            publish_bulk(connection, events)
        return perf_counter() - begun

    def peer() -> float:
        bench.settle()
        begun = perf_counter()
        with (
            connection.transaction(),
            connection.cursor() as cursor,
            cursor.copy(statement) as copy,
        ):
            copy.set_types(BARE_TYPES)
            for event in events:
                copy.write_row(bare_row(event))
        return perf_counter() - begun

    return Case("publish_copy", rows, rows, ours, peer)


def _insert(table: str) -> str:
    places = ", ".join(["%s"] * len(BARE_COLUMNS))
    return f"INSERT INTO {table} ({', '.join(BARE_COLUMNS)}) VALUES ({places})"
