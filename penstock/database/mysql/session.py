"""What loops need of a MySQL or MariaDB connection: transactions, and looks at the log."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.database import calls
from penstock.database.dialect import CommitListener, Listener
from penstock.database.mysql import limits, opening
from penstock.database.mysql.blocks import block_of
from penstock.database.mysql.connection import in_transaction, took_savepoint
from penstock.database.wake import Wake

#: Pauses between two looks at a log that cannot notify: about twelve looks a second when idle.
_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.004, 0.1


class _MySQLListener:
    """These databases cannot notify.  One row tells which passes there were since the last look.

    The pauses between two looks are random, so that many consumers do not look at the same time.
    """

    is_told = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._pass: int | None = None
        self._pause = _SHORTEST_PAUSE_SECONDS
        self.heard()

    def heard(self) -> list[str]:
        ((newest, grown),) = calls.call(self._connection, "grown_since", after=self._pass)
        before, self._pass = self._pass, newest
        if before is None or newest == before:
            return []
        self._pause = _SHORTEST_PAUSE_SECONDS
        passes = dict(each.split(":") for each in reversed(grown.split()))
        missed = [str(number) for number in range(before + 1, newest + 1)[: len(passes) + 1]]
        # The row does not tell about older passes, nor about those that a restore has lost.
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


class MySQLWork:
    """PyMySQL, on MySQL and MariaDB."""

    @contextmanager
    def transaction(self, connection: Any) -> Iterator[None]:
        # A deadlock rolls back everything.  A handler may ignore it and write on.  In a session
        # that commits by itself these writes would stay; in this one they are not committed.
        connection.autocommit(False)
        connection.begin()
        connection.query("SAVEPOINT penstock_work")
        try:
            with block_of(connection):
                yield
            limits.forget(connection)  # it is lifted below, also where a handler's own SQL set it
            connection.commit()
        except BaseException:
            # When the connection is gone, the server rolls back itself.
            with contextlib.suppress(Exception):
                connection.rollback()
            raise
        finally:
            with contextlib.suppress(Exception):  # the connection is gone: the loop notices it
                connection.autocommit(True)
                limits.lift(connection)

    @contextmanager
    def unended(self, connection: Any) -> Iterator[None]:
        """Its connection looks at the text."""
        connection.is_kept = True
        try:
            yield
        finally:
            connection.is_kept = False

    def is_broken(self, connection: Any) -> bool:
        """Whether the savepoint is gone: a deadlock or the block itself ended the transaction.

        Or a call in the block's own SQL was interrupted, which only the call's savepoint shows.
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
        """Judged by the time: the server closes an idle connection without saying why."""
        return seconds >= lease_seconds / 2

    def answer_within(self, connection: Any, seconds: float) -> None:
        limit = connection._read_timeout
        opening.limit_answers(connection, seconds if limit is None else min(limit, seconds))

    def cut(self, connection: Any) -> None:
        with contextlib.suppress(OSError, AttributeError):
            socket.socket.shutdown(connection._sock, socket.SHUT_RDWR)

    def listen(self, connection: Any) -> Listener:
        return _MySQLListener(connection)

    def commit_listener(self, connection: Any) -> CommitListener | None:
        """None: these databases cannot notify."""
        return None
