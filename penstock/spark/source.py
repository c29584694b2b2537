"""The data source itself: what Spark asks first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from penstock.spark.batch import BatchReader
from penstock.spark.columns import SPARK_SCHEMA, chosen
from penstock.spark.options import read_options, write_options
from penstock.spark.stream import StreamReader
from penstock.spark.writing import BatchWriter, StreamWriter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class PenstockSource(DataSource):
    """``spark.read.format("penstock")``."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "penstock"

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

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """The writer of a batch."""
        return BatchWriter(write_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """The writer of a stream."""
        options = write_options(self.options, streaming=True)
        return StreamWriter(options, schema, overwrite=overwrite)
