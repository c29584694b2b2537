"""The columns of an event in Spark: their types for Spark and for Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_TIME = pa.timestamp("us", tz="UTC")

#: Every column that a reader can have, in the order of ``SELECT *``.
COLUMNS: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "log_epoch": pa.int32(),
    "sequence": pa.int64(),
    "event_id": pa.string(),
    "key": pa.string(),
    "type": pa.string(),
    "content_type": pa.string(),
    "headers": pa.string(),
    "payload": pa.binary(),
    "created_at": _TIME,
    "sequenced_at": _TIME,
    "history": pa.int32(),
}

#: Those that are the same for all rows of a range, so that they are not read.
OF_RANGE = ("topic", "partition", "log_epoch")

_SPARK_TYPES = {
    pa.string(): "string",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.binary(): "binary",
    _TIME: "timestamp",
}

#: The same as Spark writes it.
SPARK_SCHEMA = ", ".join(f"`{name}` {_SPARK_TYPES[kind]}" for name, kind in COLUMNS.items())


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """The Arrow schema that Spark expects for these columns."""
    return pa.schema([(name, COLUMNS[name]) for name in names])


def chosen(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema that the user gives; each has to be one of ours, with its type."""
    for field in schema.fields:
        kind = COLUMNS.get(field.name)
        given = field.dataType.simpleString()
        if kind is None:
            raise InvalidArgument(
                f"the schema has a column {field.name[:80]!r}, which events do not have",
                hint=f"choose from: {', '.join(COLUMNS)}",
            )
        if given != _SPARK_TYPES[kind]:
            raise InvalidArgument(
                f"the schema has the column {field.name} as {given[:80]}",
                hint=f"it is {_SPARK_TYPES[kind]}; cast it after reading",
            )
    return tuple(schema.fieldNames())
