"""What the groups work on: a fresh Penstock and a bare table, on any engine."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from penstock import log
from penstock.records import Message
from penstock.topics import names

PARTITIONS = 16
NAMESPACE = "bench"
PASS = 50_000  # the most events of one pass of the sequencer


@dataclass(slots=True)
class Bench(ABC):
    """A migrated database and one connection to it, in autocommit mode.

    ``engine`` is postgres, mysql or mariadb.  ``title`` also has its version.
    """

    engine: str
    title: str
    url: str
    connection: Any
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1), init=False)

    def new_topic(self, partitions: int = PARTITIONS) -> str:
        """An empty topic."""
        topic = f"{NAMESPACE}/topic{next(self._numbers)}"
        names.create_topic(self.connection, topic, partitions)
        return topic

    def new_bare_table(self) -> str:
        """An empty table with a primary key."""
        table = f"bare{next(self._numbers)}"
        self.execute(self.bare_table.format(table))
        return table

    def work_off(self) -> int:
        """Sequence whatever waits, in committed passes.  Returns how many events."""
        done = 0
        while (result := log.sequence(self.connection, PASS)).sequenced or result.more:
            done += result.sequenced
        return done

    def figure(self, query: str) -> Any:
        """The only value of the only row of a query."""
        found = self.rows(query)
        return found[0][0] if found else None

    def insert(self, table: str) -> str:
        """The statement that puts one row into a bare table."""
        places = ", ".join(["%s"] * (self.bare_columns.count(",") + 1))
        return f"INSERT INTO {table} ({self.bare_columns}) VALUES ({places})"

    @property
    @abstractmethod
    def bare_table(self) -> str:
        """The table that an application would create: our columns and a primary key."""

    @property
    @abstractmethod
    def bare_columns(self) -> str:
        """Its six columns as statements name them."""

    @property
    @abstractmethod
    def id_type(self) -> str:
        """The type of its id."""

    @property
    @abstractmethod
    def first_id(self) -> Any:
        """An id below every other."""

    @abstractmethod
    def bare_rows(self, events: Iterable[Message]) -> Iterator[tuple[Any, ...]]:
        """Events as rows of a bare table: ids and headers are made while the clock runs, as ours.

        The ids rise with time, as ours do. Random ones would cost the bare table's index more.
        """

    @abstractmethod
    def execute(self, statement: str, binds: Sequence[Any] = ()) -> None:
        """Run one statement by the driver alone."""

    @abstractmethod
    def rows(self, query: str, binds: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query, by the driver alone."""

    @abstractmethod
    def executemany(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Run a statement for many rows, in the driver's own way."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Any]:
        """A transaction around the block, committed once."""

    @abstractmethod
    def require_durable(self) -> None:
        """End the run unless a commit is on disk before the server confirms it."""

    @abstractmethod
    def settle(self) -> None:
        """Make the server write what earlier runs left, so that this one does not pay for it."""

    @abstractmethod
    def analyse(self, table: str | None = None) -> None:
        """Bring the statistics of Penstock's log, and of a bare table, up to date."""

    @abstractmethod
    def fill(self, topics: Sequence[str], count: int) -> None:
        """Publish full-width events to the topics in turn, as fast as possible."""

    @abstractmethod
    def fill_both(self, topic: str, table: str, events: Sequence[Message]) -> None:
        """Put the same events into a topic and into a bare table, as fast as possible."""

    @abstractmethod
    def another(self) -> AbstractContextManager[Bench]:
        """Another one like this, which nothing that is held open here can affect."""

    @abstractmethod
    def held_view(self) -> AbstractContextManager[None]:
        """A session with an open snapshot: it has read one table of Penstock."""

    @property
    @abstractmethod
    def server_pid(self) -> int:
        """The server's process.  The other processes of PostgreSQL are its children."""

    @abstractmethod
    def calls(self) -> int:
        """How many statements it has run: on PostgreSQL transactions, each of one statement."""

    @property
    @abstractmethod
    def garbage_name(self) -> str:
        """The name of what a held snapshot piles up on this engine: dead tuples or undo."""

    @abstractmethod
    def garbage(self) -> int:
        """How much of it there is now."""

    @abstractmethod
    def garbage_report(self) -> str:
        """The same in words, with the tables if the engine reports them."""
