"""How a migration is run on PostgreSQL: each step is one transaction under an advisory lock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from penstock.database import calls, catalog
from penstock.database.dialect import Row
from penstock.database.postgres import scripts as migration_scripts
from penstock.database.postgres.connection import require_server
from penstock.driver_errors import sqlstate_of
from penstock.errors import InvalidArgument, MigrationBlocked

_LOCK_NOT_AVAILABLE = "55P03"


class PostgresSteps:
    """The steps on one psycopg connection."""

    dialect = "postgres"

    def __init__(self, connection: Any, schema: str, lock_wait_seconds: float) -> None:
        self._connection = connection
        self.schema = schema
        self._lock_wait_seconds = lock_wait_seconds

    def require_server(self) -> None:
        """DatabaseTooOld when the server is too old."""
        require_server(self._connection.info.server_version)

    @contextmanager
    def session(self) -> Iterator[None]:
        """Does nothing: each transaction has its own settings and lock."""
        yield

    def prepare(self) -> None:
        """Create the schema and the bookkeeping table, unless they exist: then fewer rights do."""
        if not self._has_bookkeeping():
            self._apply(migration_scripts.prepare(self.schema), lambda: True)

    def migrations(
        self, text: str, recorded: Sequence[catalog.Migration], is_needed: Callable[[], bool]
    ) -> bool:
        """What makes the schema that these migrations lead to, and their records."""
        return self._apply(migration_scripts.migrations(text, recorded, self.schema), is_needed)

    def functions(self, functions: catalog.Functions, is_needed: Callable[[], bool]) -> bool:
        """All functions and their record."""
        return self._apply(migration_scripts.functions(functions, self.schema), is_needed)

    def recorded(self) -> list[Row]:
        """What was applied; nothing when there is no schema."""
        if not self._has_bookkeeping():
            return []
        by_function = self._needs_function()
        return calls.execute(
            self._connection, migration_scripts.recorded(self.schema, by_function=by_function)
        )

    @staticmethod
    def printed(
        schema: str,
        steps: Sequence[catalog.Step],
        functions: catalog.Functions,
        *,
        whole: bool,
    ) -> str:
        """The same scripts as text."""
        lock = migration_scripts.lock(schema)
        scripts = [migration_scripts.prepare(schema)] if whole else []
        scripts += [migration_scripts.migrations(*each, schema) for each in steps]
        scripts.append(migration_scripts.functions(functions, schema))
        title = f"-- Penstock, schema {schema}: apply with a tool that stops at the first error.\n"
        texts = "\n".join(f"\nBEGIN;\n{lock}{script.strip()}\nCOMMIT;" for script in scripts)
        return f"{title}{texts}\n"

    @staticmethod
    @contextmanager
    def outside_a_transaction(connection: Any) -> Iterator[Any]:
        """The caller's connection, which must be idle: each step is a transaction of its own."""
        from psycopg.pq import TransactionStatus

        if connection.info.transaction_status != TransactionStatus.IDLE:
            raise InvalidArgument(
                "the connection is inside a transaction, but each migration needs one of its own",
                hint="commit or roll back first, or give the URL of the database",
            )
        autocommit = connection.autocommit
        connection.autocommit = True
        try:
            yield connection
        finally:
            if not connection.closed:
                connection.autocommit = autocommit

    def _apply(self, script: str, is_needed: Callable[[], bool]) -> bool:
        # A script waits for a table only 100 ms at a time: while it waits, every publisher has to
        # wait too.
        deadline = time.monotonic() + self._lock_wait_seconds
        pause = 0.1
        while True:
            try:
                return self._once(script, is_needed)
            except Exception as error:
                if sqlstate_of(error) != _LOCK_NOT_AVAILABLE:
                    raise
                if time.monotonic() > deadline:
                    raise blocked(self._lock_wait_seconds) from error
            time.sleep(pause)
            pause = min(pause * 2, 2.0)

    def _once(self, script: str, is_needed: Callable[[], bool]) -> bool:
        with self._connection.transaction():
            self._connection.execute(migration_scripts.lock(self.schema).encode())
            if not is_needed():
                return False
            self._connection.execute(script.encode())
        return True

    def _has_bookkeeping(self) -> bool:
        rows = calls.execute(
            self._connection,
            "SELECT 1 FROM pg_catalog.pg_tables"
            " WHERE schemaname = %(schema)s AND tablename = 'schema_migrations'",
            {"schema": self.schema},
        )
        return bool(rows)

    def _needs_function(self) -> bool:
        """Whether the login may not read the table, but a function that reads it exists."""
        rows = calls.execute(
            self._connection,
            "SELECT 1 FROM pg_catalog.pg_class AS c"
            " JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace"
            " JOIN pg_catalog.pg_proc AS p ON p.pronamespace = n.oid"
            " WHERE n.nspname = %(schema)s AND c.relname = 'schema_migrations'"
            " AND p.proname = 'applied_migrations' AND p.pronargs = 0"
            " AND NOT pg_catalog.has_table_privilege(c.oid, 'SELECT')",
            {"schema": self.schema},
        )
        return bool(rows)


def blocked(seconds: float) -> MigrationBlocked:
    """The error when a table stayed locked, or another runner kept the migration lock."""
    return MigrationBlocked(
        f"the migration waited {seconds:g} s for a lock on a table, or for another run",
        hint="end the long transaction that uses Penstock's tables, then run it again",
    )
