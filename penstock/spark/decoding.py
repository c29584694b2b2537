"""Payloads as columns: what a task makes of the events that it has read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import BinaryType, StructType

from penstock.errors import InvalidArgument, PayloadMisfit
from penstock.spark.columns import COLUMNS, chosen
from penstock.spark.json_values import MISFIT, Convert
from penstock.spark.options import DROPMALFORMED, FAILFAST, Decode
from penstock.spark.payloads import Payloads, given_schema, payloads
from penstock.spark.schemas import checked

#: The columns that decoding adds: the payload's fields, and a payload that does not fit.
VALUE, MALFORMED = "value", "_malformed"
#: What an error names an event by.
_PLACE = ("partition", "sequence")
#: What pyarrow raises for a value that its type cannot have.
_NOT_TAKEN = (pa.ArrowException, ValueError, TypeError, OverflowError)


def with_decoded(log: StructType, value: StructType) -> StructType:
    """The columns of an event, and those of its decoded payload."""
    return StructType([*log.fields]).add(VALUE, value).add(MALFORMED, BinaryType())


def decoded(topic: str, options: Decode, schema: StructType) -> Decoded:
    """What a data frame of this schema has; InvalidArgument when it cannot have that."""
    log = chosen(schema, decoded=(VALUE, MALFORMED))
    given = {field.name: field.dataType for field in schema.fields}
    value = given.get(VALUE)
    if not isinstance(value, StructType):
        raise InvalidArgument(
            f"decode={options.kind} and a schema whose column value is missing or no struct",
            hint="add it, like value struct<id: bigint>, or leave the option decode out",
        )
    value = checked(value)
    if given_schema(options) not in (None, value):
        raise InvalidArgument(
            "the column value of the schema is not what decodeSchema says",
            hint="leave decodeSchema out, or give value the same type",
        )
    if not isinstance(given.get(MALFORMED, BinaryType()), BinaryType):
        raise InvalidArgument(
            f"the schema has the column {MALFORMED} with another type", hint="it is binary"
        )
    return Decoded(topic, log, tuple(schema.fieldNames()), value, options)


@dataclass(frozen=True, slots=True)
class Decoded:
    """The columns of a data frame, some of which are made from the payload."""

    topic: str
    #: Those of the log, and all in their order.
    log: tuple[str, ...]
    columns: tuple[str, ...]
    value: StructType
    decode: Decode

    @property
    def read(self) -> tuple[str, ...]:
        """The columns of the log that are needed."""
        return tuple(dict.fromkeys((*self.log, *_PLACE, "payload")))

    def batches(self, events: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The events with their decoded payloads."""
        # They are made here, in the task: a converter does not travel.
        kind = payloads(self.decode, self.value)
        convert = kind.converter(self.value)
        types: dict[str, pa.DataType] = {
            **COLUMNS,
            VALUE: to_arrow_type(self.value, timezone="UTC"),
            MALFORMED: pa.binary(),
        }
        schema = pa.schema([(name, types[name]) for name in self.columns])
        for batch in events:
            values: list[Any] = []
            malformed: list[bytes | None] = []
            for row, payload in enumerate(batch.column("payload").to_pylist()):
                bad: list[str] = []
                value = _value(payload, kind, convert, bad)
                if bad and self.decode.mode == FAILFAST:
                    raise self._misfit(batch, row, bad)
                values.append(value)
                malformed.append(payload if bad else None)
            yield self._made(batch, schema, values, malformed)

    def _made(
        self,
        batch: pa.RecordBatch,
        schema: pa.Schema,
        values: list[Any],
        malformed: list[bytes | None],
    ) -> pa.RecordBatch:
        # Before the other columns: it may find payloads that do not fit.
        value = self._array(batch, schema.field(VALUE).type, values, malformed)
        columns: list[pa.Array[Any]] = []
        for field in schema:
            if field.name == VALUE:
                columns.append(value)
            elif field.name == MALFORMED:
                columns.append(pa.array(malformed, field.type))
            else:
                columns.append(batch.column(field.name))
        found = pa.RecordBatch.from_arrays(columns, schema=schema)
        if self.decode.mode != DROPMALFORMED:
            return found
        return found.filter(pa.array([each is None for each in malformed], pa.bool_()))

    def _array(
        self,
        batch: pa.RecordBatch,
        kind: pa.DataType,
        values: list[Any],
        malformed: list[bytes | None],
    ) -> pa.Array[Any]:
        """The values for Arrow.  One that it does not take is a misfit, with its place."""
        try:
            return pa.array(values, kind)
        except _NOT_TAKEN:
            for row, value in enumerate(values):
                try:
                    pa.array([value], kind)
                except _NOT_TAKEN:
                    if self.decode.mode == FAILFAST:
                        raise self._misfit(batch, row, ["a value out of range"]) from None
                    values[row], malformed[row] = None, batch.column("payload")[row].as_py()
            return pa.array(values, kind)

    def _misfit(self, batch: pa.RecordBatch, row: int, bad: list[str]) -> PayloadMisfit:
        partition, sequence = (batch.column(name)[row].as_py() for name in _PLACE)
        return PayloadMisfit(
            f"the payload of sequence {sequence} in partition {partition} of {self.topic} does not"
            f" fit the schema: {', '.join(dict.fromkeys(bad))}"[:500],
            hint="read with decodeMode=permissive, or give a schema that fits",
        )


def _value(payload: bytes | None, kind: Payloads, convert: Convert, bad: list[str]) -> Any:
    """The decoded payload; an event without a payload, an erased one for example, has none."""
    if not payload:
        return None
    found = kind.parse(payload)
    if found is MISFIT:
        bad.append(kind.misfit)
        return None
    return convert(found, bad)
