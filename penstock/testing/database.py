"""A log in memory, and its consumers, which run in the thread of a test."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from penstock import log
from penstock.errors import DatabaseUnavailable
from penstock.testing.clock import VirtualClock
from penstock.testing.connection import MemoryConnection
from penstock.testing.store import MemoryStore

_numbers = itertools.count(1)
_databases: weakref.WeakValueDictionary[str, MemoryDatabase] = weakref.WeakValueDictionary()


class RunsUntilIdle(Protocol):
    """A consumer that handles the events that are there and returns how many they were."""

    def run_until_idle(self) -> int:
        """Handle the events that are there now."""
        ...


class MemoryDatabase:
    """A new log, empty and without a server.

        db = MemoryDatabase()
        connection = db.connect()
        penstock.create_topic(connection, "shop/orders", create_namespaces=True)

    ``url`` is its address, for code that opens connections itself.  It is valid as long as this
    object exists.
    """

    def __init__(self, clock: VirtualClock | None = None) -> None:
        self.clock = clock or VirtualClock()
        self.url = f"testing://{next(_numbers)}"
        self._store = MemoryStore(self.clock)
        self._inline: tuple[RunsUntilIdle, ...] = ()
        _databases[self.url] = self

    def connect(self, autocommit: bool = True) -> MemoryConnection:
        """A connection.  As with a driver, connections see what others have committed."""
        return MemoryConnection(
            self._store, self.url, autocommit=autocommit, committed=self._committed
        )

    def run_until_idle(self, *consumers: RunsUntilIdle) -> int:
        """Sequence and handle until nothing is left, including what handlers publish.

        Returns how many events were handled.
        """
        handled = 0
        while True:
            sequenced = self._sequence()
            done = sum(each.run_until_idle() for each in consumers)
            handled += done
            if not done and not sequenced:
                return handled

    @contextmanager
    def inline(self, *consumers: RunsUntilIdle) -> Iterator[None]:
        """Inside the block, :meth:`run_until_idle` follows every commit that publishes.

        So an event is sequenced and handled when the publishing call, or the end of its
        transaction, returns.  A handler that fails raises there.
        """
        self.run_until_idle(*consumers)
        before, self._inline = self._inline, consumers
        try:
            yield
        finally:
            self._inline = before

    def _committed(self) -> None:
        consumers, self._inline = self._inline, ()
        if consumers:  # else not inside inline(), or a handler published: the loop finds it
            try:
                self.run_until_idle(*consumers)
            finally:
                self._inline = consumers

    def _sequence(self) -> int:
        total, more = 0, True
        with self.connect() as connection:
            while more:
                result = log.sequence(connection)
                total, more = total + result.sequenced, result.more
        return total


def of_url(url: str) -> MemoryDatabase:
    """The database of an address."""
    found = _databases.get(url)
    if found is None:
        raise DatabaseUnavailable(
            f"there is no log in memory at {url}", hint="keep the MemoryDatabase while it is used"
        )
    return found
