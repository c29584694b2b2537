"""Avro schemas, as fastavro reads them and as columns of Spark."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn

from pyspark.sql import types as t

from penstock.errors import InvalidArgument, MissingExtra
from penstock.spark.schemas import DEEPEST, MOST_DIGITS, checked

#: These are taken as what they are stored as: texts and numbers.
_AS_STORED = frozenset({"uuid", "time-millis", "time-micros"})
_ATOMS: dict[tuple[str, str | None], t.DataType] = {
    ("boolean", None): t.BooleanType(),
    ("int", None): t.IntegerType(),
    ("long", None): t.LongType(),
    ("float", None): t.FloatType(),
    ("double", None): t.DoubleType(),
    ("bytes", None): t.BinaryType(),
    ("string", None): t.StringType(),
    ("enum", None): t.StringType(),
    ("fixed", None): t.BinaryType(),
    ("int", "date"): t.DateType(),
    ("long", "timestamp-millis"): t.TimestampType(),
    ("long", "timestamp-micros"): t.TimestampType(),
    ("long", "local-timestamp-millis"): t.TimestampNTZType(),
    ("long", "local-timestamp-micros"): t.TimestampNTZType(),
}


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A schema as fastavro takes it, and the columns that it has."""

    parsed: Any
    columns: t.StructType


def avro_schema(text: str) -> AvroSchema:
    """The schema that a JSON text stands for; InvalidArgument says what cannot be a column."""
    try:
        from fastavro import parse_schema
        from fastavro.schema import expand_schema
    except ImportError:
        raise MissingExtra.of("fastavro", "fastavro") from None
    try:
        stored = _as_stored(json.loads(text))
        parsed, whole = parse_schema(stored), expand_schema(stored)
    except Exception:  # fastavro looks at little, so a bad schema raises whatever it runs into
        raise InvalidArgument(
            "the schema is no Avro schema", hint="give the JSON text of a record"
        ) from None
    found = _type(whole, "", 0)
    if not isinstance(found, t.StructType):
        raise InvalidArgument("the Avro schema is no record", hint="give the schema of a record")
    return AvroSchema(parsed, checked(found))


def _as_stored(found: Any) -> Any:
    if isinstance(found, list):
        return [_as_stored(each) for each in found]
    if not isinstance(found, dict):
        return found
    return {
        name: _as_stored(each)
        for name, each in found.items()
        if not (name == "logicalType" and each in _AS_STORED)
    }


def _type(found: Any, path: str, depth: int) -> t.DataType:
    """The column's type; a type that no byte stands for is refused: it can be repeated endlessly"""
    if depth > 2 * DEEPEST:
        _refuse(path, "nested too deep")
    if isinstance(found, list):
        others = [each for each in found if each != "null"]
        if len(others) != 1:
            _refuse(path, "a union of several types")
        return _type(others[0], path, depth + 1)
    given = found if isinstance(found, dict) else {"type": found}
    kind = given["type"]
    if isinstance(kind, dict | list):
        return _type(kind, path, depth + 1)
    if kind in {"record", "error"}:
        return _struct(given, path, depth)
    if kind == "array":
        return t.ArrayType(_type(given["items"], f"{path}[]", depth + 1))
    if kind == "map":
        return t.MapType(t.StringType(), _type(given["values"], f"{path}{{}}", depth + 1))
    return _atom(kind, given, path)


def _struct(given: dict[str, Any], path: str, depth: int) -> t.StructType:
    before = f"{path}." if path else ""
    return t.StructType(
        [
            t.StructField(each["name"], _type(each["type"], before + each["name"], depth + 1))
            for each in given["fields"]
        ]
    )


def _atom(kind: str, given: dict[str, Any], path: str) -> t.DataType:
    logical = given.get("logicalType")
    if logical == "decimal" and kind in {"bytes", "fixed"}:
        if given["precision"] > MOST_DIGITS:
            _refuse(path, f"a decimal of more than {MOST_DIGITS} digits")
        return t.DecimalType(given["precision"], given.get("scale", 0))
    if kind == "fixed" and not (isinstance(given["size"], int) and given["size"] > 0):
        _refuse(path, "a fixed type without a size")
    # Avro says that a logical type which is not known is the type beneath it.
    found = _ATOMS.get((kind, logical)) or _ATOMS.get((kind, None))
    if found is None:
        # What expanding has left as a name is the name of a record around it.
        _refuse(path, "null" if kind == "null" else "a record within itself")
    return found


def _refuse(path: str, what: str) -> NoReturn:
    raise InvalidArgument(
        f"the Avro schema has {what} at {path[:200] or 'its top'}, which is no column",
        hint="apply Spark's from_avro to payload instead",
    )
