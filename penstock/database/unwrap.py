"""The driver's connection below what SQLAlchemy, Django or a tracer puts around it."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from penstock.errors import InvalidArgument

#: Classes of connections that need no unwrapping, by their full names: no driver is imported here.
_PLAIN = {"psycopg.Connection", "pymysql.connections.Connection"}


def add_plain_driver(class_name: str) -> None:
    """Take connections of this class, by its full name, as they are."""
    _PLAIN.add(class_name)
    _plain_class.cache_clear()


def plain_driver(connection: Any) -> str | None:
    """The full name of the class of a connection that needs no unwrapping; None for all others.

    By ``__class__``, which a tracer's wrapper passes on from the connection that it wraps.
    """
    return _plain_class(connection.__class__)


@cache
def _plain_class(kind: Any) -> str | None:
    for each in kind.__mro__:
        name = f"{each.__module__}.{each.__name__}"
        if name in _PLAIN:
            return name
    return None


def unwrapped(connection: Any) -> Any:
    """SQLAlchemy's Session becomes its Connection; what cannot work is refused by name."""
    if plain_driver(connection) is not None:
        return connection
    if hasattr(connection, "exec_driver_sql") or hasattr(connection, "cursor"):
        if inspect.iscoroutinefunction(getattr(connection, "commit", None)):
            raise InvalidArgument(
                f"{type(connection).__name__} is asynchronous", hint="use a synchronous connection"
            )
        return connection
    if hasattr(connection, "get_bind") and callable(getattr(connection, "connection", None)):
        return unwrapped(connection.connection())
    raise InvalidArgument(
        f"{type(connection).__name__} is not a database connection",
        hint="give a connection of psycopg or PyMySQL, a SQLAlchemy Connection or Session, "
        "or another DB-API connection",
    )


def driver_connection(connection: Any) -> Any:
    """The driver's own connection below SQLAlchemy's or Django's."""
    if plain_driver(connection) is not None:
        return connection
    connection = unwrapped(connection)
    if hasattr(connection, "exec_driver_sql"):
        return connection.connection.driver_connection
    if hasattr(connection, "driver_connection"):  # SQLAlchemy's raw_connection()
        return connection.driver_connection
    if hasattr(connection, "vendor"):
        return getattr(connection, "connection", connection)
    return connection
