"""What loops need of a PostgreSQL connection: transactions, and hearing of the log."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from penstock.database import config
from penstock.database.dialect import CommitListener, Listener
from penstock.database.postgres.connection import is_own_session
from penstock.database.unended import cursor_kind
from penstock.database.wake import Wake
from penstock.errors import said

_IDLE, _IN_ERROR = 0, 3  # libpq's PQTRANS_IDLE and PQTRANS_INERROR


_OUTLIVED = "terminating connection due to"  # idle-in-transaction timeout, or transaction timeout


class _PostgresListener:
    """LISTEN."""

    def __init__(self, connection: Any) -> None:
        connection.execute(f'LISTEN "{config.schema_name()}_log"')
        self._connection = connection
        # With a pooler, another session listens, and its notices may reach any client.
        self._is_own = is_own_session(connection)
        #: False at first: an undetected pooler may have dropped the LISTEN.
        self.is_told = False

    def heard(self) -> list[str]:
        said = [notice.payload for notice in self._connection.notifies(timeout=0)]
        self.is_told = self._is_own and (self.is_told or bool(said))
        return said

    def wait(self, most_seconds: float, wake: Wake) -> list[str]:
        """Look before waiting: notices that came with a statement no longer show at the socket."""
        said = self.heard()
        if not said and not wake.wait(most_seconds, beside=self._connection.fileno()):
            return said
        return said or self.heard()


class _PostgresCommitListener:
    """LISTEN on the channel of `wake_sequencer`."""

    def __init__(self, connection: Any) -> None:
        connection.execute(f'LISTEN "{config.schema_name()}_wake"')
        self._connection = connection

    def wait(self, most_seconds: float) -> bool:
        return bool(list(self._connection.notifies(timeout=most_seconds, stop_after=1)))


class PostgresWork:
    """psycopg."""

    def transaction(self, connection: Any) -> AbstractContextManager[Any]:
        transaction: AbstractContextManager[Any] = connection.transaction()
        return transaction

    @contextmanager
    def unended(self, connection: Any) -> Iterator[None]:
        """Its cursors look at the text."""
        given = connection.cursor_factory
        connection.cursor_factory = cursor_kind(given)
        try:
            yield
        finally:
            connection.cursor_factory = given

    def is_broken(self, connection: Any) -> bool:
        """Whether the transaction has failed, or has ended: COMMIT says nothing of it."""
        return connection.info.transaction_status in {_IN_ERROR, _IDLE}

    def is_closed(self, connection: Any) -> bool:
        return bool(connection.closed)

    def commits_by_itself(self, connection: Any) -> bool:
        return bool(connection.autocommit and connection.info.transaction_status == _IDLE)

    def outlived_lease(self, error: BaseException, seconds: float, lease_seconds: float) -> bool:
        text = said(error)
        return _OUTLIVED in text and "timeout" in text

    def answer_within(self, connection: Any, seconds: float) -> None:
        limit = getattr(connection, "answer_seconds", None)
        connection.answer_seconds = seconds if limit is None else min(limit, seconds)

    def cut(self, connection: Any) -> None:
        with suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)  # psycopg closes its own number itself

    def listen(self, connection: Any) -> Listener:
        return _PostgresListener(connection)

    def commit_listener(self, connection: Any) -> CommitListener | None:
        """None behind a pooler, where another session would listen."""
        return _PostgresCommitListener(connection) if is_own_session(connection) else None
