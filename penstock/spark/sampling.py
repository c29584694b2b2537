"""The schema of payloads, inferred from the first events of a read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

from pyspark.sql import types as t

from penstock.errors import InvalidArgument
from penstock.spark.batch import RangesInput, read_input
from penstock.spark.cold_ranges import Archive
from penstock.spark.columns import ReadColumns
from penstock.spark.json_values import MISFIT, parse
from penstock.spark.options import Decode, ReadOptions
from penstock.spark.payloads import given_schema
from penstock.spark.planning import batch_ranges
from penstock.spark.ranges import SourceRange, shared
from penstock.spark.schemas import checked

_MOST_FIELDS = 1_000
_DEEPEST = 20
_ATOMS: dict[type, t.DataType] = {
    bool: t.BooleanType(),
    float: t.DoubleType(),
    str: t.StringType(),
    type(None): t.NullType(),
}


def value_schema(options: ReadOptions, decode: Decode) -> t.StructType:
    """The schema that the options give, or else that of a sample."""
    given = given_schema(decode)
    if given is not None:
        return given
    found = inferred(_payloads(options, decode.sample))
    if found is None:
        raise InvalidArgument(
            f"the first {decode.sample} events of the read have no JSON object with a field, so no"
            " schema can be inferred",
            hint="give decodeSchema",
        )
    return checked(found)


def inferred(payloads: Iterable[bytes]) -> t.StructType | None:
    """The schema that has all fields of these payloads; None without any."""
    found: t.DataType = t.NullType()
    for payload in payloads:
        value = parse(payload)
        if value is MISFIT:
            continue
        found = _merged(found, _type_of(value))
        if _fields(found) > _MOST_FIELDS:
            raise InvalidArgument(
                f"the payloads have more than {_MOST_FIELDS} fields together",
                hint="give decodeSchema, with map<string, ...> where keys differ",
            )
    whole = _without_nulls(found)
    return whole if isinstance(whole, t.StructType) else None


def _payloads(options: ReadOptions, most: int) -> Iterator[bytes]:
    """The payloads of the first events of a read, shared among its partitions."""
    with closing(options.address.connect()) as connection:
        ranges = batch_ranges(connection, options)
    events = read_input(
        Archive.of(options),
        ReadColumns(options.topic, ("payload",), options.types),
        RangesInput(_first(ranges, most)),
    )
    for batch in events:
        yield from (payload or b"" for payload in batch.column("payload").to_pylist())


def _first(ranges: list[SourceRange], most: int) -> list[SourceRange]:
    counts: dict[int, int] = {}
    for each in ranges:
        counts[each.partition] = counts.get(each.partition, 0) + each.count
    left = shared(most, counts)
    found = []
    for each in ranges:
        taken = min(each.count, left.get(each.partition, 0))
        if taken:
            found.append(replace(each, last=each.first + taken - 1))
            left[each.partition] -= taken
    return found


def _type_of(value: Any, depth: int = 0) -> t.DataType:
    """The type of a JSON value; what is nested too deep for a schema is taken as text."""
    if depth > _DEEPEST:
        return t.StringType()
    if isinstance(value, dict):
        # A name with half a surrogate pair or a control character could be no column.
        names = [name for name in value if name and name.isprintable()]
        return t.StructType(
            [t.StructField(each, _type_of(value[each], depth + 1)) for each in names]
        )
    if isinstance(value, list):
        element: t.DataType = t.NullType()
        for each in value:
            element = _merged(element, _type_of(each, depth + 1))
        return t.ArrayType(element)
    if type(value) is int:
        return t.LongType() if -(1 << 63) <= value < 1 << 63 else t.StringType()
    return _ATOMS[type(value)]


def _merged(one: t.DataType, other: t.DataType) -> t.DataType:
    """A type that both fit into; a string takes any JSON value."""
    if one == other or isinstance(other, t.NullType):
        return one
    if isinstance(one, t.NullType):
        return other
    if isinstance(one, t.StructType) and isinstance(other, t.StructType):
        fields = {each.name: each.dataType for each in one.fields}
        for each in other.fields:
            known = fields.get(each.name)
            fields[each.name] = each.dataType if known is None else _merged(known, each.dataType)
        return t.StructType([t.StructField(*each) for each in fields.items()])
    if isinstance(one, t.ArrayType) and isinstance(other, t.ArrayType):
        return t.ArrayType(_merged(one.elementType, other.elementType))
    if {type(one), type(other)} == {t.LongType, t.DoubleType}:
        return t.DoubleType()
    return t.StringType()


def _without_nulls(found: t.DataType) -> t.DataType:
    """With a string where the sample has only nulls or empty objects."""
    if isinstance(found, t.StructType) and found.fields:
        inner = [(each.name, _without_nulls(each.dataType)) for each in found.fields]
        return t.StructType([t.StructField(*each) for each in inner])
    if isinstance(found, t.ArrayType):
        return t.ArrayType(_without_nulls(found.elementType))
    return t.StringType() if isinstance(found, t.NullType | t.StructType) else found


def _fields(found: t.DataType) -> int:
    if isinstance(found, t.StructType):
        return sum(1 + _fields(each.dataType) for each in found.fields)
    return _fields(found.elementType) if isinstance(found, t.ArrayType) else 0
