"""A data source that takes filters and returns all of them, as Spark's documentation allows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    Filter,
    GreaterThan,
    InputPartition,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class PushingSource(DataSource):
    """Ten numbers."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "pushing_numbers"

    def schema(self) -> str:
        """One column."""
        return "n int"

    def reader(self, schema: StructType) -> PushingReader:
        """The reader."""
        return PushingReader()


class PushingReader(DataSourceReader):
    """Reads the numbers above a bound that a filter has set."""

    def __init__(self) -> None:
        """No bound yet."""
        self._above = -1

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """Take ``n > x``, and let Spark apply it as well."""
        for each in filters:
            if isinstance(each, GreaterThan):
                self._above = each.value
        return filters

    def partitions(self) -> list[InputPartition]:
        """One task."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        """The numbers."""
        yield from ((n,) for n in range(self._above + 1, 10))
