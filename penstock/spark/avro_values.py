"""Avro payloads as values of a schema, by fastavro."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any

from pyspark.sql import types as t

from penstock.errors import InvalidArgument
from penstock.spark.avro_schemas import AvroSchema, avro_schema
from penstock.spark.json_values import MISFIT, Convert, converter, integer

#: What stands before a payload whose schema is in a registry: a zero, and the schema's number.
_PREFIX = 5
_MOST_SCHEMAS = 1 << 31
_WRITERS_HINT = 'write a JSON object of numbers and schemas as texts, like {"7": "{...}"}'
_TAKEN: dict[type[t.DataType], frozenset[type]] = {
    t.BooleanType: frozenset({bool}),
    t.FloatType: frozenset({float, int}),
    t.DoubleType: frozenset({float, int}),
    t.StringType: frozenset({str}),
    t.BinaryType: frozenset({bytes}),
    t.DateType: frozenset({date}),
}


class AvroPayloads:
    """Reads payloads of one schema, or those of several that name theirs by a number."""

    whole = "record"

    def __init__(self, schema: str, writers: str | None, *, resolve: bool = True) -> None:
        """Read the schemas; with ``resolve``, what was written by another one becomes ``schema``"""
        self._schema = avro_schema(schema)
        self._writers = None if writers is None else avro_writers(writers)
        self._reader = self._schema.parsed if resolve and self._writers is not None else None
        self.misfit = f"it is no Avro of {'these schemas' if writers else 'this schema'}"

    def parse(self, payload: bytes) -> Any:
        """The record of a payload, or ``MISFIT``."""
        from fastavro import schemaless_reader

        writer, begin = self._schema, 0
        if self._writers is not None:
            number = int.from_bytes(payload[1:_PREFIX], "big")
            if len(payload) < _PREFIX or payload[0] != 0 or number not in self._writers:
                return MISFIT
            writer, begin = self._writers[number], _PREFIX
        stream = BytesIO(payload)
        stream.seek(begin)
        try:
            found = schemaless_reader(stream, writer.parsed, self._reader)
        except Exception:  # fastavro raises whatever bad bytes run it into
            return MISFIT
        return found if stream.tell() == len(payload) else MISFIT

    def converter(self, wanted: t.DataType) -> Convert:
        """The converter to a type, for what ``parse`` returns."""
        return converter(wanted, _leaf)


def avro_writers(text: str) -> dict[int, AvroSchema]:
    """The schemas by their numbers."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not found:
        raise InvalidArgument("decodeWriters is no JSON object of schemas", hint=_WRITERS_HINT)
    return {_number(name): _writer(name, each) for name, each in found.items()}


def _number(name: str) -> int:
    if not name.isdecimal() or len(name) > len(str(_MOST_SCHEMAS)) or int(name) >= _MOST_SCHEMAS:
        raise InvalidArgument(
            f"decodeWriters has {name[:20]!r} for the number of a schema", hint=_WRITERS_HINT
        )
    return int(name)


def _writer(name: str, text: object) -> AvroSchema:
    if not isinstance(text, str):
        raise InvalidArgument(f"schema {name} of decodeWriters is no text", hint=_WRITERS_HINT)
    try:
        return avro_schema(text)
    except InvalidArgument as error:
        raise InvalidArgument(
            f"schema {name} of decodeWriters: {error.message}", hint=error.hint
        ) from None


def _leaf(wanted: t.DataType) -> Convert:
    if isinstance(wanted, t.IntegerType | t.LongType):
        return integer(wanted)
    if isinstance(wanted, t.DecimalType):
        return _decimal(wanted.precision, wanted.scale)
    if isinstance(wanted, t.TimestampType | t.TimestampNTZType):
        return _timestamp(zoned=isinstance(wanted, t.TimestampType))
    taken = _TAKEN[type(wanted)]
    return lambda value, _: value if type(value) in taken else MISFIT


def _decimal(precision: int, scale: int) -> Convert:
    """fastavro rounds what has too many digits: then the exponent is not that of the scale."""

    def convert(value: Any, _: list[str]) -> Any:
        if type(value) is not Decimal:
            return MISFIT
        found = value.as_tuple()
        fits = found.exponent == -scale and len(found.digits) <= precision
        return value if fits else MISFIT

    return convert


def _timestamp(*, zoned: bool) -> Convert:
    def convert(value: Any, _: list[str]) -> Any:
        if type(value) is not datetime or (value.tzinfo is not None) is not zoned:
            return MISFIT
        return value

    return convert
