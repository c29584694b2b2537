"""The transaction of a command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock import database
from penstock.database import sessions

if TYPE_CHECKING:
    from penstock.database import Connection


@contextmanager
def own_transaction(*, with_grants: bool = False) -> Iterator[Connection]:
    """A connection in a transaction that commits at the end, on every engine.

    On MySQL and MariaDB, grants run without a transaction: each GRANT commits.
    """
    with database.connect() as connection:
        if with_grants and database.dialect_of(connection) == "mysql":
            yield connection
            return
        with sessions.of_connection(connection).transaction(connection):
            yield connection
