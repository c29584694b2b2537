"""Where payloads differ from a schema: new, missing and other fields, counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.datasource import CaseInsensitiveDict

from penstock.errors import InvalidArgument
from penstock.log.positions import Lsn, lsn_of
from penstock.spark.json_values import MISFIT, Convert, JsonPayloads
from penstock.spark.options import HOT, JSON, Decode, ReadOptions, read_options
from penstock.spark.payloads import Payloads, given_schema, payloads
from penstock.spark.planning import chosen_partitions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What a field can be: not in the schema, not in the payload, or of another type.
NEW, MISSING, OTHER_TYPE = "new", "missing", "type"
#: So many differences are told apart; payloads can have any number of field names.
_MOST = 1_000
_READ = ("partition", "sequence", "sequenced_at", "payload")
_COLUMNS = (
    "field string, kind string, expected string, found string, events bigint,"
    " sequenced_at timestamp_ltz, `partition` int, sequence bigint"
)
_TYPES: dict[str, pa.DataType] = {
    "field": pa.string(),
    "kind": pa.string(),
    "expected": pa.string(),
    "found": pa.string(),
    "events": pa.int64(),
    "sequenced_at": pa.timestamp("us", tz="UTC"),
    "partition": pa.int32(),
    "sequence": pa.int64(),
}
_ARROW = pa.schema(list(_TYPES.items()))
_NAMES = {
    bool: "boolean", int: "integer", float: "number", Decimal: "number", str: "string",
    list: "array", bytes: "bytes", date: "date", datetime: "timestamp",
}  # fmt: skip

#: field, kind, expected, found
Difference = tuple[str, str, str | None, str | None]


@dataclass(frozen=True, slots=True)
class FieldDrift:
    """A field in which payloads differ from the schema, and the first event that does.

    ``field`` is a path like ``customer.name`` or ``items[].price``, and empty where the payload is
    no JSON object or no Avro record at all.  ``kind`` is ``new``, ``missing`` or ``type``.
    """

    field: str
    kind: str
    expected: str | None
    found: str | None
    events: int
    partition: int
    first: Lsn


def schema_drift(
    spark: SparkSession,
    topic: str,
    schema: str | t.StructType,
    *,
    last: int = 1_000,
    **options: object,
) -> list[FieldDrift]:
    """What differs in a range of a topic; without a start, in the last events of each partition.

    ``options`` are those of a read, with ``decode="avro"`` for an Avro schema.  The records come
    with the most frequent first, at most 1,000.
    """
    given = {name: str(value) for name, value in options.items()} | {"topic": topic}
    decode, expected = _expected(given, schema)
    given = {name: each for name, each in given.items() if not name.lower().startswith("decode")}
    reading = read_options(given)
    if not {"startingoffsets", "startingtimestamp"} & {name.lower() for name in given}:
        given["startingOffsets"] = _last_events(reading, last)
    frame = spark.read.format("penstock").options(**given).load().select(*_READ)
    # The schema travels as text: it is the same on every version of Spark.
    rows = frame.mapInArrow(partial(_counted, expected.json(), decode), _COLUMNS).collect()
    found = sorted(_merged(rows).items(), key=lambda each: (-each[1][0], each[0][:2]))[:_MOST]
    with closing(reading.address.connect()) as connection:
        return [
            FieldDrift(*key, events, number, lsn_of(connection, topic, number, sequence))
            for key, (events, (_, number, sequence)) in found
        ]


def _expected(given: dict[str, str], schema: str | t.StructType) -> tuple[Decode, t.StructType]:
    """How payloads are read, and the columns that they should have."""
    for name in given:
        if name.lower() in {"decodeschema", "decodemode", "decodesample"}:
            raise InvalidArgument(f"schema_drift takes no option {name}", hint="leave it out")
    text = schema.json() if isinstance(schema, t.StructType) else schema
    whole = {"decode": JSON} | {name.lower(): each for name, each in given.items()}
    decode = read_options(CaseInsensitiveDict(whole | {"decodeSchema": text})).decode
    assert decode is not None
    expected = given_schema(decode)
    assert expected is not None
    return decode, expected


def _last_events(options: ReadOptions, last: int) -> str:
    """The position before the last events of each partition, where events still can be read."""
    if last < 1:
        raise InvalidArgument(f"last is {last}", hint="give a number of events from 1 on")
    with closing(options.address.connect()) as connection:
        present = chosen_partitions(connection, options)
    has_archive = options.targets and options.source != HOT
    positions = {
        str(each.partition): max(
            each.high_watermark - last, 0 if has_archive else each.low_sequence - 1
        )
        for each in present
    }
    return json.dumps(positions)


def _merged(rows: list[Any]) -> dict[Difference, tuple[int, tuple[Any, int, int]]]:
    """The tasks' counts together, with the earliest place."""
    merged: dict[Difference, tuple[int, tuple[Any, int, int]]] = {}
    for row in rows:
        *key, events, at, number, sequence = row
        before = merged.get(tuple(key), (0, (at, number, sequence)))
        merged[tuple(key)] = (before[0] + events, min(before[1], (at, number, sequence)))
    return merged


