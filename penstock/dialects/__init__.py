"""What differs between the databases, behind :mod:`penstock.database`: a module for each."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from penstock import config
from penstock.dialects import memory, mysql, postgres
from penstock.dialects.common import Dialect
from penstock.errors import InvalidArgument

POSTGRES: Dialect = postgres.Postgres()
MYSQL: Dialect = mysql.MySQL()
MEMORY: Dialect = memory.Memory()
_BY_NAME = {each.name: each for each in (POSTGRES, MYSQL, MEMORY)}


def of_name(name: str) -> Dialect:
    """The dialect called 'postgres', 'mysql' or 'memory'."""
    return _BY_NAME[name]


def of_url(url: str) -> Dialect:
    """The dialect of an address."""
    return of_name(config.dialect_of_url(url))


def of_connection(connection: Any) -> Dialect:
    """The dialect of a connection, by its kind."""
    plain = _of_plain_driver(connection)
    if plain is not None:
        return plain
    name = getattr(getattr(connection, "dialect", None), "name", None)  # SQLAlchemy
    name = name or getattr(connection, "vendor", None)  # Django
    is_mysql = name in {"mysql", "mariadb"} or mysql.is_driver(driver_connection(connection))
    return MYSQL if is_mysql else POSTGRES


def unwrapped(connection: Any) -> Any:
    """SQLAlchemy's Session becomes its Connection; what cannot work is refused by name."""
    if _of_plain_driver(connection) is not None:
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
    if _of_plain_driver(connection) is not None:
        return connection
    connection = unwrapped(connection)
    if hasattr(connection, "exec_driver_sql"):
        return connection.connection.driver_connection
    if hasattr(connection, "driver_connection"):  # SQLAlchemy's raw_connection()
        return connection.driver_connection
    if hasattr(connection, "vendor"):
        return getattr(connection, "connection", connection)
    return connection


def _of_plain_driver(connection: Any) -> Dialect | None:
    """The dialect of a connection that needs no unwrapping; None of all others.

    By ``__class__``, which what a tracer puts round a connection answers as the connection does.
    """
    return _of_type(connection.__class__)


@cache
def _of_type(kind: Any) -> Dialect | None:
    for each in kind.__mro__:
        dialect = _PLAIN_DRIVERS.get(f"{each.__module__}.{each.__name__}")
        if dialect is not None:
            return dialect
    return None


_PLAIN_DRIVERS = {
    "psycopg.Connection": POSTGRES,
    "pymysql.connections.Connection": MYSQL,
    "penstock.testing.connection.MemoryConnection": MEMORY,
}
