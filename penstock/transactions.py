"""A transaction of our own around domain writes and the events that they lead to."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.errors import InvalidArgument
from penstock.publish import publish_batch
from penstock.registry import Registry


def within_transaction(
    connect: Callable[[], Any],
    fn: Callable[[Any], Iterable[object] | None],
    *,
    registry: Registry | None = None,
    strict: bool = False,
) -> list[uuid.UUID]:
    """Open a connection, call ``fn`` with it, publish what it answers, commit; answers their ids.

    ``fn`` makes the domain writes and answers the events: Messages, or objects of a ``registry``.
    Both are committed or neither is: any error rolls both back and comes out as it was raised.
    ``connect`` is, for example, ``lambda: psycopg.connect(url)``, SQLAlchemy's ``engine.connect``
    or ``sessionmaker(engine)``, or ``lambda: django.db.connection``.
    """
    connection = connect()
    try:
        with transaction_on(connection):
            events = fn(connection)
            messages = (registry or Registry()).messages(() if events is None else events)
            return publish_batch(connection, messages, strict=strict)
    finally:
        if not hasattr(connection, "vendor"):  # Django keeps its connections
            connection.close()


def transaction_on(connection: Any) -> Any:
    """The transaction of a connection that is in none, committed at the end or rolled back."""
    if hasattr(connection, "vendor"):
        from django.db.transaction import Atomic

        return Atomic(connection.alias, savepoint=True, durable=True)
    if hasattr(connection, "in_transaction"):  # SQLAlchemy
        if connection.in_transaction():
            raise InvalidArgument(
                "the connection is in a transaction already", hint="let connect() answer a new one"
            )
        return connection.begin()
    return _by_hand(connection)


@contextmanager
def _by_hand(connection: Any) -> Iterator[None]:
    """DB-API: it begins by itself, unless the connection commits by itself."""
    begin = getattr(connection, "begin", None)
    if begin is not None:  # PyMySQL: also where the connection commits by itself
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
