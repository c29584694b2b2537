"""Which dialect an address or a connection has: one module for each kind of database."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

from penstock.database import config, unwrap
from penstock.database.dialect import Dialect
from penstock.database.mysql import connection as mysql
from penstock.database.mysql.opening import load_pymysql
from penstock.database.postgres import connection as postgres
from penstock.errors import ConfigurationError, MissingExtra

POSTGRES: Dialect = postgres.Postgres()
MYSQL: Dialect = mysql.MySQL()
_BY_NAME: dict[str, Dialect] = {each.name: each for each in (POSTGRES, MYSQL)}
_BY_DRIVER: dict[str, Dialect] = {
    "psycopg.Connection": POSTGRES,
    "pymysql.connections.Connection": MYSQL,
}


def register(dialect: Dialect, *, driver: str) -> None:
    """Add a dialect whose connections are of the class with this full name."""
    _BY_NAME[dialect.name] = dialect
    _BY_DRIVER[driver] = dialect
    unwrap.add_plain_driver(driver)
    of_plain.cache_clear()


def load_drivers() -> None:
    """Import the drivers that are installed, and what reading their statements takes."""
    import encodings.idna  # noqa: F401  # for the name of a host

    for dialect, load in ((POSTGRES, postgres.load_psycopg), (MYSQL, load_pymysql)):
        with suppress(MissingExtra):
            load()
            dialect.statement("sequence")


def of_name(name: str) -> Dialect:
    """The dialect called 'postgres' or 'mysql', or 'memory' once penstock.testing is imported."""
    dialect = _BY_NAME.get(name)
    if dialect is None:
        raise ConfigurationError(
            f"there is no {name} database in this process",
            hint="a memory:// address is that of a penstock.testing.MemoryDatabase",
        )
    return dialect


def of_url(url: str) -> Dialect:
    """The dialect of an address."""
    return of_name(config.dialect_of_url(url))


@cache
def of_plain(kind: Any) -> Dialect | None:
    """The dialect of a class of connections that need no unwrapping; None for all others."""
    driver = unwrap.plain_class(kind)
    return None if driver is None else _BY_DRIVER[driver]


def of_connection(connection: Any) -> Dialect:
    """The dialect of a connection, by its kind."""
    plain = of_plain(connection.__class__)
    if plain is not None:
        return plain
    name = getattr(getattr(connection, "dialect", None), "name", None)  # SQLAlchemy
    name = name or getattr(connection, "vendor", None)  # Django
    is_mysql = name in {"mysql", "mariadb"} or mysql.is_driver(unwrap.driver_connection(connection))
    return MYSQL if is_mysql else POSTGRES