def _counted(
    schema: str, decode: Decode, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The differences in a task's events, in Spark's executor."""
    expected = t.StructType.fromJson(json.loads(schema))
    walk = Walk(expected, payloads(decode, expected, resolve=False))
    found: dict[Difference, list[Any]] = {}
    for batch in batches:
        for number, sequence, at, payload in zip(
            *(batch.column(name).to_pylist() for name in _READ), strict=True
        ):
            for each in walk.differences(payload):
                if each in found:
                    found[each][0] += 1
                elif len(found) < _MOST:
                    found[each] = [1, at, number, sequence]
    if found:
        columns = zip(*((*key, *counted) for key, counted in found.items()), strict=True)
        yield pa.RecordBatch.from_arrays(
            [pa.array(each, kind) for each, kind in zip(columns, _ARROW.types, strict=True)],
            schema=_ARROW,
        )


class Walk:
    """Compares payloads with a schema."""

    def __init__(self, schema: t.StructType, kind: Payloads | None = None) -> None:
        """Keep the schema; the converters are made as they are needed."""
        self._schema = schema
        self._kind = kind or JsonPayloads(schema)
        self._converters: dict[t.DataType, Convert] = {}

    def differences(self, payload: bytes) -> set[Difference]:
        """Each difference once, however often an event has it."""
        if not payload:
            return set()
        value = self._kind.parse(payload)
        if value is MISFIT:
            return {("", OTHER_TYPE, self._kind.whole, None)}
        return set(self._of_struct(value, self._schema, ""))

    def _of_struct(self, value: Any, schema: t.StructType, path: str) -> Iterator[Difference]:
        before = f"{path}." if path else ""
        for field in schema.fields:
            name = f"{before}{field.name}"
            if field.name not in value:
                yield (name, MISSING, field.dataType.simpleString(), None)
            else:
                yield from self._of(value[field.name], field.dataType, name)
        for name in value.keys() - set(schema.fieldNames()):
            yield (_shown(before + name), NEW, None, _name_of(value[name]))

    def _of(self, value: Any, expected: t.DataType, path: str) -> Iterator[Difference]:
        if value is None:
            return
        if isinstance(expected, t.StructType) and isinstance(value, dict):
            yield from self._of_struct(value, expected, path)
        elif isinstance(expected, t.ArrayType) and isinstance(value, list):
            for each in value:
                yield from self._of(each, expected.elementType, f"{path}[]")
        elif isinstance(expected, t.MapType) and isinstance(value, dict):
            for each in value.values():
                yield from self._of(each, expected.valueType, f"{path}{{}}")
        elif not self._fits(value, expected):
            yield (path, OTHER_TYPE, expected.simpleString(), _name_of(value))

    def _fits(self, value: Any, expected: t.DataType) -> bool:
        # A string column takes any value as its JSON text, and yet that is another type.
        if isinstance(expected, t.StringType):
            return isinstance(value, str)
        if expected not in self._converters:
            self._converters[expected] = self._kind.converter(expected)
        return self._converters[expected](value, []) is not MISFIT


def _name_of(value: Any) -> str:
    return "null" if value is None else _NAMES.get(type(value), "object")


def _shown(name: str) -> str:
    """A name from a payload, short enough for a record and without what is no text."""
    return name[:200].encode("utf-8", "replace").decode("utf-8")
