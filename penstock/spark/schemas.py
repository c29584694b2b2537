"""Schemas of payloads: a DDL text or Spark's JSON, read without a JVM.

A data source is planned in a Python process that has no JVM, so Spark's own parser of DDL is not
there.
"""

from __future__ import annotations

import json
import re
from typing import NoReturn

from pyspark.errors import PySparkException
from pyspark.sql import types as t

from penstock.errors import InvalidArgument

_HINT = "write columns and types as in SQL, like: id bigint, tags array<string>"
DEEPEST = 50
MOST_DIGITS = 38
_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|([<>(),:]))")
_ATOMS: dict[str, t.DataType] = {
    "boolean": t.BooleanType(),
    "tinyint": t.ByteType(),
    "byte": t.ByteType(),
    "smallint": t.ShortType(),
    "short": t.ShortType(),
    "int": t.IntegerType(),
    "integer": t.IntegerType(),
    "bigint": t.LongType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "real": t.FloatType(),
    "double": t.DoubleType(),
    "string": t.StringType(),
    "binary": t.BinaryType(),
    "date": t.DateType(),
    "timestamp": t.TimestampType(),
    "timestamp_ltz": t.TimestampType(),
    "timestamp_ntz": t.TimestampNTZType(),
}
_DECIMALS = ("decimal", "dec", "numeric")


def parse_schema(text: str) -> t.StructType:
    """The schema that a text stands for.  Every field of it may be NULL."""
    if text.lstrip().startswith("{"):
        return checked(_from_json(text))
    return checked(_Parser(text).schema())


def checked(schema: t.StructType) -> t.StructType:
    """A schema that payloads can be decoded to; InvalidArgument says what cannot be."""
    found = _checked(schema, 0)
    assert isinstance(found, t.StructType)
    return found


def _from_json(text: str) -> t.StructType:
    try:
        return t.StructType.fromJson(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, PySparkException):
        raise InvalidArgument(
            "the schema is not Spark's JSON of a struct", hint="write what schema.json() returns"
        ) from None


def _checked(found: t.DataType, depth: int) -> t.DataType:
    if depth > DEEPEST:
        raise InvalidArgument(f"the schema is nested deeper than {DEEPEST} levels")
    if isinstance(found, t.StructType):
        names = found.fieldNames()
        if not names or len(set(names)) < len(names):
            raise InvalidArgument("the schema has a struct without fields, or a field twice")
        inner = [(each.name, _checked(each.dataType, depth + 1)) for each in found.fields]
        return t.StructType([t.StructField(*each) for each in inner])
    if isinstance(found, t.ArrayType):
        return t.ArrayType(_checked(found.elementType, depth + 1))
    if isinstance(found, t.MapType) and isinstance(found.keyType, t.StringType):
        return t.MapType(t.StringType(), _checked(found.valueType, depth + 1))
    if isinstance(found, t.DecimalType) or found in _ATOMS.values():
        return found
    raise InvalidArgument(
        f"the schema has the type {found.simpleString()[:80]}, which payloads are not decoded to",
        hint="take it as string and cast it after reading",
    )


class _Parser:
    """A recursive descent over ``name type, ...``."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        position = 0
        while position < len(text.rstrip()):
            match = _TOKEN.match(text, position)
            if match is None:
                self._refuse(text[position : position + 20])
            quoted, word, mark = match.groups()
            # A quoted name keeps its first quote, so that it is no key word.
            self._tokens.append(f"`{quoted.replace('``', '`')}" if quoted else word or mark)
            position = match.end()
        self._next = 0

    def schema(self) -> t.StructType:
        """The whole text; ``struct<...>`` around it is allowed."""
        if self._peek(0).lower() == "struct" and self._peek(1) == "<":
            found = self._type(0)
            assert isinstance(found, t.StructType)
        else:
            found = self._fields(0)
        if self._peek(0):
            self._refuse(self._peek(0))
        return found

    def _fields(self, depth: int) -> t.StructType:
        fields = []
        while True:
            name = self._take()
            if not re.match(r"[`\w]", name):
                self._refuse(name)
            if self._peek(0) == ":":
                self._take()
            fields.append(t.StructField(name.removeprefix("`"), self._type(depth + 1)))
            if self._peek(0) != ",":
                return t.StructType(fields)
            self._take()

    def _type(self, depth: int) -> t.DataType:
        if depth > DEEPEST:
            raise InvalidArgument(f"the schema is nested deeper than {DEEPEST} levels")
        name = self._take().lower()
        if name in _ATOMS:
            return _ATOMS[name]
        if name in _DECIMALS:
            return self._decimal()
        found: t.DataType
        if name not in {"struct", "array", "map"}:
            self._refuse(name)
        self._expect("<")
        if name == "struct":
            found = self._fields(depth)
        elif name == "array":
            found = t.ArrayType(self._type(depth + 1))
        else:
            key = self._type(depth + 1)
            self._expect(",")
            found = t.MapType(key, self._type(depth + 1))
        self._expect(">")
        return found

    def _decimal(self) -> t.DecimalType:
        numbers = [10, 0]
        if self._peek(0) == "(":
            self._take()
            numbers[0] = self._number()
            if self._peek(0) == ",":
                self._take()
                numbers[1] = self._number()
            self._expect(")")
        if not 1 <= numbers[0] <= MOST_DIGITS or numbers[1] > numbers[0]:
            self._refuse(f"decimal({numbers[0]},{numbers[1]})")
        return t.DecimalType(*numbers)

    def _number(self) -> int:
        text = self._take()
        if not re.fullmatch(r"[0-9]{1,2}", text):
            self._refuse(text)
        return int(text)

    def _peek(self, ahead: int) -> str:
        place = self._next + ahead
        return self._tokens[place] if place < len(self._tokens) else ""

    def _take(self) -> str:
        found = self._peek(0)
        self._next += 1
        return found

    def _expect(self, mark: str) -> None:
        found = self._take()
        if found != mark:
            self._refuse(found)

    def _refuse(self, found: str) -> NoReturn:
        where = f"at {found.removeprefix('`')[:40]!r}" if found else "at its end"
        raise InvalidArgument(f"the schema cannot be understood {where}", hint=_HINT)
