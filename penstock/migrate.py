"""Installs and upgrades the schema.

Numbered migrations run once each, in a transaction of their own, and are never edited: their
checksums are recorded.  The functions are repeatable: all of them are applied, in one transaction,
whenever one has changed.  Migrations are expand/contract, so the version before works
on the new schema; one that ends this says so (``-- oldest program: NNNN``).

The runner and ``--print`` share the scripts in :mod:`penstock.migration_scripts`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock import catalog, config, database, migration_scripts
from penstock.errors import (
    DatabaseUnavailable,
    InvalidArgument,
    MigrationBlocked,
    MigrationChanged,
    NotMigrated,
    PenstockError,
    PermissionDenied,
    SchemaTooNew,
    from_database,
    sqlstate_of,
)
from penstock.migration_scripts import FUNCTIONS_VERSION

if TYPE_CHECKING:
    from penstock.database import Connection

DIALECT = "postgres"
LOCK_WAIT_SECONDS = 60.0

_LOCK_NOT_AVAILABLE = "55P03"
_INSUFFICIENT_PRIVILEGE = "42501"
_PENDING = frozenset({"pending", "outdated"})


@dataclass(frozen=True, slots=True)
class MigrationStatus:
    """One line of ``penstock migrate --status``.

    ``state`` is applied, pending, outdated (functions of an older version), changed (the file
    differs from what was applied) or newer (applied by a newer program).
    """

    version: int
    name: str
    state: str
    applied_at: datetime | None = None
    applied_by: str | None = None


@dataclass(frozen=True, slots=True)
class MigrationResult:
    """What :func:`migrate` did: the names of what it applied, none if all was in place."""

    schema: str
    version: int
    applied: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Recorded:
    version: int
    name: str
    checksum: str
    oldest_program: int
    program: str
    applied_at: datetime
    applied_by: str


def migrate(
    connection_or_url: Connection | str | None = None,
    schema: str | None = None,
    *,
    lock_wait_seconds: float = LOCK_WAIT_SECONDS,
) -> MigrationResult:
    """Bring the schema up to date; safe to run twice at once, and again after a failure."""
    schema = config.validate_schema(schema) if schema else config.schema_name()
    with _typed_errors(schema), _connection(connection_or_url) as connection:
        database.require_server(connection.info.server_version)
        runner = _Runner(connection, schema, lock_wait_seconds)
        runner.prepare()
        _refuse_foreign(_recorded(connection, schema))
        applied = [each.name for each in catalog.migrations(DIALECT) if runner.migration(each)]
        if runner.functions():
            applied.append("functions")
    return MigrationResult(schema, len(catalog.migrations(DIALECT)), tuple(applied))


def status(
    connection_or_url: Connection | str | None = None, schema: str | None = None
) -> list[MigrationStatus]:
    """Every migration that the program or the database knows, and its state."""
    schema = config.validate_schema(schema) if schema else config.schema_name()
    with _typed_errors(schema), _connection(connection_or_url) as connection:
        recorded = _recorded(connection, schema)
    lines = [_line(each, recorded.pop(each.version, None)) for each in _known()]
    newer = (_line(None, each) for each in recorded.values() if each.version != FUNCTIONS_VERSION)
    functions = _functions_line(recorded.get(FUNCTIONS_VERSION))
    return [*lines, *newer, functions]


def check(
    connection_or_url: Connection | str | None = None, schema: str | None = None
) -> list[MigrationStatus]:
    """What :func:`migrate` would apply; MigrationChanged when an applied file was edited."""
    lines = status(connection_or_url, schema)
    for line in lines:
        if line.state == "changed":
            raise _changed(line.version, line.name)
    return [line for line in lines if line.state in _PENDING]


def require_usable(connection: Connection, schema: str | None = None) -> None:
    """NotMigrated or SchemaTooNew unless this program can work with the schema as it is.

    A newer schema is fine as long as no migration says that this program cannot use it.
    """
    schema = config.validate_schema(schema) if schema else config.schema_name()
    recorded = _recorded(connection, schema)
    missing = [each for each in _known() if each.version not in recorded]
    if missing or FUNCTIONS_VERSION not in recorded:
        what = f"migration {missing[0].version:04d}_{missing[0].name}" if missing else "functions"
        raise NotMigrated(f"the schema {schema} is not up to date: {what} is missing")
    oldest = max(each.oldest_program for each in recorded.values())
    if oldest > len(_known()):
        raise _too_new(max(recorded))


def print_sql(schema: str | None = None, *, since: int = 0) -> str:
    """The SQL that :func:`migrate` runs, for teams with a tool of their own; always the same text.

    ``since`` leaves out the migrations up to that number.
    """
    schema = config.validate_schema(schema) if schema else config.schema_name()
    lock = migration_scripts.lock(schema)
    scripts = [migration_scripts.prepare(schema)] if since == 0 else []
    scripts += [
        migration_scripts.migration(each, schema) for each in _known() if each.version > since
    ]
    scripts.append(migration_scripts.functions(catalog.functions(DIALECT), schema))
    title = f"-- Penstock, schema {schema}: apply with a tool that stops at the first error.\n"
    return (
        title + "\n".join(f"\nBEGIN;\n{lock}{script.strip()}\nCOMMIT;" for script in scripts) + "\n"
    )


class _Runner:
    """Applies the scripts, each in one transaction under the migration lock."""

    def __init__(self, connection: Connection, schema: str, lock_wait_seconds: float) -> None:
        self._connection = connection
        self._schema = schema
        self._lock_wait_seconds = lock_wait_seconds

    def prepare(self) -> None:
        """Schema and bookkeeping table, unless they are there: that needs fewer rights."""
        if not _has_bookkeeping(self._connection, self._schema):
            self._apply(migration_scripts.prepare(self._schema), lambda: True)

    def migration(self, migration: catalog.Migration) -> bool:
        """Apply one migration unless it is applied; True when it was."""

        def is_needed() -> bool:
            recorded = _recorded(self._connection, self._schema)
            _refuse_foreign(recorded)
            return migration.version not in recorded

        script = migration_scripts.migration(migration, self._schema)
        return is_needed() and self._apply(script, is_needed)

    def functions(self) -> bool:
        """Apply all functions if one has changed; True when they were."""
        functions = catalog.functions(DIALECT)

        def is_needed() -> bool:
            recorded = _recorded(self._connection, self._schema)
            _refuse_foreign(recorded)
            return _functions_line(recorded.get(FUNCTIONS_VERSION)).state in _PENDING

        script = migration_scripts.functions(functions, self._schema)
        return is_needed() and self._apply(script, is_needed)

    def _apply(self, script: str, is_needed: Callable[[], bool]) -> bool:
        # A script waits for a table only 100 ms at a time: whoever waits for a table makes every
        # publisher queue up behind it.
        deadline = time.monotonic() + self._lock_wait_seconds
        pause = 0.1
        while True:
            try:
                return self._once(script, is_needed)
            except Exception as error:
                if sqlstate_of(error) != _LOCK_NOT_AVAILABLE:
                    raise
                if time.monotonic() > deadline:
                    raise _blocked(self._lock_wait_seconds) from error
            time.sleep(pause)
            pause = min(pause * 2, 2.0)

    def _once(self, script: str, is_needed: Callable[[], bool]) -> bool:
        with self._connection.transaction():
            self._connection.execute(migration_scripts.lock(self._schema).encode())
            if not is_needed():
                return False
            self._connection.execute(script.encode())
        return True


def _known() -> tuple[catalog.Migration, ...]:
    return catalog.migrations(DIALECT)


def _has_bookkeeping(connection: Connection, schema: str) -> bool:
    rows = database.execute(
        connection,
        "SELECT 1 FROM pg_catalog.pg_tables"
        " WHERE schemaname = %(schema)s AND tablename = 'schema_migrations'",
        {"schema": schema},
    )
    return bool(rows)


def _needs_function(connection: Connection, schema: str) -> bool:
    """Whether the login may not read the table, and there is the function that reads it instead."""
    rows = database.execute(
        connection,
        "SELECT 1 FROM pg_catalog.pg_class AS c"
        " JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace"
        " JOIN pg_catalog.pg_proc AS p ON p.pronamespace = n.oid"
        " WHERE n.nspname = %(schema)s AND c.relname = 'schema_migrations'"
        " AND p.proname = 'applied_migrations' AND p.pronargs = 0"
        " AND NOT pg_catalog.has_table_privilege(c.oid, 'SELECT')",
        {"schema": schema},
    )
    return bool(rows)


def _recorded(connection: Connection, schema: str) -> dict[int, _Recorded]:
    if not _has_bookkeeping(connection, schema):
        return {}
    by_function = _needs_function(connection, schema)
    rows = database.execute(connection, migration_scripts.recorded(schema, by_function=by_function))
    return {row[0]: _Recorded(*row) for row in rows}


def _refuse_foreign(recorded: dict[int, _Recorded]) -> None:
    """Refuse edited migrations, and a schema that a newer program has migrated."""
    newest = max(recorded, default=0)
    if newest > len(_known()):
        raise _too_new(newest)
    for each in _known():
        line = _line(each, recorded.get(each.version))
        if line.state == "changed":
            raise _changed(line.version, line.name)
    functions = recorded.get(FUNCTIONS_VERSION)
    if functions and _functions_line(functions).state == "newer":
        raise SchemaTooNew(
            f"the functions in the database are of Penstock {functions.program}, "
            f"this program is {migration_scripts.program()}",
            hint="upgrade this program: pip install --upgrade penstock",
        )


def _line(known: catalog.Migration | None, recorded: _Recorded | None) -> MigrationStatus:
    if recorded is None:
        assert known is not None
        return MigrationStatus(known.version, known.name, "pending")
    if known is None:
        state = "newer"
    else:
        state = "applied" if known.checksum == recorded.checksum else "changed"
    return MigrationStatus(
        recorded.version, recorded.name, state, recorded.applied_at, recorded.applied_by
    )


def _functions_line(recorded: _Recorded | None) -> MigrationStatus:
    if recorded is None:
        return MigrationStatus(FUNCTIONS_VERSION, "functions", "pending")
    if recorded.checksum == catalog.functions(DIALECT).checksum:
        state = "applied"
    elif _release(recorded.program) > _release(migration_scripts.program()):
        state = "newer"
    else:
        state = "outdated"
    return MigrationStatus(
        FUNCTIONS_VERSION, "functions", state, recorded.applied_at, recorded.applied_by
    )


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _too_new(newest: int) -> SchemaTooNew:
    return SchemaTooNew(
        f"the schema is at migration {newest:04d}, this program knows {len(_known()):04d}",
        hint="upgrade this program: pip install --upgrade penstock",
    )


def _changed(version: int, name: str) -> MigrationChanged:
    return MigrationChanged(
        f"migration {version:04d}_{name} was applied in another form than this program holds",
        hint="applied migrations are never edited: restore the file, add a new migration instead",
    )


def _blocked(seconds: float) -> MigrationBlocked:
    return MigrationBlocked(
        f"the migration could not lock a table, or another runner held it up, for {seconds:g} s",
        hint="end the long transaction that uses Penstock's tables, then run it again",
    )


@contextmanager
def _connection(connection_or_url: Any) -> Iterator[Connection]:
    if connection_or_url is None or isinstance(connection_or_url, str):
        with database.connect(connection_or_url, statement_timeout_ms=0) as connection:
            yield connection
        return
    with _outside_a_transaction(connection_or_url) as connection:
        yield connection


@contextmanager
def _outside_a_transaction(connection: Connection) -> Iterator[Connection]:
    """The caller's connection, which must be idle: each migration is a transaction of its own."""
    from psycopg.pq import TransactionStatus

    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise InvalidArgument(
            "the connection is inside a transaction, but each migration is one of its own",
            hint="commit or roll back first, or give the URL of the database",
        )
    autocommit = connection.autocommit
    connection.autocommit = True
    try:
        yield connection
    finally:
        if not connection.closed:
            connection.autocommit = autocommit


@contextmanager
def _typed_errors(schema: str) -> Iterator[None]:
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        translated = from_database(error, schema)
        if translated is None and sqlstate_of(error) == _INSUFFICIENT_PRIVILEGE:
            translated = PermissionDenied(
                f"the login may not install or read the schema {schema}: {error}",
                hint="use the login that owns the schema, or one with CREATE on the database",
            )
        if translated is None and database.is_unavailable(error):
            translated = DatabaseUnavailable(
                "the connection to the database was lost",
                hint="run it again: a migration is applied wholly or not at all",
            )
        if translated is None:
            raise
        raise translated from error
