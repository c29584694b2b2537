"""The driver's connection inside the wrappers of SQLAlchemy, Django or a tracer."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from penstock.errors import InvalidArgument

#: Drivers that have only coroutines, and methods that are coroutines where others are not.
_ASYNCHRONOUS = frozenset({"asyncpg", "aiomysql", "asyncmy", "aiosqlite", "aiopg"})
_AWAITED = ("commit", "execute", "exec_driver_sql")

#: What is said of anything that gives connections and is none: it is in nobody's transaction.
TAKE_ONE = (
    "a pool or an engine is in no transaction: take a connection from it, such as "
    "`with pool.connection() as connection:` or `async with pool.acquire() as connection:`"
)
_GIVES_CONNECTIONS = ("pool", "engine", "sessionmaker", "acquirecontext")

#: Classes of connections that need no unwrapping, by their full names: no driver is imported here.
_PLAIN = {"psycopg.Connection", "pymysql.connections.Connection"}


def add_plain_driver(class_name: str) -> None:
    """Take connections of this class, by its full name, as they are."""
    _PLAIN.add(class_name)
    plain_class.cache_clear()


def plain_driver(connection: Any) -> str | None:
    """The full name of the class of a connection that needs no unwrapping; None for all others.

    It looks at ``__class__``, which a tracer's wrapper takes from the connection inside it.
    """
    return plain_class(connection.__class__)


@cache
def plain_class(kind: Any) -> str | None:
    """The same for the class."""
    for each in kind.__mro__:
        name = f"{each.__module__}.{each.__name__}"
        if name in _PLAIN:
            return name
    return None


def unwrapped(connection: Any) -> Any:
    """SQLAlchemy's Session becomes its Connection; objects that cannot work are refused by name."""
    if plain_driver(connection) is not None:
        return connection
    require_connection(connection)
    return connection if _is_direct(connection) else unwrapped(connection.connection())


def require_connection(given: Any) -> None:
    """InvalidArgument for what a synchronous call cannot work on."""
    if plain_driver(given) is not None:
        return
    if is_asynchronous(given):
        raise InvalidArgument(
            f"{type(given).__name__} is asynchronous, this call is not",
            hint="use the function of the same name in penstock.aio with await, such as "
            "`await penstock.aio.publish(connection, ...)`; or give a synchronous connection",
        )
    if _is_direct(given) or _is_session(given):
        return
    raise InvalidArgument(
        f"{type(given).__name__} is not a database connection",
        hint=_instead_of(given),
    )


def _instead_of(given: Any) -> str:
    if gives_connections(given):
        return TAKE_ONE
    what = (
        "give a connection of psycopg or PyMySQL, a SQLAlchemy Connection or Session, "
        "or another DB-API connection"
    )
    return f"the connection comes first: {what}" if isinstance(given, str) else what


def _is_direct(given: Any) -> bool:
    return hasattr(given, "exec_driver_sql") or callable(getattr(given, "cursor", None))


def _is_session(given: Any) -> bool:
    return hasattr(given, "get_bind") and callable(getattr(given, "connection", None))


def gives_connections(given: Any) -> bool:
    """Whether what is no connection looks like a pool or an engine, by the name of its class."""
    names = [each.__name__.lower() for each in given.__class__.__mro__]
    return any(kind in name for name in names for kind in _GIVES_CONNECTIONS)


def is_asynchronous(connection: Any) -> bool:
    """Whether a connection, session, engine or pool is asynchronous."""
    return _asynchronous_class(connection.__class__)


@cache
def _asynchronous_class(kind: Any) -> bool:
    # asyncpg's connection has no commit, and a pool of connections has none either.
    if any(each.__module__.partition(".")[0] in _ASYNCHRONOUS for each in kind.__mro__):
        return True
    return any(
        inspect.iscoroutinefunction(getattr(kind, name, None)) for name in _AWAITED
    ) or kind.__name__ in {"AsyncEngine", "async_scoped_session"}


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
