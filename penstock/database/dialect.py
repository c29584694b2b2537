"""What every dialect can do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from penstock.database import address, config
from penstock.database.catalog import Statement
from penstock.database.wake import Wake
from penstock.errors import DatabaseUnavailable, PenstockError

CONNECT_TIMEOUT_SECONDS = 10

Row = tuple[Any, ...]


class Dialect(Protocol):
    """One kind of database; stateless, and nothing of a driver is imported before it is needed."""

    name: str

    def connect(
        self, url: str, *, autocommit: bool, application_name: str, statement_timeout_ms: int
    ) -> Any:
        """A connection of the dialect's own driver, with limits."""
        ...

    def statement(self, name: str) -> Statement:
        """A named statement, for the schema that is set."""
        ...

    def binds(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters as the driver takes them."""
        ...

    def execute(self, connection: Any, sql: str, binds: dict[str, Any] | None) -> list[Row]:
        """Run one statement on any kind of connection; all rows that it answers."""
        ...

    def events(self, connection: Any, sql: str, binds: dict[str, Any] | None) -> list[Row]:
        """The same for rows of events, whose ids and times may come as the driver has them."""
        ...

    def answered(self, rows: list[Row], statement: Statement) -> list[Row]:
        """The rows of a named statement with the values that the other dialects give too."""
        ...

    def atomic(self, connection: Any, statement: Statement) -> AbstractContextManager[Any]:
        """Around a statement: wholly or not at all, outside of a transaction too."""
        ...

    def key(self, driver: Any) -> tuple[str, ...] | None:
        """Which database a driver's connection is open to."""
        ...

    def out_of_range(self, error: BaseException) -> str | None:
        """What the database says when a number does not fit; None for every other error."""
        ...


def unavailable(url: str, error: BaseException, hint: str) -> PenstockError:
    """The server could not be reached; of the address only where it is."""
    text = address.without_secrets(url, str(error) or type(error).__name__)
    return DatabaseUnavailable(
        f"cannot connect to {address.shown(url)}: {text}",
        hint=hint or f"start the server, or correct {config.URL_VARIABLE}",
    )


def tuples(rows: Iterable[Any]) -> list[Row]:
    """Rows as a cursor gives them, which may be one that makes dictionaries."""
    found = list(rows)
    if found and isinstance(found[0], Mapping):
        return [tuple(row.values()) for row in found]
    return list(map(tuple, found))


def on_sqlalchemy(connection: Any) -> bool:
    """Whether the connection is SQLAlchemy's, which has to know that a transaction begins."""
    return hasattr(connection, "exec_driver_sql")


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
