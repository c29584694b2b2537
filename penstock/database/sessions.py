"""The session of a connection: what loops need of it beyond statements, by kind of database."""

from __future__ import annotations

from typing import Any

from penstock.database import dialects
from penstock.database.dialect import Work
from penstock.database.mysql.session import MySQLWork
from penstock.database.postgres.session import PostgresWork

_POSTGRES: Work = PostgresWork()
_WORK: dict[str, Work] = {"postgres": _POSTGRES, "mysql": MySQLWork()}


def register(dialect_name: str, work: Work) -> None:
    """What the connections of a further dialect can do."""
    _WORK[dialect_name] = work


def of_async_connection(connection: Any) -> Work:
    """PostgreSQL's only: there is no other asynchronous driver that we know."""
    return _POSTGRES


def of_connection(connection: Any) -> Work:
    """By the kind of the connection."""
    return _WORK[dialects.of_connection(connection).name]
