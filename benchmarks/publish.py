"""Publishing one by one, in batches and in bulk; the peer puts the same rows into a bare table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from time import perf_counter

from benchmarks.bench_database import BARE_COLUMNS, BenchDatabase, Connection
from benchmarks.events import COPY_TYPES, bare_rows, copy_rows, messages
from benchmarks.measure import Aim, Case, Settings, batches
from penstock.identifiers import uuid7s
from penstock.packed_arrays import packed
from penstock.publish import publish, publish_batch, publish_bulk
from penstock.records import Message

SINGLE, BATCH, COPY = 1_000, 20_000, 50_000
BATCH_SIZE = 500


def cases(bench: BenchDatabase, settings: Settings) -> Iterator[Case]:
    """One by one, by 500 against two ways into the bare table, and by COPY."""
    yield _single(bench, settings.amount(SINGLE))
    yield from _batch(bench, settings.amount(BATCH))
    yield _copy(bench, settings.amount(COPY))


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
            publish_one(connection, event)
        return perf_counter() - begun

    def peer() -> float:
        bench.settle()
        begun = perf_counter()
        for row in bare_rows(events):
            connection.execute(insert, row)
        return perf_counter() - begun

    return Case("publish_single", rows, 1, ours, peer, "one INSERT")


def publish_one(connection: Connection, event: Message) -> None:
    """One event by `publish`."""
    publish(
        connection,
        event.topic,
        event.payload,
        key=event.key,
        type=event.type,
        content_type=event.content_type,
        headers=event.headers,
    )


def _batch(bench: BenchDatabase, rows: int) -> Iterator[Case]:
    """A commit for each 500 events.

    One peer is psycopg's own way for many rows, executemany.  The other sends the columns as binary
    arrays like Penstock does, which nobody writes by hand: it shows what the log itself costs.
    """
    topic = bench.new_topic()
    events = messages(topic, rows)
    connection = bench.connection
    tables = [bench.new_bare_table(), bench.new_bare_table()]
    insert = _insert(tables[0])

    def ours() -> float:
        bench.settle()
        begun = perf_counter()
        for part in batches(rows, BATCH_SIZE):
            publish_batch(connection, events[part.start : part.stop])
        return perf_counter() - begun

    def rows_by_executemany() -> float:
        bench.settle()
        begun = perf_counter()
        for part in batches(rows, BATCH_SIZE):
            with connection.transaction(), connection.cursor() as cursor:
                cursor.executemany(insert, bare_rows(events[part.start : part.stop]))
        return perf_counter() - begun

    def rows_by_arrays() -> float:
        bench.settle()
        begun = perf_counter()
        for part in batches(rows, BATCH_SIZE):
            insert_arrays(connection, tables[1], events[part.start : part.stop])
        return perf_counter() - begun

    aim = Aim(ratio=0.7)
    yield Case(
        "publish_batch_500", rows, BATCH_SIZE, ours, rows_by_executemany, "executemany of 500", aim
    )
    yield Case(
        "publish_batch_500_arrays", rows, BATCH_SIZE, ours, rows_by_arrays, "the same arrays", aim
    )


def insert_arrays(connection: Connection, table: str, events: Sequence[Message]) -> None:
    """The rows of a batch into the bare table by one INSERT over binary arrays."""
    arrays = packed(
        connection,
        ids=("uuid", uuid7s(len(events))),
        keys=("text", [event.key for event in events]),
        types=("text", [event.type for event in events]),
        content_types=("text", [event.content_type for event in events]),
        headers=("text", [json.dumps(event.headers) for event in events]),
        payloads=("bytea", [event.payload for event in events]),
    )
    statement = (
        f"INSERT INTO {table} ({', '.join(BARE_COLUMNS)}) "
        "SELECT i.id, i.key, i.type, i.content_type, i.headers::jsonb, i.payload FROM unnest("
        "%(ids)s::uuid[], %(keys)s::text[], %(types)s::text[], %(content_types)s::text[], "
        "%(headers)s::text[], %(payloads)s::bytea[]"
        ") AS i (id, key, type, content_type, headers, payload)"
    )
    connection.execute(statement.encode(), arrays)


def _copy(bench: BenchDatabase, rows: int) -> Case:
    """All events in one transaction by COPY."""
    topic, table = bench.new_topic(), bench.new_bare_table()
    events = messages(topic, rows)
    connection = bench.connection

    def ours() -> float:
        bench.settle()
        begun = perf_counter()
        with connection.transaction():
            publish_bulk(connection, events)
        return perf_counter() - begun

    def peer() -> float:
        bench.settle()
        begun = perf_counter()
        with connection.transaction():
            copy_bare(connection, table, events)
        return perf_counter() - begun

    return Case("publish_copy", rows, rows, ours, peer, "COPY", Aim(ratio=0.5))


def copy_bare(connection: Connection, table: str, events: Sequence[Message]) -> None:
    """The rows of the bare table by binary COPY."""
    statement = f"COPY {table} ({', '.join(BARE_COLUMNS)}) FROM STDIN (FORMAT BINARY)"
    with connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        copy.set_types(COPY_TYPES)
        for row in copy_rows(events):
            copy.write_row(row)


def _insert(table: str) -> str:
    places = ", ".join(["%s"] * len(BARE_COLUMNS))
    return f"INSERT INTO {table} ({', '.join(BARE_COLUMNS)}) VALUES ({places})"
