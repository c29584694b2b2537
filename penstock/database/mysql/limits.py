"""The time limit that a call leaves with a session, and when the session gets its own one back.

A call that locks a claim or a lease bounds the caller's transaction.  These engines have no limit
for a transaction, so the call sets one of the session, and it stays after COMMIT: MySQL would close
the session once it is idle for so long, MariaDB in a later transaction.  It is put back

- by ``commit`` and ``rollback`` of a connection of :func:`penstock.connect`,
- when SQLAlchemy's pool gets the connection back,
- before the next call on any other connection, once the transaction has ended.
"""

from __future__ import annotations

import sys
from contextlib import closing, suppress
from typing import Any
from weakref import WeakSet

from penstock.database import config
from penstock.database.dialect import on_sqlalchemy

#: The drivers' connections whose session has such a limit.
limited: WeakSet[Any] = WeakSet()


def note(connection: Any, driver: Any) -> None:
    """A call in the caller's transaction may have set a limit."""
    with suppress(TypeError):  # a connection of a driver written in C may not be referenced weakly
        limited.add(driver)
    if on_sqlalchemy(connection):
        _hear_of(connection.engine.pool)


def forget(driver: Any) -> None:
    """Somebody else lifts it."""
    limited.discard(driver)


def lift_noted(driver: Any) -> None:
    """After the end of a transaction: the session gets its own limit back, if a call set one."""
    if limited and driver in limited:
        limited.discard(driver)
        lift(driver)


def lift(driver: Any) -> None:
    """The session's own limit, if it still has the one of a call."""
    with closing(driver.cursor()) as cursor:
        cursor.execute(f"CALL `{config.schema_name()}`.lift_limit()")


def _hear_of(pool: Any) -> None:
    event = sys.modules["sqlalchemy.event"]  # loaded, because the connection is SQLAlchemy's
    if not event.contains(pool, "checkin", _given_back):
        event.listen(pool, "checkin", _given_back)


def _given_back(driver: Any, _record: Any) -> None:
    if driver is not None:  # else it was found broken
        lift_noted(driver)
