"""Installs and upgrades the schema.

A new installation gets the tables of all rooms (``tables.sql``), which are the schema as it is now.
An older one gets the numbered migrations that it lacks: each runs once and is never edited, because
its checksum is recorded.  Both lead to the same schema.  The functions are repeatable: all of them
are applied whenever one has changed.  On PostgreSQL each step is a
transaction.  MySQL commits with every statement, so there each statement can be repeated.
Migrations expand first and contract later, so the version before works on the new schema.  A
migration on which older programs no longer work says so (``-- oldest program: NNNN``).

How a step is run depends on the dialect: :mod:`penstock.database.postgres.migrate` and
:mod:`penstock.database.mysql.migrate`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.database import calls, catalog, config, denied
from penstock.database.mysql import migrate as mysql_migrate
from penstock.database.postgres import migrate as postgres_migrate, scripts as migration_scripts
from penstock.database.postgres.scripts import FUNCTIONS_VERSION
from penstock.driver_errors import errno_of, from_database, sqlstate_of
from penstock.errors import (
    ConfigurationError,
    DatabaseUnavailable,
    MigrationChanged,
    NotMigrated,
    PenstockError,
    PermissionDenied,
    SchemaTooNew,
    UnreleasedSchema,
)

if TYPE_CHECKING:
    from penstock.database.calls import Connection

DIALECT = "postgres"
LOCK_WAIT_SECONDS = 60.0

_INSUFFICIENT_PRIVILEGE = "42501"
#: MySQL's refusals: on a database, of a user's right, on a table, on a procedure, and to make
#: functions while the binary log is on.
_ACCESS_DENIED = frozenset({1044, 1142, 1227, 1370, 1419})
_NO_FUNCTIONS = 1419
_CALL_REFUSED = "execute command denied"
_BINARY_LOG_HINT = "; or first SET GLOBAL log_bin_trust_function_creators = 1"
_PENDING = frozenset({"pending", "outdated"})

Steps = postgres_migrate.PostgresSteps | mysql_migrate.MySQLSteps
_STEPS: dict[str, type[Steps]] = {
    "postgres": postgres_migrate.PostgresSteps,
    "mysql": mysql_migrate.MySQLSteps,
}


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
    connection_or_url: Any = None,
    schema: str | None = None,
    *,
    lock_wait_seconds: float = LOCK_WAIT_SECONDS,
) -> MigrationResult:
    """Bring the schema up to date; safe to run twice at once, and again after a failure."""
    schema = config.validate_schema(schema) if schema else config.schema_name()
    with _typed_errors(schema), _connection(connection_or_url) as connection:
        steps = _steps_of(connection)(connection, schema, lock_wait_seconds)
        steps.require_server()
        with steps.session():
            runner = _Runner(steps)
            runner.prepare()
            applied = runner.migrations()
            if runner.functions():
                applied.append("functions")
    return MigrationResult(schema, len(runner.known), tuple(applied))


def status(connection_or_url: Any = None, schema: str | None = None) -> list[MigrationStatus]:
    """Every migration that the program or the database knows, and its state."""
    schema = config.validate_schema(schema) if schema else config.schema_name()
    with _typed_errors(schema), _connection(connection_or_url) as connection:
        dialect = calls.dialect_of(connection)
        recorded = _recorded(connection, schema)
    _refuse_unreleased(dialect, schema, recorded)
    lines = [_line(each, recorded.pop(each.version, None)) for each in catalog.migrations(dialect)]
    newer = (_line(None, each) for each in recorded.values() if each.version != FUNCTIONS_VERSION)
    functions = _functions_line(dialect, recorded.get(FUNCTIONS_VERSION))
    return [*lines, *newer, functions]


def check(connection_or_url: Any = None, schema: str | None = None) -> list[MigrationStatus]:
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
    dialect = calls.dialect_of(connection)
    known = catalog.migrations(dialect)
    recorded = _recorded(connection, schema)
    _refuse_unreleased(dialect, schema, recorded)
    missing = [each for each in known if each.version not in recorded]
    if missing or FUNCTIONS_VERSION not in recorded:
        what = f"migration {_title(missing[0])}" if missing else "functions"
        raise NotMigrated(f"the schema {schema} is not up to date: {what} is missing")
    _refuse_older_functions(dialect, schema, recorded[FUNCTIONS_VERSION])
    oldest = max(each.oldest_program for each in recorded.values())
    if oldest > len(known):
        raise _too_new(max(recorded), len(known))


def print_sql(schema: str | None = None, *, since: int = 0, dialect: str | None = None) -> str:
    """The SQL that :func:`migrate` runs, for teams with a tool of their own; always the same text.

    ``since`` leaves out the migrations up to that number.  Without ``dialect`` it is that of the
    database that the environment names, else PostgreSQL's.
    """
    schema = config.validate_schema(schema) if schema else config.schema_name()
    if dialect is None:
        url = config.database_url() if config.is_configured() else None
        dialect = config.dialect_of_url(url) if url else DIALECT
    steps = catalog.steps(dialect, range(1, since + 1))
    return _STEPS[dialect].printed(schema, steps, catalog.functions(dialect), whole=since == 0)


class _Runner:
    """Applies what is missing, each step under the migration lock."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.known = catalog.migrations(steps.dialect)
        self._functions = catalog.functions(steps.dialect)

    def prepare(self) -> None:
        """Create the schema and the bookkeeping table, unless they exist: then fewer rights do."""
        self._steps.prepare()
        self._refuse_foreign(self._recorded())

    def migrations(self) -> list[str]:
        """Make the schema that of now; the names of the migrations that this took."""
        applied: list[str] = []
        for step in catalog.steps(self._steps.dialect, self._recorded()):
            if self._step(step):
                applied += [each.name for each in step.recorded]
        return applied

    def _step(self, step: catalog.Step) -> bool:
        """True when this runner made the step, and no other one did in the meantime."""

        def is_needed() -> bool:
            recorded = self._recorded()
            self._refuse_foreign(recorded)
            return step.recorded[0].version not in recorded

        return is_needed() and self._steps.migrations(step.text, step.recorded, is_needed)

    def functions(self) -> bool:
        """Apply all functions if one has changed; True when it applied them."""

        def is_needed() -> bool:
            recorded = self._recorded()
            self._refuse_foreign(recorded)
            line = _functions_line(self._steps.dialect, recorded.get(FUNCTIONS_VERSION))
            return line.state in _PENDING

        return is_needed() and self._steps.functions(self._functions, is_needed)

    def _recorded(self) -> dict[int, _Recorded]:
        return {row[0]: _Recorded(*row) for row in self._steps.recorded()}

    def _refuse_foreign(self, recorded: dict[int, _Recorded]) -> None:
        """Refuse what was never released, edited migrations, and what a newer program has made."""
        _refuse_unreleased(self._steps.dialect, self._steps.schema, recorded)
        newest = max(recorded, default=0)
        if newest > len(self.known):
            raise _too_new(newest, len(self.known))
        for each in self.known:
            line = _line(each, recorded.get(each.version))
            if line.state == "changed":
                raise _changed(line.version, line.name)
        functions = recorded.get(FUNCTIONS_VERSION)
        if functions and _functions_line(self._steps.dialect, functions).state == "newer":
            raise SchemaTooNew(
                f"the functions in the database are of Penstock {functions.program}, "
                f"this program is {migration_scripts.program()}",
                hint="upgrade this program: install the wheel of a newer Penstock",
            )


