"""What loops need of a connection beyond statements, for each kind of database."""

from __future__ import annotations

from typing import Any

from penstock.database import dialects
from penstock.database.dialect import Work
from penstock.database.mysql.session import MySQLWork
from penstock.database.postgres.session import PostgresWork

_WORK: dict[str, Work] = {"postgres": PostgresWork(), "mysql": MySQLWork()}


def register(dialect_name: str, work: Work) -> None:
    """Add the Work of one more dialect."""
    _WORK[dialect_name] = work


def of_connection(connection: Any) -> Work:
    """The Work of a connection, by its kind."""
    return _WORK[dialects.of_connection(connection).name]
