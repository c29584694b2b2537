"""JSON payloads as values of a schema.

A converter takes a JSON value that is not null and returns the value for Arrow, or ``MISFIT``.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

from pyspark.sql import types as t

#: What a converter returns for a value that is not of its type.
MISFIT: Any = object()

_LARGEST_FLOAT = 3.4028234663852886e38
_BITS: dict[type[t.DataType], int] = {
    t.ByteType: 8, t.ShortType: 16, t.IntegerType: 32, t.LongType: 64,
}  # fmt: skip

#: The second argument gets the names of the fields within the value that do not fit.
Convert = Callable[[Any, list[str]], Any]
Leaf = Callable[[t.DataType], Convert]


def parse(payload: bytes, *, exact: bool = False) -> Any:
    """The JSON object of a payload, or ``MISFIT``; with ``exact``, fractions are decimals."""
    try:
        found = json.loads(
            payload.decode("utf-8"),
            parse_float=Decimal if exact else None,
            parse_constant=_no_constant,
        )
    except (ValueError, RecursionError):
        return MISFIT
    return found if type(found) is dict else MISFIT


def has_decimal(found: t.DataType) -> bool:
    """Whether a type has decimals anywhere."""
    if isinstance(found, t.StructType):
        return any(has_decimal(each.dataType) for each in found.fields)
    if isinstance(found, t.ArrayType):
        return has_decimal(found.elementType)
    return isinstance(found, t.DecimalType) or (
        isinstance(found, t.MapType) and has_decimal(found.valueType)
    )


class JsonPayloads:
    """Reads JSON payloads for a schema."""

    whole, misfit = "object", "it is no JSON object"

    def __init__(self, schema: t.StructType) -> None:
        """Look whether the schema needs every digit of a fraction."""
        self._exact = has_decimal(schema)

    def parse(self, payload: bytes) -> Any:
        """The object of a payload, or ``MISFIT``."""
        return parse(payload, exact=self._exact)

    def converter(self, wanted: t.DataType) -> Convert:
        """The converter to a type, for what ``parse`` returns."""
        return converter(wanted)


def converter(wanted: t.DataType, leaf: Leaf | None = None) -> Convert:
    """The converter to a type; ``leaf`` makes those of the types that have no parts."""
    leaf = leaf or _leaf
    if isinstance(wanted, t.StructType):
        return _struct([(each.name, converter(each.dataType, leaf)) for each in wanted.fields])
    if isinstance(wanted, t.ArrayType):
        return _array(converter(wanted.elementType, leaf))
    if isinstance(wanted, t.MapType):
        return _map(converter(wanted.valueType, leaf))
    return leaf(wanted)


def _leaf(wanted: t.DataType) -> Convert:
    if isinstance(wanted, t.DecimalType):
        return _decimal(wanted.precision, wanted.scale)
    return integer(wanted) if type(wanted) in _BITS else _ATOMS[type(wanted)]


def _no_constant(_: str) -> NoReturn:
    raise ValueError("NaN and Infinity are not JSON")


def _struct(fields: list[tuple[str, Convert]]) -> Convert:
    def convert(value: Any, bad: list[str]) -> Any:
        if type(value) is not dict:
            return MISFIT
        found = {}
        for name, inner in fields:
            given = value.get(name)
            if given is not None:
                given = inner(given, bad)
                if given is MISFIT:
                    bad.append(name)
                    given = None
            found[name] = given
        return found

    return convert


def _array(inner: Convert) -> Convert:
    def convert(value: Any, bad: list[str]) -> Any:
        if type(value) is not list:
            return MISFIT
        found = [None if each is None else inner(each, bad) for each in value]
        return _without_misfits(found, bad)

    return convert


def _map(inner: Convert) -> Convert:
    def convert(value: Any, bad: list[str]) -> Any:
        if type(value) is not dict or any(_string(key, bad) is MISFIT for key in value):
            return MISFIT
        found = [None if each is None else inner(each, bad) for each in value.values()]
        return list(zip(value, _without_misfits(found, bad), strict=True))

    return convert


def _without_misfits(found: list[Any], bad: list[str]) -> list[Any]:
    if not any(each is MISFIT for each in found):
        return found
    bad.append("an element")
    return [None if each is MISFIT else each for each in found]


def integer(wanted: t.DataType) -> Convert:
    """The converter to a whole number of so many bits."""
    limit = 1 << (_BITS[type(wanted)] - 1)

    def convert(value: Any, _: list[str]) -> Any:
        return value if type(value) is int and -limit <= value < limit else MISFIT

    return convert


def _decimal(precision: int, scale: int) -> Convert:
    def convert(value: Any, _: list[str]) -> Any:
        if type(value) not in {int, str, Decimal}:
            return MISFIT
        try:
            found = Decimal(value)
        except InvalidOperation:
            return MISFIT
        exponent = found.as_tuple().exponent
        if not isinstance(exponent, int):  # NaN or infinite
            return MISFIT
        if not found:
            return Decimal((0, (0,), -scale))  # Arrow does not take a zero of another exponent
        fits = -exponent <= scale and found.adjusted() < precision - scale
        return found if fits else MISFIT

    return convert


def _string(value: Any, _: list[str]) -> Any:
    """A text as it is; any other value as its JSON text."""
    try:
        if type(value) is not str:
            value = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=float)
        if not value.isascii():
            value.encode("utf-8")
    except (UnicodeEncodeError, RecursionError):  # half of a surrogate pair; nested too deep
        return MISFIT
    return value


def _boolean(value: Any, _: list[str]) -> Any:
    return value if type(value) is bool else MISFIT


def _fraction(largest: float) -> Convert:
    def convert(value: Any, _: list[str]) -> Any:
        if type(value) not in {int, float, Decimal}:
            return MISFIT
        try:
            found = float(value)
        except OverflowError:
            return MISFIT
        return found if abs(found) <= largest else MISFIT

    return convert


def _binary(value: Any, _: list[str]) -> Any:
    """Base64, as Spark's to_json writes it."""
    if type(value) is not str:
        return MISFIT
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return MISFIT


def _date(value: Any, _: list[str]) -> Any:
    if type(value) is not str:
        return MISFIT
    try:
        return date.fromisoformat(value)
    except ValueError:
        return MISFIT


def _timestamp(value: Any, _: list[str]) -> Any:
    found = _datetime(value)
    if found is MISFIT or found.tzinfo is None:
        return MISFIT
    try:
        return found.astimezone(UTC)
    except OverflowError:
        return MISFIT


def _local_timestamp(value: Any, _: list[str]) -> Any:
    found = _datetime(value)
    return found if found is not MISFIT and found.tzinfo is None else MISFIT


def _datetime(value: Any) -> Any:
    if type(value) is not str:
        return MISFIT
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        return MISFIT


_ATOMS: dict[type[t.DataType], Convert] = {
    t.BooleanType: _boolean,
    t.FloatType: _fraction(_LARGEST_FLOAT),
    t.DoubleType: _fraction(math.nextafter(math.inf, 0)),
    t.StringType: _string,
    t.BinaryType: _binary,
    t.DateType: _date,
    t.TimestampType: _timestamp,
    t.TimestampNTZType: _local_timestamp,
}
