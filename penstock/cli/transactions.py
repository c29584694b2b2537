"""The transaction of a command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock import database
from penstock.dialects import work

if TYPE_CHECKING:
    from penstock.database import Connection


@contextmanager
def own_transaction() -> Iterator[Connection]:
    """A connection in a transaction that commits at the end, on every engine."""
    with database.connect() as connection, work.of_connection(connection).transaction(connection):
        yield connection
