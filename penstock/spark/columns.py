"""The columns of an event in Spark: their types for Spark and for Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.archive.format import SPARK_SCHEMA as TABLE_SPARK_SCHEMA, TABLE_SCHEMA
from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: Every column that a reader can have, in the order of ``SELECT *``: the archive's, and the topic.
COLUMNS: dict[str, pa.DataType] = {
    "topic": pa.string(),
    **{field.name: field.type for field in TABLE_SCHEMA},
}

#: Those that are the same for all rows of a range, so that they are not read.
OF_RANGE = ("topic", "partition", "log_epoch")

#: The same as Spark writes it.
SPARK_SCHEMA = f"`topic` string, {TABLE_SPARK_SCHEMA}"

_SPARK_TYPES = dict(each.strip("`").split("` ") for each in SPARK_SCHEMA.split(", "))


@dataclass(frozen=True, slots=True)
class ReadColumns:
    """Which columns of a topic's events are read, and which types of event (None: all)."""

    topic: str
    columns: tuple[str, ...]
    types: tuple[str, ...] | None = None

    @property
    def read(self) -> tuple[str, ...]:
        """The columns that the database is asked for."""
        return tuple(name for name in self.columns if name not in OF_RANGE)


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """The Arrow schema that Spark expects for these columns."""
    return pa.schema([(name, COLUMNS[name]) for name in names])


def chosen(schema: StructType, *, decoded: Sequence[str] = ()) -> tuple[str, ...]:
    """The columns of a schema that the user gives; each has to be one of ours, with its type.

    Those of ``decoded`` are made from the payload, and are not looked at here.
    """
    names = schema.fieldNames()
    for field in schema.fields:
        if names.count(field.name) > 1:
            raise InvalidArgument(
                f"the schema has the column {field.name[:80]!r} twice", hint="name each column once"
            )
        if field.name in decoded:
            continue
        given = field.dataType.simpleString()
        if field.name not in COLUMNS:
            raise InvalidArgument(
                f"the schema has a column {field.name[:80]!r}, which events do not have",
                hint=f"choose from: {', '.join(COLUMNS)}",
            )
        # Spark itself calls the type with a zone "timestamp".
        if given.replace("timestamp", "timestamp_ltz") != _SPARK_TYPES[field.name]:
            raise InvalidArgument(
                f"the schema has the column {field.name} as {given[:80]}",
                hint=f"it is {_SPARK_TYPES[field.name]}; cast it after reading",
            )
    return tuple(name for name in names if name not in decoded)
