"""Columns of a batch as the database takes them fastest.

By default psycopg writes a list as text: it escapes each element, and the server parses that text.
For a batch of 500 events this is more work than everything else together.  So each column is packed
here into the binary form of an array, and psycopg sends it as it is.  MySQL and MariaDB have no
arrays: they get one JSON array of objects.  All other drivers get plain lists.  So does a psycopg
connection that binds parameters on the client or uses another encoding.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from struct import Struct
from typing import Any

from penstock.database import dialects, unwrap
from penstock.database.postgres.connection import sends
from penstock.publishing.event_ids import packed_uuid7s, uuid7s


class PackedArray(bytes):
    """A column in the binary form of PostgreSQL's arrays."""


#: A column: the type of its values, and the values.  None means that the column is not given.
Column = tuple[str, Sequence[Any] | None]

#: Dimensions, whether there are NULLs, the type of the elements, how many, the first index.
_HEAD = Struct(">iiIii")
_SIZE = Struct(">i").pack
_NULL = _SIZE(-1)
_TIMES_BEGIN = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_INT8 = Struct(">q").pack


def _microseconds(moment: datetime) -> bytes:
    return _INT8((moment - _TIMES_BEGIN) // _MICROSECOND)


#: The number of each type in the catalog, and the binary form of its values.
_TYPES: dict[str, tuple[int, Callable[[Any], bytes] | None]] = {
    "bytea": (17, None),
    "int4": (23, _SIZE),
    "text": (25, str.encode),
    "timestamptz": (1184, _microseconds),
    "uuid": (2950, lambda value: value.int.to_bytes(16, "big")),
}


def packed(connection: Any, **columns: Column) -> dict[str, Any]:
    """Columns as parameters for this connection."""
    if dialects.of_connection(connection).name == "mysql":
        given = {name: (kind, values) for name, (kind, values) in columns.items() if values}
        return {"events": _objects(given)}
    return packed_for_driver(unwrap.driver_connection(connection), **columns)


def packed_for_driver(driver: Any, **columns: Column) -> dict[str, Any]:
    """Columns as parameters for a connection of a driver of PostgreSQL, an asynchronous one too."""
    return packed_as(takes_binary(driver), **columns)


def packed_as(binary: bool, **columns: Column) -> dict[str, Any]:
    """Columns as binary arrays, for a connection that takes them, or as plain lists."""
    pack = _array if binary else _plain
    return {
        name: values
        if values is None or isinstance(values, PackedArray)
        else pack(type_name, values)
        for name, (type_name, values) in columns.items()
    }


def new_ids(binary: bool, count: int) -> Sequence[Any]:
    """The column of new ids, for a caller that does not need to know them."""
    if binary:
        return packed_array("uuid", count, [packed_uuid7s(count)])
    return uuid7s(count)


def packed_array(type_name: str, count: int, elements: Iterable[bytes | memoryview]) -> PackedArray:
    """An array of so many elements, each of them with its size before it."""
    number, _ = _TYPES[type_name]
    return PackedArray(b"".join((_HEAD.pack(1, 1, number, count, 1), *elements)))


def _array(type_name: str, values: Sequence[Any]) -> PackedArray:
    _, written = _TYPES[type_name]
    if None in values:
        write = written or bytes
        forms = [None if value is None else write(value) for value in values]
        elements = [_NULL if form is None else _SIZE(len(form)) + form for form in forms]
    else:
        all_forms = values if written is None else list(map(written, values))
        elements = [_SIZE(len(form)) + form for form in all_forms]
    return packed_array(type_name, len(elements), elements)


def _plain(type_name: str, values: Sequence[Any]) -> list[Any]:
    return list(map(str, values)) if type_name == "uuid" else list(values)


def _objects(columns: dict[str, tuple[str, Sequence[Any]]]) -> str:
    """One JSON object for each event, with the fields that are given; payloads in base64."""
    names = [name if name == "headers" else name.removesuffix("s") for name in columns]
    parts = [_json_column(type_name, values) for type_name, values in columns.values()]
    objects = [
        {name: value for name, value in zip(names, row, strict=True) if value is not None}
        for row in zip(*parts, strict=True)
    ]
    return json.dumps(objects, ensure_ascii=False, separators=(",", ":"))


def _json_column(type_name: str, values: Sequence[Any]) -> Sequence[Any]:
    if type_name == "bytea":
        return [None if value is None else b64encode(value).decode() for value in values]
    if type_name == "timestamptz":
        return [None if value is None else _in_utc(value) for value in values]
    if type_name == "uuid":
        return [None if value is None else str(value) for value in values]
    return values


def _in_utc(value: datetime) -> str:
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ")


def takes_binary(driver: Any) -> bool:
    """Whether a connection can send binary arrays; if so, it learns to send a PackedArray."""
    if not hasattr(driver, "pgconn"):
        return False
    import psycopg

    plain = driver.cursor_factory in {psycopg.Cursor, psycopg.AsyncCursor}
    if not plain or driver.info.encoding != "utf-8":
        return False
    sends(driver, PackedArray, _dumper())
    return True


@cache
def _dumper() -> Any:
    from psycopg.adapt import Dumper
    from psycopg.pq import Format

    class PackedDumper(Dumper):
        """The statement names the type, so the parameter itself names none."""

        format = Format.BINARY

        def dump(self, obj: PackedArray) -> PackedArray:
            """The array is in the form in which it is sent."""
            return obj

    return PackedDumper