def _refuse_unreleased(dialect: str, schema: str, recorded: dict[int, _Recorded]) -> None:
    """UnreleasedSchema when other tables than those of this program are the beginning."""
    first, known = recorded.get(catalog.BASELINE), catalog.migrations(dialect)[0]
    if first is None or (first.name, first.checksum) == (known.name, known.checksum):
        return
    tables = f"SCHEMA {schema} CASCADE" if dialect == "postgres" else f"DATABASE {schema}"
    raise UnreleasedSchema(
        f"the tables of the schema {schema} were made by a Penstock that was never released "
        f"({first.program}, migration {first.version:04d}_{first.name}), and no migration leads "
        "from them to those of this program",
        hint="keep what you need with the program that made them: penstock tail TOPIC --from "
        f"earliest --output json; then DROP {tables}, run `penstock migrate`, and publish it again",
    )


def _refuse_older_functions(dialect: str, schema: str, functions: _Recorded) -> None:
    """NotMigrated when they are of an older release, and have changed since.

    Within one release they are the same, or a checkout's: that one says what it misses.
    """
    own = migration_scripts.program()
    is_older = _release(functions.program) < _release(own)
    if is_older and functions.checksum != catalog.functions(dialect).checksum:
        raise NotMigrated(
            f"the functions of the schema {schema} are of Penstock {functions.program}, "
            f"this program is {own}"
        )


