"""Reading a batch: the ranges are planned in the driver, and each task reads its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.errors import BelowLowSequence
from penstock.spark.cold_ranges import BELOW_LOW_HINT, Archive, read_cold_range
from penstock.spark.columns import ReadColumns
from penstock.spark.decoding import Decoded
from penstock.spark.hot_ranges import RangeDropped, read_hot_range, require_same_topic
from penstock.spark.options import ReadOptions
from penstock.spark.planning import batch_ranges
from penstock.spark.ranges import SourceRange, cut

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.database import Connection


class RangesInput(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: list[SourceRange]) -> None:
        """Carry the ranges to the task."""
        super().__init__(None)
        self.ranges = tuple(ranges)


class BatchReader(DataSourceReader):
    """Reads a part of a topic's log."""

    def __init__(
        self, options: ReadOptions, columns: tuple[str, ...], *, decoded: Decoded | None = None
    ) -> None:
        """Keep what to read; nothing is opened here."""
        self._options = options
        self._wanted = ReadColumns(options.topic, columns, options.types)
        self._decoded = decoded

    def partitions(self) -> list[InputPartition]:
        """One input partition for each task; Spark keeps them for the data frame."""
        options = self._options
        with closing(options.address.connect()) as connection:
            ranges = batch_ranges(connection, options)
        return inputs(ranges, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events of a task."""
        events = read_input(Archive.of(self._options), self._wanted, partition)
        return events if self._decoded is None else self._decoded.batches(events)


def inputs(ranges: list[SourceRange], options: ReadOptions) -> list[InputPartition]:
    """The ranges as what tasks get."""
    tasks = cut(ranges, options.events_per_task, options.max_connections)
    return [RangesInput(each) for each in tasks]


def read_input(
    archive: Archive, wanted: ReadColumns, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The events of an input partition; Spark makes one of its own when there is nothing."""
    if not isinstance(partition, RangesInput):
        return
    with closing(archive.address.connect()) as connection:
        require_same_topic(connection, wanted.topic, partition.ranges)
        for each in partition.ranges:
            yield from _read_range(connection, archive, wanted, each)
        require_same_topic(connection, wanted.topic, partition.ranges)


def _read_range(
    connection: Connection, archive: Archive, wanted: ReadColumns, source: SourceRange
) -> Iterator[pa.RecordBatch]:
    """A range from where it was planned; what retention has dropped since, from the archive."""
    if source.is_cold:
        yield from read_cold_range(archive, wanted, source)
        return
    try:
        yield from read_hot_range(connection, wanted, source)
    except RangeDropped as dropped:
        if not archive.targets:
            raise BelowLowSequence(dropped.error.message, hint=BELOW_LOW_HINT) from None
        yield from read_cold_range(archive, wanted, dropped.rest)
