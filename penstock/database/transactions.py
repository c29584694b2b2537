"""Transactions on a connection of any kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.errors import InvalidArgument


def transaction_on(connection: Any) -> Any:
    """A transaction on a connection that is in none; it commits at the end or rolls back."""
    if hasattr(connection, "vendor"):
        from django.db.transaction import Atomic

        return Atomic(connection.alias, savepoint=True, durable=True)
    if hasattr(connection, "in_transaction"):  # SQLAlchemy
        if connection.in_transaction():
            raise InvalidArgument(
                "the connection is in a transaction already",
                hint="let connect() return a new connection",
            )
        return connection.begin()
    return _by_hand(connection)


@contextmanager
def _by_hand(connection: Any) -> Iterator[None]:
    """DB-API: the driver begins the transaction, unless the connection commits by itself."""
    begin = getattr(connection, "begin", None)
    if begin is not None:  # PyMySQL: it also works when the connection commits by itself
        begin()
    elif getattr(connection, "autocommit", False) is True:
        if not hasattr(connection, "transaction"):
            raise InvalidArgument(
                "the connection commits by itself", hint="let connect() turn autocommit off"
            )
        with connection.transaction():  # psycopg
            yield
        return
    try:
        yield
    except BaseException:
        connection.rollback()
        raise
    connection.commit()
