"""A connection to a log in memory, with transactions as in a driver for PostgreSQL."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.database.dialect import Row
from penstock.errors import DatabaseUnavailable, InvalidArgument, UsageError
from penstock.testing.statements import NotInMemory, answered, text_of
from penstock.testing.store import MemoryStore, MemoryTransaction, outlived_lease

if TYPE_CHECKING:
    from types import TracebackType

_SAVEPOINT = re.compile(
    r"\s*(?:(SAVEPOINT)|(ROLLBACK\s+TO)(?:\s+SAVEPOINT)?|(RELEASE)(?:\s+SAVEPOINT)?)\s+(\w+)\s*;?\s*",
    re.IGNORECASE,
)
#: The statement that pools use to test a connection.
_PING = re.compile(r"\s*SELECT\s+1\s*;?\s*", re.IGNORECASE)


class MemoryConnection:
    """Runs the named statements of Penstock, and no other SQL.

    Other connections see what a transaction has written when it commits.
    """

    def __init__(
        self, store: MemoryStore, key: str, *, autocommit: bool, committed: Callable[[], None]
    ) -> None:
        self.key = key
        self.autocommit = autocommit
        self._store = store
        self._committed = committed
        self._transaction: MemoryTransaction | None = None
        self._in_block = False
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether it was closed, or ended because its transaction outlived a lease."""
        return self._closed or (self._transaction is not None and self._transaction.outlived)

    @property
    def commits_by_itself(self) -> bool:
        """Whether each statement commits when it ends."""
        return self.autocommit and self._transaction is None

    @property
    def is_waiting(self) -> bool:
        """Whether its statement waits for another transaction."""
        return self._transaction is not None and self._transaction.waiting_for is not None

    def execute(self, sql: str, binds: dict[str, Any] | None = None) -> list[Row]:
        """A named statement of Penstock, a savepoint, or ``SELECT 1``."""
        with self._statement() as transaction:
            name = sql.removeprefix(text_of(""))
            if name != sql:
                return answered()[name](transaction, **binds or {})
            if _PING.fullmatch(sql):
                return [(1,)]
            found = _SAVEPOINT.fullmatch(sql)
            if found is None:
                raise NotInMemory(
                    f"the log in memory runs no SQL: {sql[:80]}",
                    hint="put the application's own SQL into functions that a test can replace",
                )
            _savepoint(transaction, found)
            return []

    def commit(self) -> None:
        """Commit what was written.  Without a transaction it does nothing."""
        self._require_no_block("commit()")
        self._end(commits=True)

    def rollback(self) -> None:
        """Drop what was written."""
        self._require_no_block("rollback()")
        self._end(commits=False)

    @contextmanager
    def transaction(self) -> Iterator[MemoryConnection]:
        """A transaction, or a savepoint inside of one.  Rolled back when the block raises."""
        if self._transaction is None:
            yield from self._outer_block()
        else:
            mark = self._transaction.mark()
            try:
                yield self
            except BaseException:
                if self._transaction is not None:
                    self._transaction.back_to(mark)
                raise

    def close(self) -> None:
        """Roll back what is open, and end."""
        self._closed = True
        with self._store.turn:
            if self._transaction is not None:
                self._transaction.rollback()
                self._transaction = None

    def __enter__(self) -> MemoryConnection:
        """The connection.  At the end of the block it is committed and closed."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit unless the block raised, and close."""
        try:
            if kind is None and not self.closed:
                self.commit()
        finally:
            self.close()

    def _outer_block(self) -> Iterator[MemoryConnection]:
        with self._store.turn:
            self._begin()
        self._in_block = True
        try:
            yield self
        except BaseException:
            self._in_block = False
            self._end(commits=False)
            raise
        self._in_block = False
        self._end(commits=True)

    @contextmanager
    def _statement(self) -> Iterator[MemoryTransaction]:
        """Run a statement whole or not at all, one at a time over all connections."""
        alone = self._transaction is None and self.autocommit
        with self._store.turn:
            transaction = self._begin()
            transaction.thread = threading.get_ident()
            mark = transaction.mark()
            try:
                yield transaction
            except BaseException:
                transaction.back_to(mark)
                if alone:
                    self._end(commits=False)
                raise
        if alone:
            self._end(commits=True)

    def _begin(self) -> MemoryTransaction:
        self._store.end_outlived()
        if self.closed:
            raise self._ended()
        self._transaction = self._transaction or MemoryTransaction(self._store)
        return self._transaction

    def _end(self, *, commits: bool) -> None:
        with self._store.turn:
            self._store.end_outlived()
            if self.closed and commits:
                raise self._ended()
            transaction, self._transaction = self._transaction, None
            if transaction is None or transaction.outlived:
                self._closed = self._closed or transaction is not None
                return
            if not commits:
                transaction.rollback()
                return
            has_published = transaction.has_written("unsequenced")
            transaction.commit()
        if has_published:
            self._committed()

    def _ended(self) -> DatabaseUnavailable:
        if self._transaction is not None and self._transaction.outlived:
            return outlived_lease()
        return DatabaseUnavailable("the connection is closed", hint="open another one")

    def _require_no_block(self, what: str) -> None:
        if self._in_block:
            raise UsageError(
                f"{what} inside `with connection.transaction()`",
                hint="the end of the block commits, an exception rolls back",
            )


def _savepoint(transaction: MemoryTransaction, found: re.Match[str]) -> None:
    sets, rolls_back, _, name = found.groups()
    if sets:
        transaction.savepoints.append((name, transaction.mark()))
        return
    while transaction.savepoints and transaction.savepoints[-1][0] != name:
        transaction.savepoints.pop()
    if not transaction.savepoints:
        raise InvalidArgument(f"there is no savepoint {name}", hint="SAVEPOINT makes one")
    if rolls_back:
        transaction.back_to(transaction.savepoints[-1][1])
    else:
        transaction.savepoints.pop()
