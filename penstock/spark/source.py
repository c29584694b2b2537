"""The data source itself: what Spark asks first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from penstock.spark import FORMAT
from penstock.spark.batch import BatchReader
from penstock.spark.columns import SPARK_SCHEMA, chosen
from penstock.spark.options import read_options
from penstock.spark.stream import StreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class PenstockSource(DataSource):
    """``spark.read.format("penstock")``."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> str:
        """The columns of an event.  Bad options are refused here, when the read is loaded."""
        read_options(self.options)
        return SPARK_SCHEMA

    def reader(self, schema: StructType) -> BatchReader:
        """The reader of a batch."""
        return BatchReader(read_options(self.options), chosen(schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        """The reader of a stream."""
        return StreamReader(read_options(self.options, streaming=True), chosen(schema))
