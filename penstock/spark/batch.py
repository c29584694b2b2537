"""Reading a batch: the ranges are planned in the driver, and each task reads its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.spark.hot import Wanted, read_ranges
from penstock.spark.options import Address, ReadOptions
from penstock.spark.planning import batch_ranges
from penstock.spark.ranges import Range, cut

if TYPE_CHECKING:
    import pyarrow as pa


class RangesInput(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: list[Range]) -> None:
        """Carry the ranges to the task."""
        super().__init__(None)
        self.ranges = tuple(ranges)


class BatchReader(DataSourceReader):
    """Reads a part of a topic's log."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        """Keep what to read; nothing is opened here."""
        self._options = options
        self._wanted = Wanted(options.topic, columns, options.types)

    def partitions(self) -> list[InputPartition]:
        """One input partition for each task; Spark keeps them for the data frame."""
        options = self._options
        with closing(options.address.connect()) as connection:
            ranges = batch_ranges(connection, options)
        return inputs(ranges, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events of a task."""
        return read_input(self._options.address, self._wanted, partition)


def inputs(ranges: list[Range], options: ReadOptions) -> list[InputPartition]:
    """The ranges as what tasks get."""
    tasks = cut(ranges, options.events_per_task, options.max_connections)
    return [RangesInput(each) for each in tasks]


def read_input(
    address: Address, wanted: Wanted, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The events of an input partition; Spark makes one of its own when there is nothing."""
    if not isinstance(partition, RangesInput):
        return
    with closing(address.connect()) as connection:
        yield from read_ranges(connection, wanted, partition.ranges)
