"""The ways by which an application reaches its database; each publishes in the same transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import psycopg
import sqlalchemy
import sqlalchemy.orm


class Door(Protocol):
    """An open connection of some library, inside a transaction."""

    connection: Any

    def execute(self, sql: str) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def savepoint(self) -> AbstractContextManager[Any]: ...


class PsycopgDoor:
    """psycopg, as its documentation uses it."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def execute(self, sql: str) -> None:
        self.connection.execute(sql.encode())

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def savepoint(self) -> AbstractContextManager[Any]:
        return self.connection.transaction()


class SqlalchemyDoor:
    """A SQLAlchemy Connection or Session."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def execute(self, sql: str) -> None:
        self.connection.execute(sqlalchemy.text(sql))

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def savepoint(self) -> AbstractContextManager[Any]:
        return self.connection.begin_nested()


NAMES = ("psycopg", "dictionaries", "connection", "session")


@contextmanager
def open_door(name: str, url: str) -> Iterator[Door]:
    """Open the door with this name, one of NAMES."""
    if name == "psycopg":
        with psycopg.connect(url) as connection:
            yield PsycopgDoor(connection)
    elif name == "dictionaries":
        with psycopg.connect(url, row_factory=psycopg.rows.dict_row) as dictionaries:
            yield PsycopgDoor(dictionaries)
    else:
        engine = sqlalchemy.create_engine(url)
        make = engine.connect if name == "connection" else lambda: sqlalchemy.orm.Session(engine)
        with make() as opened:
            yield SqlalchemyDoor(opened)
        engine.dispose()
