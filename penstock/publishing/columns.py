"""Columns of a batch as the database takes them fastest.

By default psycopg writes a list as text: it escapes each element, and the server parses that text.
For a batch of 500 events this is more work than everything else together, so psycopg is told to
send binary arrays.  MySQL and MariaDB have no arrays: they get one JSON array of objects.  All
other drivers get plain lists.  So does a psycopg connection that binds parameters on the client or
uses another encoding.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from penstock.database import dialects, unwrap


class BinaryList(list[Any]):
    """A column that psycopg sends as a binary array."""


#: A column: the type of its values, and the values.  None means that the column is not given.
Column = tuple[str, Sequence[Any] | None]


def packed(connection: Any, **columns: Column) -> dict[str, Any]:
    """Columns as parameters for this connection."""
    if dialects.of_connection(connection).name == "mysql":
        given = {name: (kind, values) for name, (kind, values) in columns.items() if values}
        return {"events": _objects(given)}
    return packed_for_driver(unwrap.driver_connection(connection), **columns)


def packed_for_driver(driver: Any, **columns: Column) -> dict[str, Any]:
    """Columns as parameters for a connection of a driver of PostgreSQL, an asynchronous one too."""
    if _takes_binary(driver):
        return {
            n: None if values is None else BinaryList(values) for n, (_, values) in columns.items()
        }
    return {
        name: None if values is None else _plain(type_name, values)
        for name, (type_name, values) in columns.items()
    }


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


def _takes_binary(driver: Any) -> bool:
    """Whether a connection can send binary arrays; if so, it learns to send a BinaryList."""
    if not hasattr(driver, "pgconn"):
        return False
    import psycopg
    from psycopg.types.array import ListBinaryDumper

    plain = driver.cursor_factory in {psycopg.Cursor, psycopg.AsyncCursor}
    if not plain or driver.info.encoding != "utf-8":
        return False
    driver.adapters.register_dumper(BinaryList, ListBinaryDumper)
    return True
