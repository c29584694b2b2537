"""Reading a range of the log from the database, as Arrow batches.

The log never changes and has no gaps, so a range is read page by page, each page in a transaction
of its own.  A page is read whole before its first row is passed on: however long Spark takes for
the rows, no snapshot is held that would keep the database from cleaning up.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock import database
from penstock.database import catalog, config
from penstock.errors import BelowLowSequence, LogBehind, TopicNotFound
from penstock.spark.columns import COLUMNS, OF_RANGE, Wanted, arrow_schema
from penstock.spark.ranges import Range
from penstock.topics.names import partition_ranges

if TYPE_CHECKING:
    from penstock.database import Connection

#: The first page of a range is small: nobody knows yet how large its events are.
_FIRST_PAGE = 64
_MOST_EVENTS, _MOST_BYTES = 10_000, 16 << 20
#: What a page's growth is limited to, so that a run of small events does not lead to a huge page.
_GROWTH = 8
#: Microseconds from 1970 to 2000, where PostgreSQL begins to count.
_POSTGRES_EPOCH = 946_684_800_000_000
_TIMES = ("created_at", "sequenced_at")


class RangeDropped(Exception):
    """Retention has dropped what is left of a range since it was planned."""

    def __init__(self, rest: Range, error: BelowLowSequence) -> None:
        """What is left, and what the database has said."""
        super().__init__(str(error))
        self.rest = rest
        self.error = error


def require_same_topic(connection: Connection, topic: str, ranges: Sequence[Range]) -> None:
    """TopicNotFound when the address is by now that of another topic."""
    present = {each.partition: each.partition_id for each in partition_ranges(connection, topic)}
    if any(present.get(each.partition) != each.partition_id for each in ranges):
        raise TopicNotFound(
            f'the topic "{topic}" was deleted, moved or replaced after this read was planned',
            hint="make the data frame again, with the topic's present address",
        )


def read_hot(connection: Connection, wanted: Wanted, source: Range) -> Iterator[pa.RecordBatch]:
    """The events of a range, in order.  RangeDropped when they are no longer there."""
    position, page = source.first, _FIRST_PAGE
    while position <= source.last:
        count = min(page, source.last - position + 1)
        binds = {
            "topic": wanted.topic,
            "partition": source.partition,
            "from_sequence": position,
            "max_events": count,
        }
        try:
            batch, found = _page(connection, wanted, binds)
        except BelowLowSequence as error:
            raise RangeDropped(replace(source, first=position), error) from error
        if found != count:
            raise LogBehind(
                f"partition {source.partition} has {found} of the {count} events from sequence"
                f" {position} on that were there when this read was planned",
                hint="the log was restored to an earlier state; make the data frame again",
            )
        if batch.num_rows:
            yield _with_range(batch, wanted, source)
        position += count
        page = _next_page(page, count, batch.nbytes)


def _next_page(page: int, events: int, size: int) -> int:
    """The next page's length, so that it stays below the bound of bytes."""
    fitting = _MOST_BYTES * events // max(size, 1)
    return max(1, min(_MOST_EVENTS, page * _GROWTH, fitting))


def _page(
    connection: Connection, wanted: Wanted, binds: dict[str, Any]
) -> tuple[pa.RecordBatch, int]:
    """The rows of a page, and how many events it has of all types."""
    with database.typed_errors():
        if database.dialect_of(connection) == "postgres":
            return _postgres_page(connection, wanted, binds)
        return _mysql_page(connection, wanted, binds)


def _postgres_page(
    connection: Connection, wanted: Wanted, binds: dict[str, Any]
) -> tuple[pa.RecordBatch, int]:
    """Only the columns that are wanted leave the server, and only the rows of the wanted types.

    A row without values stands for each event of another type, because all have to be counted.
    """
    from psycopg.types.string import ByteaBinaryLoader

    names = wanted.read
    fetch = catalog.statement("postgres", "archive_fetch", config.schema_name()).text
    columns = [f"f.{name}" for name in names]
    if wanted.types is not None:
        columns = [f"CASE WHEN f.type = ANY (%(types)s) THEN {each} END" for each in columns]
        columns.append("f.type = ANY (%(types)s)")
        binds = binds | {"types": list(wanted.types)}
    query = f"SELECT {', '.join(columns) or 'true'} FROM ({fetch}) AS f ORDER BY f.sequence"
    with connection.cursor(binary=True) as cursor:
        # Eight bytes as they come; a datetime for each value would cost more than all the rest.
        cursor.adapters.register_loader("timestamptz", ByteaBinaryLoader)
        rows = cursor.execute(query, binds, prepare=True).fetchall()
    count = len(rows)
    if wanted.types is not None:
        rows = [row[:-1] for row in rows if row[-1]]
    return _batch(names, rows), count


def _mysql_page(
    connection: Connection, wanted: Wanted, binds: dict[str, Any]
) -> tuple[pa.RecordBatch, int]:
    """A procedure returns all columns; those that are not wanted are left out here."""
    rows = database.call_events(connection, "archive_fetch", **binds)
    count = len(rows)
    if wanted.types is not None:
        at = _FETCHED.index("type")
        rows = [row for row in rows if row[at] in wanted.types]
    places = [_FETCHED.index(name) for name in wanted.read]
    return _batch(wanted.read, [tuple(row[at] for at in places) for row in rows]), count


_FETCHED = tuple(name for name in COLUMNS if name not in OF_RANGE)


def _batch(names: Sequence[str], rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    if not names:  # Arrow takes the number of rows from a column
        return pa.RecordBatch.from_arrays([pa.nulls(len(rows))], names=["nothing"])
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    return pa.RecordBatch.from_arrays(
        [_column(name, values) for name, values in zip(names, columns, strict=True)],
        schema=arrow_schema(names),
    )


def _column(name: str, values: Sequence[Any]) -> pa.Array[Any]:
    if name in _TIMES and values and isinstance(values[0], bytes):
        counts = array("q", b"".join(values))
        if sys.byteorder == "little":
            counts.byteswap()
        since_2000 = pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(counts)])
        return pc.add(since_2000, _POSTGRES_EPOCH).cast(COLUMNS[name])
    return pa.array(values, COLUMNS[name])


def _with_range(batch: pa.RecordBatch, wanted: Wanted, source: Range) -> pa.RecordBatch:
    """The columns in the order that is wanted, with those that are the same for the range."""
    same = {"topic": wanted.topic, "partition": source.partition, "log_epoch": None}
    columns: list[pa.Array[Any]] = [
        pa.array([same[name]] * batch.num_rows, COLUMNS[name])
        if name in same
        else batch.column(name)
        for name in wanted.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(wanted.columns))
