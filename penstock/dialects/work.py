"""What the loops of consumers and relays need of their connection beyond statements."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from penstock import config, database, dialects
from penstock.dialects.mysql import in_transaction, lift_limit, took_savepoint
from penstock.wake import Wake

_IDLE, _IN_ERROR = 0, 3  # libpq's PQTRANS_IDLE and PQTRANS_INERROR
_OUTLIVED = "terminating connection due to"  # idle-in-transaction timeout, or transaction timeout

#: Between two looks at a log that cannot wake: about twelve a second where nothing happens.
_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.004, 0.1
_MEMORY_PAUSE_SECONDS = 0.02


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

    def listen(self, connection: Any) -> Ear:
        """Hear from now on what is sequenced."""
        ...


class Ear(Protocol):
    """What a connection hears of partitions that grew: of each pass their ids, or "all"."""

    @property
    def is_told(self) -> bool:
        """Whether it is sure to hear: else only a look tells what there is."""
        ...

    def heard(self) -> list[str]:
        """What was said since it was asked last; waits for nothing."""
        ...

    def wait(self, most_seconds: float, wake: Wake) -> list[str]:
        """The same; while there is nothing, until ``wake`` is set, and at most so long."""
        ...


class _PostgresEar:
    """LISTEN."""

    def __init__(self, connection: Any) -> None:
        connection.execute(f'LISTEN "{config.schema_name()}_log"')
        self._connection = connection
        # Behind a pooler it is another session that listens, and its notices come to anybody.
        self._is_own = dialects.postgres.is_own_session(connection)
        #: A pooler that was not seen may have swallowed the LISTEN.
        self.is_told = False

    def heard(self) -> list[str]:
        said = [notice.payload for notice in self._connection.notifies(timeout=0)]
        self.is_told = self._is_own and (self.is_told or bool(said))
        return said

    def wait(self, most_seconds: float, wake: Wake) -> list[str]:
        """What was heard during a statement does not show at the socket any more."""
        said = self.heard()
        if not said and not wake.wait(most_seconds, beside=self._connection.fileno()):
            return said
        return said or self.heard()


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

    def listen(self, connection: Any) -> Ear:
        return _PostgresEar(connection)


class _MySQLEar:
    """Nobody can be woken: a look at one row tells which passes there were since the last look.

    The pauses between them are random, so that many consumers do not come to look together.
    """

    is_told = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._pass: int | None = None
        self._pause = _SHORTEST_PAUSE_SECONDS
        self.heard()

    def heard(self) -> list[str]:
        ((newest, grown),) = database.call(self._connection, "grown_since", after=self._pass)
        before, self._pass = self._pass, newest
        if before is None or newest == before:
            return []
        self._pause = _SHORTEST_PAUSE_SECONDS
        passes = dict(each.split(":") for each in reversed(grown.split()))
        missed = [str(number) for number in range(before + 1, newest + 1)[: len(passes) + 1]]
        # Nobody knows what is further back, nor what a restore has taken away.
        return (
            [passes[each] for each in missed]
            if missed and passes.keys() >= set(missed)
            else ["all"]
        )

    def wait(self, most_seconds: float, wake: Wake) -> list[str]:
        until = time.monotonic() + most_seconds
        while (left := until - time.monotonic()) > 0:
            if wake.wait(min(self._pause, left)):
                break
            self._pause = min(
                _LONGEST_PAUSE_SECONDS, random.uniform(_SHORTEST_PAUSE_SECONDS, 3 * self._pause)
            )
            if said := self.heard():
                return said
        return []


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
        """The savepoint went with the transaction: by a deadlock, or because the block ended it.

        Or a call of the block's own SQL was interrupted, which only its savepoint tells.
        """
        is_torn = took_savepoint(connection, "penstock_open")
        return is_torn or not took_savepoint(connection, "penstock_work")

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

    def listen(self, connection: Any) -> Ear:
        return _MySQLEar(connection)


class _MemoryEar:
    """A look costs nothing, so nobody is told."""

    is_told = False

    def heard(self) -> list[str]:
        return []

    def wait(self, most_seconds: float, wake: Wake) -> list[str]:
        """A short pause."""
        wake.wait(min(most_seconds, _MEMORY_PAUSE_SECONDS))
        return []


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

    def listen(self, connection: Any) -> Ear:
        return _MemoryEar()


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
