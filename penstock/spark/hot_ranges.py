"""Reading a range of the log from the database, with the columns that Spark expects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.archive.database_reader import read_pages
from penstock.errors import BelowLowSequence, TopicNotFound
from penstock.spark.columns import COLUMNS, ReadColumns, arrow_schema
from penstock.spark.ranges import SourceRange, require_whole
from penstock.topics.names import partition_ranges

if TYPE_CHECKING:
    from penstock.database import Connection


class RangeDropped(Exception):
    """Retention has dropped what is left of a range since it was planned."""

    def __init__(self, rest: SourceRange, error: BelowLowSequence) -> None:
        """What is left, and what the database has said."""
        super().__init__(str(error))
        self.rest = rest
        self.error = error


def require_same_topic(connection: Connection, topic: str, ranges: Sequence[SourceRange]) -> None:
    """TopicNotFound when the address is by now that of another topic."""
    present = {each.partition: each.partition_id for each in partition_ranges(connection, topic)}
    if any(present.get(each.partition) != each.partition_id for each in ranges):
        raise TopicNotFound(
            f'the topic "{topic}" was deleted, moved or replaced after this read was planned',
            hint="make the data frame again, with the topic's present address",
        )


def read_hot_range(
    connection: Connection, wanted: ReadColumns, source: SourceRange
) -> Iterator[pa.RecordBatch]:
    """The events of a range, in order.  RangeDropped when they are no longer there."""
    position = source.first
    pages = read_pages(
        connection, wanted.topic, source.partition, source.first, source.last,
        columns=wanted.read, types=wanted.types,
    )  # fmt: skip
    try:
        for page in pages:
            if page.rows.num_rows:
                yield _with_range(page.rows, wanted, source)
            position += page.events
    except BelowLowSequence as error:
        raise RangeDropped(replace(source, first=position), error) from error
    require_whole(source, position)


def _with_range(batch: pa.RecordBatch, wanted: ReadColumns, source: SourceRange) -> pa.RecordBatch:
    """The columns in the order that is wanted, with those that are the same for the range."""
    same = {"topic": wanted.topic, "partition": source.partition, "log_epoch": None}
    columns: list[pa.Array[Any]] = [
        pa.array([same[name]] * batch.num_rows, COLUMNS[name])
        if name in same
        else batch.column(name)
        for name in wanted.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(wanted.columns))
