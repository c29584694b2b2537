"""What the loops of consumers and relays need of their connection beyond statements."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from penstock import config, dialects
from penstock.dialects.mysql import in_transaction, lift_limit
from penstock.errors import errno_of
from penstock.wake import Wake

_IDLE, _IN_ERROR = 0, 3  # libpq's PQTRANS_IDLE and PQTRANS_INERROR
_OUTLIVED = "terminating connection due to"  # idle-in-transaction timeout, or transaction timeout

_NO_SAVEPOINT = 1305
_FIRST_PAUSE_SECONDS = 0.02


class Work(Protocol):
    """One kind of database; stateless."""

    def transaction(self, connection: Any) -> AbstractContextManager[Any]:
        """A transaction that commits at the end, or rolls back when its block raises."""
        ...

    def is_broken(self, connection: Any) -> bool:
        """Whether a transaction was rolled back under its block, which passed that over."""
        ...

    def is_closed(self, connection: Any) -> bool:
        """Whether the connection is gone."""
        ...

    def commits_by_itself(self, connection: Any) -> bool:
        """Whether a statement is committed with its end: no transaction is open."""
        ...

    def outlived_lease(self, error: BaseException, seconds: float, lease_seconds: float) -> bool:
        """Whether the server ended a session whose transaction went on for too long."""
        ...

    def listen(self, connection: Any) -> None:
        """Ask to be woken when something was sequenced, where the database can."""
        ...

    def notices(
        self, connection: Any, most_seconds: float, idle_rounds: int, stop: threading.Event | Wake
    ) -> Iterator[str]:
        """Wait at most so long; what was said of the partitions that grew.

        A Wake ends the waiting.
        """
        ...


class _PostgresWork:
    """psycopg."""

    def transaction(self, connection: Any) -> AbstractContextManager[Any]:
        transaction: AbstractContextManager[Any] = connection.transaction()
        return transaction

    def is_broken(self, connection: Any) -> bool:
        """The server answers COMMIT with a rollback and without an error."""
        return bool(connection.info.transaction_status == _IN_ERROR)

    def is_closed(self, connection: Any) -> bool:
        return bool(connection.closed)

    def commits_by_itself(self, connection: Any) -> bool:
        return bool(connection.autocommit and connection.info.transaction_status == _IDLE)

    def outlived_lease(self, error: BaseException, seconds: float, lease_seconds: float) -> bool:
        return _OUTLIVED in str(error) and "timeout" in str(error)

    def listen(self, connection: Any) -> None:
        connection.execute(f'LISTEN "{config.schema_name()}_log"')

    def notices(
        self, connection: Any, most_seconds: float, idle_rounds: int, stop: threading.Event | Wake
    ) -> Iterator[str]:
        if isinstance(stop, Wake):
            # What was heard during a statement does not show at the socket any more.
            heard = list(connection.notifies(timeout=0))
            if not heard:
                stop.wait(most_seconds, beside=connection.fileno())
                heard = list(connection.notifies(timeout=0))
        else:
            heard = list(connection.notifies(timeout=most_seconds, stop_after=1))
        return iter([notice.payload for notice in heard])


class _MySQLWork:
    """PyMySQL, on MySQL and MariaDB."""

    @contextmanager
    def transaction(self, connection: Any) -> Iterator[None]:
        # A deadlock rolls back everything.  In a session that commits by itself, what a handler
        # writes behind a deadlock that it passed over would stay; in this one it is not committed.
        connection.autocommit(False)
        connection.begin()
        connection.query("SAVEPOINT penstock_work")
        try:
            yield
            connection.commit()
        except BaseException:
            # What cannot be rolled back any more, the server rolls back itself.
            with contextlib.suppress(Exception):
                connection.rollback()
            raise
        finally:
            with contextlib.suppress(Exception):  # gone: the loop finds it out
                connection.autocommit(True)
                lift_limit(connection)

    def is_broken(self, connection: Any) -> bool:
        """The savepoint went with the transaction: by a deadlock, or because the block ended it."""
        try:
            connection.query("RELEASE SAVEPOINT penstock_work")
        except Exception as error:
            if errno_of(error) != _NO_SAVEPOINT:
                raise
            return True
        return False

    def is_closed(self, connection: Any) -> bool:
        try:
            connection.ping(reconnect=False)
        except Exception:
            return True
        return False

    def commits_by_itself(self, connection: Any) -> bool:
        return bool(connection.get_autocommit()) and in_transaction(connection) is False

    def outlived_lease(self, error: BaseException, seconds: float, lease_seconds: float) -> bool:
        """A connection that is closed for its idleness is told nothing: so by the time."""
        return seconds >= lease_seconds / 2

    def listen(self, connection: Any) -> None:
        """Nobody can be woken."""

    def notices(
        self, connection: Any, most_seconds: float, idle_rounds: int, stop: threading.Event | Wake
    ) -> Iterator[str]:
        """Pauses that double, so that a busy stream is read at once and an idle one rarely."""
        doubled = min(most_seconds, _FIRST_PAUSE_SECONDS * 2.0 ** min(idle_rounds, 20))
        stop.wait(doubled * random.uniform(0.5, 1))
        return iter(())


class _MemoryWork:
    """A log in memory, of penstock.testing."""

    def transaction(self, connection: Any) -> AbstractContextManager[Any]:
        transaction: AbstractContextManager[Any] = connection.transaction()
        return transaction

    def is_broken(self, connection: Any) -> bool:
        """A block cannot end the transaction that it is in."""
        return False

    def is_closed(self, connection: Any) -> bool:
        return bool(connection.closed)

    def commits_by_itself(self, connection: Any) -> bool:
        return bool(connection.commits_by_itself)

    def outlived_lease(self, error: BaseException, seconds: float, lease_seconds: float) -> bool:
        return "outlived its lease" in str(error)

    def listen(self, connection: Any) -> None:
        """A look costs nothing."""

    def notices(
        self, connection: Any, most_seconds: float, idle_rounds: int, stop: Any
    ) -> Iterator[str]:
        """A short pause."""
        stop.wait(min(most_seconds, _FIRST_PAUSE_SECONDS))
        return iter(())


_POSTGRES: Work = _PostgresWork()
_WORK: dict[str, Work] = {
    "postgres": _POSTGRES,
    "mysql": _MySQLWork(),
    "memory": _MemoryWork(),
}


def of_async_connection(connection: Any) -> Work:
    """PostgreSQL's only: there is no other asynchronous driver that we know."""
    return _POSTGRES


def of_connection(connection: Any) -> Work:
    """By the kind of the connection."""
    return _WORK[dialects.of_connection(connection).name]
