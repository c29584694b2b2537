"""Events that the database still holds, as Arrow batches: one reader for FETCH, archive and Spark.

The log never changes and has no gaps, so a range is read page by page, each page in a transaction
of its own.  A page is read whole before its first row is passed on: however long the caller takes
for the rows, no snapshot is held that would keep the database from cleaning up.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa

from penstock import database
from penstock.archive.format import FILE_SCHEMA, of_numbers, with_epoch
from penstock.database import catalog, config

#: The first page of a range is small: nobody knows yet how large its events are.
_FIRST_ROWS = 64
_MOST_ROWS = 10_000
#: A page ends when its payloads come to so much, however many events were asked for.
_MOST_BYTES = 16 << 20
#: What is read from the socket at once: with payloads at their limit of 1 MiB that many MiB.
_ROWS_PER_READ = 64
#: What a page's growth is limited to, so that a run of small events does not lead to a huge page.
_GROWTH = 8
#: Microseconds from 1970 to 2000, where PostgreSQL begins to count.
_POSTGRES_EPOCH = 946_684_800_000_000
_TIMES = ("created_at", "sequenced_at")
_COLUMNS = tuple(FILE_SCHEMA.names)


class Page(NamedTuple):
    """A part of a range: the wanted rows, and how many events it has of all types."""

    rows: pa.RecordBatch
    events: int


def read_hot(
    connection: Any, topic: str, partition: int, *, log_epoch: int, first: int, last: int
) -> Iterator[pa.RecordBatch]:
    """The events of a range, in order.  BelowLowSequence when they are no longer there."""
    for page in read_pages(connection, topic, partition, first, last):
        yield with_epoch(page.rows, partition, log_epoch)


def read_pages(
    connection: Any,
    topic: str,
    partition: int,
    first: int,
    last: int,
    *,
    columns: Sequence[str] = _COLUMNS,
    types: Sequence[str] | None = None,
) -> Iterator[Page]:
    """The same with the wanted columns and types of event only.  It ends early with the log."""
    rows = _FIRST_ROWS
    while first <= last:
        binds = {
            "topic": topic,
            "partition": partition,
            "from_sequence": first,
            "max_events": min(rows, last - first + 1),
        }
        page = _page(database.driver_connection(connection), columns, types, binds)
        if not page.events:
            return
        yield page
        first += page.events
        rows = _next_rows(rows, page.events, page.rows.nbytes)


def _next_rows(rows: int, events: int, size: int) -> int:
    """The next page's length, so that it stays below the bound of bytes."""
    fitting = _MOST_BYTES * events // max(size, 1)
    return max(1, min(_MOST_ROWS, rows * _GROWTH, fitting))


def _page(
    connection: Any, columns: Sequence[str], types: Sequence[str] | None, binds: dict[str, Any]
) -> Page:
    if database.dialect_of(connection) == "postgres":
        return _postgres_page(connection, columns, types, binds)
    return _mysql_page(connection, columns, types, binds)


def _postgres_page(
    connection: Any, columns: Sequence[str], types: Sequence[str] | None, binds: dict[str, Any]
) -> Page:
    """Only the columns that are wanted leave the server, and only the rows of the wanted types.

    A row without values stands for each event of another type, because all have to be counted.
    """
    fetch = catalog.statement("postgres", "archive_fetch", config.schema_name()).text
    chosen = [f"f.{name}" for name in columns]
    if types is not None:
        chosen = [f"CASE WHEN f.type = ANY (%(types)s) THEN {each} END" for each in chosen]
        chosen.append("f.type = ANY (%(types)s)")
        binds = binds | {"types": list(types)}
    query = f"SELECT {', '.join(chosen) or 'true'} FROM ({fetch}) AS f"
    with database.typed_errors(), _streamed(connection, query, binds) as found:
        rows = _fitting(found, columns)
    count = len(rows)
    if types is not None:
        rows = [row[:-1] for row in rows if row[-1]]
    return Page(_batch(columns, rows), count)


@contextmanager
def _streamed(
    connection: Any, query: str, binds: dict[str, Any]
) -> Generator[Iterator[tuple[Any, ...]], None, None]:
    """The rows of a query as they come.  The end of the block cancels what was not read."""
    from psycopg.types.string import ByteaBinaryLoader

    with connection.cursor(binary=True) as cursor:
        # Eight bytes as they come; a datetime for each value would cost more than all the rest.
        cursor.adapters.register_loader("timestamptz", ByteaBinaryLoader)
        with closing(cursor.stream(query, binds, size=_ROWS_PER_READ)) as rows:
            yield rows


def _mysql_page(
    connection: Any, columns: Sequence[str], types: Sequence[str] | None, binds: dict[str, Any]
) -> Page:
    """A procedure returns all columns; those that are not wanted are left out here."""
    streamed: Any = database.stream(
        connection, "archive_fetch", rows_at_once=_ROWS_PER_READ, **binds
    )
    with closing(streamed) as found:
        rows = _fitting(found, _COLUMNS)
    count = len(rows)
    if types is not None:
        at = _COLUMNS.index("type")
        rows = [row for row in rows if row[at] in types]
    places = [_COLUMNS.index(name) for name in columns]
    return Page(_batch(columns, [tuple(row[at] for at in places) for row in rows]), count)


def _fitting(found: Iterator[tuple[Any, ...]], columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """The rows up to the bound of bytes: the last page may have had much smaller ones."""
    if "payload" not in columns:
        return list(found)
    at = columns.index("payload")
    rows: list[tuple[Any, ...]] = []
    size = 0
    while size < _MOST_BYTES and (more := list(islice(found, _ROWS_PER_READ))):
        rows += more
        size += sum(len(row[at] or b"") for row in more)
    return rows


def _batch(names: Sequence[str], rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    if not names:  # Arrow takes the number of rows from a column
        return pa.RecordBatch.from_arrays([pa.nulls(len(rows))], names=["nothing"])
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    schema = pa.schema([FILE_SCHEMA.field(name) for name in names])
    return pa.RecordBatch.from_arrays(
        [_column(name, values) for name, values in zip(names, columns, strict=True)], schema=schema
    )


def _column(name: str, values: Sequence[Any]) -> pa.Array[Any]:
    kind: pa.DataType = FILE_SCHEMA.field(name).type
    if name in _TIMES and values and isinstance(values[0], bytes):
        import pyarrow.compute as pc  # who reads the archive only does not pay for it

        counts = array("q", b"".join(values))
        if sys.byteorder == "little":
            counts.byteswap()
        return pc.add(of_numbers(counts, pa.int64()), _POSTGRES_EPOCH).view(kind)
    return pa.array(values, kind)
