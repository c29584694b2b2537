"""The log in memory of :mod:`penstock.testing`: its statements are functions, not SQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from penstock.database.catalog import Statement
from penstock.database.dialect import Row


class Memory:
    """The dialect of a log in memory, for tests of applications."""

    name = "memory"
    is_atomic = False

    def connect(
        self, url: str, *, autocommit: bool, application_name: str, statement_timeout_ms: int
    ) -> Any:
        """A connection to the database of this process with this address."""
        from penstock.testing import database

        return database.of_url(url).connect(autocommit)

    def statement(self, name: str) -> Statement:
        """The statement with this name.  Raises NotInMemory for one that only databases have."""
        from penstock.testing import statements

        return statements.described(name)

    def execute(self, connection: Any, sql: str, binds: dict[str, Any] | None) -> list[Row]:
        """The function that the text names."""
        rows: list[Row] = connection.execute(sql, binds)
        return rows

    def events(self, connection: Any, sql: str, binds: dict[str, Any] | None) -> list[Row]:
        """As any other rows."""
        return self.execute(connection, sql, binds)

    def stream(
        self, connection: Any, sql: str, binds: dict[str, Any] | None, rows_at_once: int
    ) -> Iterator[Row]:
        """They are all there."""
        return iter(self.execute(connection, sql, binds))

    def answered(self, rows: list[Row], statement: Statement) -> list[Row]:
        """As they are."""
        return rows

    def atomic(self, connection: Any, statement: Statement) -> AbstractContextManager[Any]:
        """Do nothing: every statement is atomic by itself."""
        return nullcontext()

    def is_alone(self, connection: Any) -> bool:
        """Nothing is made again: a wait that cannot end is a mistake of the test."""
        return False

    def pauses_of_migration(self, connection: Any, *, is_alone: bool) -> Iterator[float]:
        """None: there is nothing to migrate."""
        return iter(())

    def key(self, driver: Any) -> tuple[str, ...]:
        """Its address is its key."""
        return ("memory", driver.key)

    def out_of_range(self, error: BaseException) -> str | None:
        """Nothing: numbers have no limit in memory."""
        return None
