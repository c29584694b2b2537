"""Rows in memory with transactions: READ COMMITTED, savepoints, and locks on single names.

A transaction keeps what it changes to itself until it commits.  It holds its locks until it
ends.  Another transaction that wants one waits, as in a database.  It gets an error when the wait
could never end.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Hashable
from datetime import datetime, timedelta
from typing import Any

from penstock.errors import DatabaseUnavailable, PenstockError
from penstock.testing.clock import VirtualClock

#: How long a statement waits for a lock, in real seconds.
LOCK_SECONDS = 60.0
_LOOK_AGAIN_SECONDS = 0.05
#: Stands for a row that a transaction has deleted.
_GONE = object()

#: Keys are texts, numbers or tuples of them, as each table has it.
Table = dict[Any, Any]


class WaitsForever(PenstockError):
    """A statement would wait for a transaction that cannot end during the wait."""


class MemoryStore:
    """The committed rows of all tables, and which transaction holds which lock."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.tables: defaultdict[str, Table] = defaultdict(dict)
        self.locks: dict[Hashable, MemoryTransaction] = {}
        self.open: set[MemoryTransaction] = set()
        #: Numbers that are given out once, even if a transaction rolls back.
        self.counters: Counter[str] = Counter()
        #: Seeded with the same number in every run, so that tests repeat exactly.
        self.random = random.Random(0)
        #: Every statement holds it.  It is notified when a transaction ends.
        self.turn = threading.Condition(threading.RLock())

    def next(self, counter: str) -> int:
        """The next number, from 1 on."""
        self.counters[counter] += 1
        return self.counters[counter]

    def end_outlived(self) -> None:
        """Roll back the transactions that hold a lease whose lease time is over."""
        now = self.clock.now()
        for each in list(self.open):
            if each.ends_at is not None and each.ends_at <= now:
                each.outlived = True
                each.rollback()


class MemoryTransaction:
    """What one transaction has changed so far, and the locks that it holds."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.outlived = False
        self.waiting_for: MemoryTransaction | None = None
        self.ends_at: datetime | None = None
        self.savepoints: list[tuple[str, int]] = []
        #: The thread that ran its last statement.
        self.thread = threading.get_ident()
        self._changes: defaultdict[str, Table] = defaultdict(dict)
        #: For each change, what it replaced in _changes: table, key, row.
        self._journal: list[tuple[str, Hashable, Any]] = []
        store.open.add(self)

    def get(self, table: str, key: Hashable) -> Any:
        """The row of a key, or None."""
        found = self._changes[table].get(key)
        if found is None:
            return self.store.tables[table].get(key)
        return None if found is _GONE else found

    def put(self, table: str, key: Hashable, row: Any) -> None:
        """Insert or replace a row."""
        changed = self._changes[table]
        self._journal.append((table, key, changed.get(key)))
        changed[key] = row

    def delete(self, table: str, key: Hashable) -> None:
        """Delete a row, if it is there."""
        self.put(table, key, _GONE)

    def rows(self, table: str) -> Table:
        """All rows that the transaction sees."""
        merged = self.store.tables[table] | self._changes[table]
        return {key: row for key, row in merged.items() if row is not _GONE}

    def has_written(self, table: str) -> bool:
        """Whether this transaction has written rows of a table."""
        return any(row is not _GONE for row in self._changes[table].values())

    def lock(self, name: Hashable, *, wait: bool = True) -> bool:
        """Lock a name until the transaction ends.  False when another one has it."""
        end = time.monotonic() + LOCK_SECONDS
        while (owner := self.store.locks.setdefault(name, self)) is not self:
            if not wait:
                return False
            self._require_hope(owner, end)
            self.waiting_for = owner
            try:
                self.store.turn.wait(_LOOK_AGAIN_SECONDS)
            finally:
                self.waiting_for = None
            self.store.end_outlived()
            if self.outlived:
                raise outlived_lease()
        return True

    def _require_hope(self, owner: MemoryTransaction, end: float) -> None:
        """Raise WaitsForever when the wait could never end."""
        if owner.thread == threading.get_ident():
            raise WaitsForever(
                "this would wait for a transaction that the same thread has open",
                hint="commit or roll back the other transaction first",
            )
        each: MemoryTransaction | None = owner
        while each is not None and each is not self:
            each = each.waiting_for
        if each is self or time.monotonic() >= end:
            raise WaitsForever(
                "deadlock: two transactions wait for each other"
                if each is self
                else f"a lock was not free within {LOCK_SECONDS:.0f} s",
                hint="roll back and try again",
            )

    def limit(self, left: timedelta) -> None:
        """End the transaction shortly before the lease that it holds.  Never extends a limit."""
        ends_at = self.store.clock.now() + left * 0.95
        self.ends_at = min(self.ends_at or ends_at, ends_at)

    def mark(self) -> int:
        """A mark for the changes made so far."""
        return len(self._journal)

    def back_to(self, mark: int) -> None:
        """Undo the changes after a mark.  Locks stay."""
        while len(self._journal) > mark:
            table, key, before = self._journal.pop()
            if before is None:
                del self._changes[table][key]
            else:
                self._changes[table][key] = before

    def commit(self) -> None:
        """Make all changes visible to every transaction at once."""
        for name, changed in self._changes.items():
            table = self.store.tables[name]
            for key, row in changed.items():
                if row is _GONE:
                    table.pop(key, None)
                else:
                    table[key] = row
        self._end()

    def rollback(self) -> None:
        """Drop all changes."""
        self._end()

    def _end(self) -> None:
        self._changes.clear()
        self._journal.clear()
        self.savepoints.clear()
        self.store.open.discard(self)
        self.store.locks = {
            name: owner for name, owner in self.store.locks.items() if owner is not self
        }
        self.store.turn.notify_all()


def outlived_lease() -> DatabaseUnavailable:
    """The error of a connection whose transaction was ended because it outlived its lease."""
    return DatabaseUnavailable(
        "the connection is closed: its transaction outlived its lease",
        hint="roll back what the work has done elsewhere, and open another connection",
    )
