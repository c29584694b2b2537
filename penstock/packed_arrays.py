"""Columns of a batch as binary arrays, packed in one go.

psycopg writes a list as text, escaping element by element, and the server takes that text apart
again; for a batch of 500 events this is more work than everything else together.  Any other driver,
and a psycopg connection that binds on the client or speaks another encoding, gets plain lists.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from penstock import database

_HEADER = struct.Struct("!iiIii")  # dimensions, any NULL, type of the elements, length, first index
_LENGTH = struct.Struct("!i").pack
_NULL = _LENGTH(-1)

#: Of each type that is packed: its object id, fixed in PostgreSQL, and how an element is written.
_TYPES: dict[str, tuple[int, Callable[[Any], bytes]]] = {
    "text": (25, str.encode),
    "bytea": (17, bytes),
    "uuid": (2950, lambda value: value.bytes),
    "int4": (23, _LENGTH),
}


class PackedArray:
    """One array as PostgreSQL's receive functions read it."""

    __slots__ = ("data",)

    def __init__(self, type_name: str, values: Sequence[Any]) -> None:
        oid, encode = _TYPES[type_name]
        parts = [_HEADER.pack(1, int(None in values), oid, len(values), 1)]
        for value in values:
            if value is None:
                parts.append(_NULL)
            else:
                element = encode(value)
                parts += (_LENGTH(len(element)), element)
        self.data = b"".join(parts)


def packed(connection: Any, **columns: tuple[str, Sequence[Any]]) -> dict[str, Any]:
    """Columns, given as (type, values), as parameters for this connection."""
    make = PackedArray if _takes_packed(database.driver_connection(connection)) else _plain
    return {name: make(type_name, values) for name, (type_name, values) in columns.items()}


def _plain(type_name: str, values: Sequence[Any]) -> list[Any]:
    return list(map(str, values)) if type_name == "uuid" else list(values)


def _takes_packed(driver: Any) -> bool:
    """Also teaches the connection to send a PackedArray."""
    if not hasattr(driver, "pgconn"):
        return False
    import psycopg

    if driver.cursor_factory is not psycopg.Cursor or driver.info.encoding != "utf-8":
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
