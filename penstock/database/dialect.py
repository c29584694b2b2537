"""What every dialect must be able to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from penstock.database import address, config
from penstock.database.catalog import Statement
from penstock.database.wake import Wake
from penstock.errors import ConfigurationError, DatabaseUnavailable, PenstockError

CONNECT_TIMEOUT_SECONDS = 10
#: What a client waits for an answer beyond the limit of what it asked for.
ANSWER_SLACK_SECONDS = 5.0
#: For how long a loop without a lease waits for an answer.
LONGEST_ANSWER_SECONDS = 15.0

Row = tuple[Any, ...]


class Dialect(Protocol):
    """One kind of database; stateless.  It imports its driver only when it is needed."""

    name: str
    #: Every statement is atomic by itself, and its rows have the right types: neither
    #: :meth:`atomic` nor :meth:`answered` has anything to do.
    is_atomic: bool

    def connect(
        self, url: str, *, autocommit: bool, application_name: str, statement_timeout_ms: int
    ) -> Any:
        """A connection of the dialect's own driver, with limits."""
        ...

    def statement(self, name: str) -> Statement:
        """A named statement, for the schema that is set."""
        ...

    def execute(self, connection: Any, sql: str, binds: dict[str, Any] | None) -> list[Row]:
        """Run one statement on any kind of connection; returns all rows."""
        ...

    def events(self, connection: Any, sql: str, binds: dict[str, Any] | None) -> list[Row]:
        """The same for rows of events, whose ids and times may still be in the driver's form."""
        ...

    def stream(
        self, connection: Any, sql: str, binds: dict[str, Any] | None, rows_at_once: int
    ) -> Iterator[Row]:
        """Run one statement on a connection of the driver; hands out its rows as they come."""
        ...

    def answered(self, rows: list[Row], statement: Statement) -> list[Row]:
        """The rows of a named statement, with values of the same types on every dialect."""
        ...

    def atomic(self, connection: Any, statement: Statement) -> AbstractContextManager[Any]:
        """Makes the statement in its block atomic, even outside of a transaction."""
        ...

    def is_alone(self, connection: Any) -> bool:
        """Whether a call is a transaction of its own; True only when it is certain."""
        ...

    def pauses_of_migration(self, connection: Any, *, is_alone: bool) -> Iterator[float]:
        """The pauses before a call that lacks a procedure is made again: none if it is missing.

        MigrationRunning when only the end of the caller's transaction helps.
        """
        ...

    def key(self, driver: Any) -> tuple[str, ...] | None:
        """Which database a driver's connection is open to."""
        ...

    def out_of_range(self, error: BaseException) -> str | None:
        """The database's message when a number does not fit; None for every other error."""
        ...


def unavailable(url: str, error: BaseException, hint: str) -> PenstockError:
    """The error when the server cannot be reached; it shows only the place of the address."""
    text = address.without_secrets(url, str(error) or type(error).__name__)
    return DatabaseUnavailable(
        f"cannot connect to {address.shown(url)}: {text}",
        hint=hint or f"start the server, or correct {config.entry_of(url)}",
    )


def unusable(url: str, error: ValueError) -> PenstockError:
    """The error when a driver can do nothing with an address, such as a host that is no name."""
    text = address.without_secrets(url, str(error) or type(error).__name__)
    return ConfigurationError(
        f"the address {address.shown(url)} cannot be used: {text}",
        hint=f"correct {config.entry_of(url)}",
    )


def tuples(rows: Iterable[Any]) -> list[Row]:
    """A cursor's rows as tuples, also when the cursor makes dictionaries."""
    found = list(rows)
    if found and isinstance(found[0], Mapping):
        return [tuple(row.values()) for row in found]
    return list(map(tuple, found))


def on_sqlalchemy(connection: Any) -> bool:
    """Whether the connection is SQLAlchemy's, which must be told that a transaction begins."""
    return hasattr(connection, "exec_driver_sql")


class Work(Protocol):
    """One kind of database; stateless."""

    def transaction(self, connection: Any) -> AbstractContextManager[Any]:
        """A transaction that commits at the end, or rolls back when its block raises."""
        ...

    def unended(self, connection: Any) -> AbstractContextManager[Any]:
        """In this block, SQL text must not end the transaction."""
        ...

    def is_broken(self, connection: Any) -> bool:
        """Whether the transaction was rolled back while its block ignored the error."""
        ...

    def is_closed(self, connection: Any) -> bool:
        """Whether the connection is gone."""
        ...

    def commits_by_itself(self, connection: Any) -> bool:
        """Whether each statement commits when it ends, because no transaction is open."""
        ...

    def outlived_lease(self, error: BaseException, seconds: float, lease_seconds: float) -> bool:
        """Whether the server ended the session because its transaction took too long."""
        ...

    def answer_within(self, connection: Any, seconds: float) -> None:
        """Let each call on an own connection take at most so long, or less where it is so now."""
        ...

    def cut(self, connection: Any) -> None:
        """From another thread: end the wait for the server.  The connection is of no use then."""
        ...

    def listen(self, connection: Any) -> Listener:
        """Begin to hear which partitions get events."""
        ...

    def commit_listener(self, connection: Any) -> CommitListener | None:
        """Begin to hear publishers that have committed.  None where they cannot be heard."""
        ...


class Listener(Protocol):
    """What a connection hears of partitions that got events: for each pass their ids, or "all"."""

    @property
    def is_told(self) -> bool:
        """Whether it is certain to hear of new events.  If not, the caller has to poll."""
        ...

    def heard(self) -> list[str]:
        """What was heard since the last call; does not wait."""
        ...

    def wait(self, most_seconds: float, wake: Wake) -> list[str]:
        """The same, but waits for it: until ``wake`` is set, and at most this long."""
        ...


class CommitListener(Protocol):
    """Hears of the commits of publishers, for a sequencer that rests."""

    def wait(self, most_seconds: float) -> bool:
        """Wait until a publisher notifies.  Returns whether one did, now or since the last call."""
        ...
