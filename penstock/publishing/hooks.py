"""What is called after a commit, on connections that have a hook for it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from penstock.errors import InvalidArgument

_KEY = "penstock_after_commit"


def after_commit(connection: Any, call: Callable[[], None]) -> None:
    """Call once when the transaction of a Django connection or a SQLAlchemy session has committed.

    After a rollback it is forgotten.
    """
    if callable(getattr(connection, "on_commit", None)):  # Django
        connection.on_commit(call)
        return
    session = _session_of(connection)
    if session is None:
        raise InvalidArgument(
            f"{type(connection).__name__} has no hook after the commit",
            hint="use `with waker.transaction(connection):`, or call waker.wake() after the commit",
        )
    _listen()
    session.info.setdefault(_KEY, set()).add(call)


def _session_of(connection: Any) -> Any:
    """SQLAlchemy's Session behind an AsyncSession or a registry of sessions; None for all else."""
    orm: Any = sys.modules.get("sqlalchemy.orm")
    if orm is None:
        return None
    if callable(getattr(connection, "registry", None)):
        connection = connection.registry()
    session = getattr(connection, "sync_session", connection)
    return session if isinstance(session, orm.Session) else None


@cache
def _listen() -> None:
    """Hear of the transactions of all sessions: a listener for each session would pile up."""
    # Whoever gives a session has imported it.
    event: Any = sys.modules["sqlalchemy.event"]
    sessions = sys.modules["sqlalchemy.orm"].Session
    event.listen(sessions, "after_commit", _committed)
    event.listen(sessions, "after_transaction_end", _ended)


def _committed(session: Any) -> None:
    if not session.in_nested_transaction():  # else only a savepoint was released
        for call in session.info.pop(_KEY, ()):
            call()


def _ended(session: Any, transaction: Any) -> None:
    """What is still there when the transaction ends was rolled back."""
    if transaction.parent is None:
        session.info.pop(_KEY, None)
