"""A log in memory, and running consumers on it in the thread of a test."""

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
from penstock.testing.store import Store

_numbers = itertools.count(1)
_databases: weakref.WeakValueDictionary[str, MemoryDatabase] = weakref.WeakValueDictionary()


class RunsUntilIdle(Protocol):
    """A consumer: it works off what is there and answers how many events that were."""

    def run_until_idle(self) -> int:
        """Work off what is there now."""
        ...


class MemoryDatabase:
    """A log of its own, empty and without a server.

        db = MemoryDatabase()
        connection = db.connect()
        penstock.create_topic(connection, "shop/orders", create_namespaces=True)

    ``url`` is its address, for what opens connections itself; it lives as long as this object.
    """

    def __init__(self, clock: VirtualClock | None = None) -> None:
        self.clock = clock or VirtualClock()
        self.url = f"testing://{next(_numbers)}"
        self._store = Store(self.clock)
        self._inline: tuple[RunsUntilIdle, ...] = ()
        _databases[self.url] = self

    def connect(self, autocommit: bool = True) -> MemoryConnection:
        """A connection; as with a driver, several see of each other what is committed."""
        return MemoryConnection(
            self._store, self.url, autocommit=autocommit, committed=self._committed
        )

    def run_until_idle(self, *consumers: RunsUntilIdle) -> int:
        """Sequence and handle until nothing is left, what handlers publish as well.

        Answers how many events were handled.
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
        """Inside the block every commit that publishes is followed by :meth:`run_until_idle`.

        So what is published is sequenced and handled when the publishing call, or the end of its
        transaction, returns; a handler that fails raises there.
        """
        self.run_until_idle(*consumers)
        before, self._inline = self._inline, consumers
        try:
            yield
        finally:
            self._inline = before

    def _committed(self) -> None:
        consumers, self._inline = self._inline, ()
        if consumers:  # else nobody asked, or a handler has published: the loop finds it
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
