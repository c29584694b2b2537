"""What loops need from a connection to a log in memory."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from penstock.database.dialect import CommitListener, Listener
from penstock.database.wake import Wake
from penstock.errors import said

_MEMORY_PAUSE_SECONDS = 0.02


class _MemoryListener:
    """Sends no notices: a look for events is cheap in memory."""

    is_told = False

    def heard(self) -> list[str]:
        return []

    def wait(self, most_seconds: float, wake: Wake) -> list[str]:
        """A short pause."""
        wake.wait(min(most_seconds, _MEMORY_PAUSE_SECONDS))
        return []


class MemoryWork:
    """The connections of a log in memory, as loops use them."""

    def transaction(self, connection: Any) -> AbstractContextManager[Any]:
        transaction: AbstractContextManager[Any] = connection.transaction()
        return transaction

    def unended(self, connection: Any) -> AbstractContextManager[Any]:
        """The log in memory runs no such text."""
        return nullcontext()

    def is_broken(self, connection: Any) -> bool:
        """Never: a block cannot end the transaction that it is in."""
        return False

    def answer_within(self, connection: Any, seconds: float) -> None:
        """Nothing waits for a server."""

    def cut(self, connection: Any) -> None:
        """Nor here."""

    def is_closed(self, connection: Any) -> bool:
        return bool(connection.closed)

    def commits_by_itself(self, connection: Any) -> bool:
        return bool(connection.commits_by_itself)

    def outlived_lease(self, error: BaseException, seconds: float, lease_seconds: float) -> bool:
        return "outlived its lease" in said(error)

    def listen(self, connection: Any) -> Listener:
        return _MemoryListener()

    def commit_listener(self, connection: Any) -> CommitListener | None:
        return None
