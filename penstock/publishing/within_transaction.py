"""A transaction that Penstock opens, around domain writes and the events that follow from them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any

from penstock.database import unwrap
from penstock.database.transactions import transaction_on
from penstock.publishing.event_types import Registry
from penstock.publishing.publish import publish_batch
from penstock.publishing.waker import Waker


def within_transaction(
    connect: Callable[[], Any],
    fn: Callable[[Any], Iterable[object] | None],
    *,
    registry: Registry | None = None,
    strict: bool = False,
    waker: Waker | None = None,
) -> list[uuid.UUID]:
    """Open a connection, call ``fn`` with it, publish what it returns, commit; returns the ids.

    ``fn`` makes the domain writes and returns the events: Messages, or objects of a ``registry``.
    Both are committed or neither is.  Any error rolls both back and reaches the caller unchanged.
    ``connect`` is, for example, ``lambda: psycopg.connect(url)``, SQLAlchemy's ``engine.connect``
    or ``sessionmaker(engine)``, or ``lambda: django.db.connection``.  A ``waker`` wakes the
    sequencer after the commit, so that it need not look first.
    """
    connection = connect()
    unwrap.require_connection(connection)  # before anything is written, and a pool stays open
    try:
        with transaction_on(connection):
            events = fn(connection)
            messages = (registry or Registry()).messages(() if events is None else events)
            event_ids = publish_batch(connection, messages, strict=strict)
        if waker is not None and event_ids:
            waker.wake()
        return event_ids
    finally:
        if not hasattr(connection, "vendor"):  # Django keeps its connections
            connection.close()
