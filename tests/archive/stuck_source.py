"""A Spark data source whose task never ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType


class StuckSource(DataSource):
    """``spark.read.format("stuck")``."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "stuck"

    def schema(self) -> str:
        """One column."""
        return "number int"

    def reader(self, schema: StructType) -> StuckReader:
        """The reader."""
        return StuckReader()


class StuckReader(DataSourceReader):
    """Waits in its only task."""

    def partitions(self) -> Sequence[InputPartition]:
        """One."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Never."""
        threading.Event().wait()
        yield (1,)
