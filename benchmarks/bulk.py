"""What only psycopg can do: columns as binary arrays, COPY, Arrow tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

from benchmarks.bench_database import BenchDatabase
from benchmarks.events import arrow_table, copy_rows, messages, table_rows
from benchmarks.measure import Aim, Case, Settings, batches
from benchmarks.publish import AIM, BATCH, BATCH_SIZE, publishing
from penstock.publishing.bulk import publish_bulk
from penstock.publishing.columns import packed
from penstock.publishing.event_ids import uuid7s
from penstock.publishing.tables import publish_table
from penstock.records import Message

COPY = 50_000


def cases(bench: BenchDatabase, settings: Settings) -> Iterator[Case]:
    """500 at a time against the same arrays in an INSERT: what the log itself costs.

    Few applications write such an INSERT by hand. Then all events in one transaction, against COPY:
    from messages, and from an Arrow table.
    """
    rows = settings.amount(BATCH)
    yield Case(
        "publish_batch_500_arrays", rows, BATCH_SIZE, publishing(bench, rows),
        _by_arrays(bench, rows), "the same arrays", AIM,
    )  # fmt: skip
    yield _copy(bench, settings.amount(COPY))
    yield _table(bench, settings.amount(COPY))


def _by_arrays(bench: BenchDatabase, rows: int) -> Callable[[], float]:
    table, events = bench.new_bare_table(), messages("", rows)

    def run() -> float:
        bench.settle()
        begun = perf_counter()
        for part in batches(rows, BATCH_SIZE):
            insert_arrays(bench, table, events[part.start : part.stop])
        return perf_counter() - begun

    return run


def insert_arrays(bench: BenchDatabase, table: str, events: Sequence[Message]) -> None:
    """Put a batch into the bare table by one INSERT over binary arrays."""
    arrays = packed(
        bench.connection,
        ids=("uuid", uuid7s(len(events))),
        keys=("text", [event.key for event in events]),
        types=("text", [event.type for event in events]),
        content_types=("text", [event.content_type for event in events]),
        headers=("text", [json.dumps(event.headers) for event in events]),
        payloads=("bytea", [event.payload for event in events]),
    )
    statement = (
        f"INSERT INTO {table} ({bench.bare_columns}) "
        "SELECT i.id, i.key, i.type, i.content_type, i.headers::jsonb, i.payload FROM unnest("
        "%(ids)s::uuid[], %(keys)s::text[], %(types)s::text[], %(content_types)s::text[], "
        "%(headers)s::text[], %(payloads)s::bytea[]"
        ") AS i (id, key, type, content_type, headers, payload)"
    )
    bench.connection.execute(statement, arrays)


def _copy(bench: BenchDatabase, rows: int) -> Case:
    topic, table = bench.new_topic(), bench.new_bare_table()
    events = messages(topic, rows)

    def ours() -> float:
        bench.settle()
        begun = perf_counter()
        with bench.transaction():
            publish_bulk(bench.connection, events)
        return perf_counter() - begun

    def peer() -> float:
        bench.settle()
        begun = perf_counter()
        with bench.transaction():
            bench.copy_bare(table, copy_rows(events))
        return perf_counter() - begun

    return Case("publish_copy", rows, rows, ours, peer, "COPY", Aim(ratio=0.5))


def _table(bench: BenchDatabase, rows: int) -> Case:
    topic, table = bench.new_topic(), bench.new_bare_table()
    given = arrow_table(messages(topic, rows))

    def ours() -> float:
        bench.settle()
        begun = perf_counter()
        with bench.transaction():
            publish_table(bench.connection, topic, given)
        return perf_counter() - begun

    def peer() -> float:
        bench.settle()
        begun = perf_counter()
        with bench.transaction():
            bench.copy_bare(table, table_rows(given))
        return perf_counter() - begun

    return Case("publish_table", rows, rows, ours, peer, "COPY of the same table", Aim(ratio=0.8))