def _title(migration: catalog.Migration) -> str:
    return f"{migration.version:04d}_{migration.name}"


def _steps_of(connection: Any) -> type[Steps]:
    steps = _STEPS.get(calls.dialect_of(connection))
    if steps is None:
        raise ConfigurationError(
            "a log in memory has nothing to migrate", hint="its schema is always complete"
        )
    return steps


def _recorded(connection: Any, schema: str) -> dict[int, _Recorded]:
    steps = _steps_of(connection)(connection, schema, 0)
    return {row[0]: _Recorded(*row) for row in steps.recorded()}


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


def _functions_line(dialect: str, recorded: _Recorded | None) -> MigrationStatus:
    if recorded is None:
        return MigrationStatus(FUNCTIONS_VERSION, "functions", "pending")
    if recorded.checksum == catalog.functions(dialect).checksum:
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


def _too_new(newest: int, known: int) -> SchemaTooNew:
    return SchemaTooNew(
        f"the schema is at migration {newest:04d}, this program knows only up to {known:04d}",
        hint="upgrade this program: install the wheel of a newer Penstock",
    )


def _changed(version: int, name: str) -> MigrationChanged:
    return MigrationChanged(
        f"migration {version:04d}_{name} was applied with another text than this program has",
        hint="applied migrations are never edited: restore the file, add a new migration instead",
    )


@contextmanager
def _connection(connection_or_url: Any) -> Iterator[Any]:
    if connection_or_url is None or isinstance(connection_or_url, str):
        with calls.connect(connection_or_url, statement_timeout_ms=0) as connection:
            yield connection
        return
    steps = _steps_of(connection_or_url)
    with steps.outside_a_transaction(connection_or_url) as connection:
        yield connection


@contextmanager
def _typed_errors(schema: str) -> Iterator[None]:
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        translated = from_database(error, schema)
        is_denied = (
            sqlstate_of(error) == _INSUFFICIENT_PRIVILEGE or errno_of(error) in _ACCESS_DENIED
        )
        if translated is None and _CALL_REFUSED in str(error):  # of MySQL: it was no CREATE
            translated = denied.translated(error, schema)
        if translated is None and is_denied:
            translated = PermissionDenied(
                f"the login may not install or read the schema {schema}: "
                f"{denied.without_user(str(error))}",
                hint="use the login that owns the schema, or one with CREATE on the database"
                + _BINARY_LOG_HINT * (errno_of(error) == _NO_FUNCTIONS),
            )
        if translated is None and calls.is_unavailable(error):
            translated = DatabaseUnavailable(
                "the connection to the database was lost",
                hint="run it again: applied migrations stay, and the rest follows",
            )
        if translated is None:
            raise
        raise translated from error
