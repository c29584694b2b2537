"""Columns of a batch as the database takes them fastest.

psycopg writes a list as text, escaping element by element, and the server takes that text apart
again; for a batch of 500 events this is more work than everything else together: it gets binary
arrays, packed in one go.  MySQL and MariaDB have no arrays: they get one JSON array of objects.
Any other driver, and a psycopg connection that binds on the client or speaks another encoding, gets
plain lists.
"""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import chain
from typing import Any

from penstock.database import dialects, unwrap

_HEADER = struct.Struct("!iiIii")  # dimensions, any NULL, type of the elements, length, first index
_LENGTH = struct.Struct("!i").pack
_NULL = _LENGTH(-1)
_MOMENT = struct.Struct("!q").pack  # microseconds since 2000
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

#: Of each type that is packed: its object id, fixed in PostgreSQL, and how an element is written.
_TYPES: dict[str, tuple[int, Callable[[Any], bytes]]] = {
    "text": (25, str.encode),
    "bytea": (17, bytes),
    "uuid": (2950, lambda value: value.int.to_bytes(16)),
    "int4": (23, _LENGTH),
    "timestamptz": (1184, lambda value: _MOMENT((value - _EPOCH) // _MICROSECOND)),
}


class PackedArray:
    """One array as PostgreSQL's receive functions read it."""

    __slots__ = ("data",)

    def __init__(self, type_name: str, values: Sequence[Any]) -> None:
        oid, encode = _TYPES[type_name]
        with_nulls = None in values
        header = _HEADER.pack(1, int(with_nulls), oid, len(values), 1)
        if with_nulls:
            parts = [b"" if value is None else encode(value) for value in values]
            lengths = [
                _NULL if value is None else _LENGTH(len(part))
                for value, part in zip(values, parts, strict=True)
            ]
        else:
            parts = list(map(encode, values))
            lengths = list(map(_LENGTH, map(len, parts)))
        self.data = header + b"".join(chain.from_iterable(zip(lengths, parts, strict=True)))


#: A column: the type of its values, and the values; None stands for a column that is not given.
Column = tuple[str, Sequence[Any] | None]


def packed(connection: Any, **columns: Column) -> dict[str, Any]:
    """Columns as parameters for this connection."""
    if dialects.of_connection(connection).name == "mysql":
        given = {name: (kind, values) for name, (kind, values) in columns.items() if values}
        return {"events": _objects(given)}
    return packed_for_driver(unwrap.driver_connection(connection), **columns)


def packed_for_driver(driver: Any, **columns: Column) -> dict[str, Any]:
    """Columns as parameters for a connection of a driver of PostgreSQL, an asynchronous one too."""
    make = PackedArray if _takes_packed(driver) else _plain
    return {
        name: None if values is None else make(type_name, values)
        for name, (type_name, values) in columns.items()
    }


def _plain(type_name: str, values: Sequence[Any]) -> list[Any]:
    return list(map(str, values)) if type_name == "uuid" else list(values)


def _objects(columns: dict[str, tuple[str, Sequence[Any]]]) -> str:
    """One JSON object for each event, of what is given of it; payloads in base64."""
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


def _takes_packed(driver: Any) -> bool:
    """Also teaches the connection to send a PackedArray."""
    if not hasattr(driver, "pgconn"):
        return False
    import psycopg

    plain = driver.cursor_factory in {psycopg.Cursor, psycopg.AsyncCursor}
    if not plain or driver.info.encoding != "utf-8":
        return False
    driver.adapters.register_dumper(PackedArray, _dumper())
    return True


@cache
def _dumper() -> Any:
    from psycopg import adapt, pq

    class PackedArrayDumper(adapt.Dumper):
        """The type is left to the cast in the statement."""

        format = pq.Format.BINARY

        def dump(self, obj: PackedArray) -> bytes:
            return obj.data

    return PackedArrayDumper
