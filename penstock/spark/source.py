"""The data source itself: what Spark asks first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from penstock.spark.batch import BatchReader
from penstock.spark.columns import SPARK_SCHEMA, chosen
from penstock.spark.decoding import Decoded, decoded, with_decoded
from penstock.spark.options import ReadOptions, read_options, write_options
from penstock.spark.sampling import value_schema
from penstock.spark.schemas import parse_schema
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

    def schema(self) -> str | StructType:
        """The columns of an event.  Bad options are refused here, when the read is loaded."""
        options = read_options(self.options)
        if options.decode is None:
            return SPARK_SCHEMA
        return with_decoded(parse_schema(SPARK_SCHEMA), value_schema(options, options.decode))

    def reader(self, schema: StructType) -> BatchReader:
        """The reader of a batch."""
        options = read_options(self.options)
        columns, found = _columns(options, schema)
        return BatchReader(options, columns, decoded=found)

    def streamReader(self, schema: StructType) -> StreamReader:
        """The reader of a stream."""
        options = read_options(self.options, streaming=True)
        columns, found = _columns(options, schema)
        return StreamReader(options, columns, decoded=found)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """The writer of a batch."""
        return BatchWriter(write_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """The writer of a stream."""
        options = write_options(self.options, streaming=True)
        return StreamWriter(options, schema, overwrite=overwrite)


def _columns(options: ReadOptions, schema: StructType) -> tuple[tuple[str, ...], Decoded | None]:
    """The columns to read, and what is made of the payloads."""
    if options.decode is None:
        return chosen(schema), None
    found = decoded(options.topic, options.decode, schema)
    return found.read, found
