"""Connections, and named statements on whatever connection the caller has.

:func:`call` works on a psycopg or PyMySQL connection, a SQLAlchemy Connection or Session, and any
other DB-API connection.  It joins the caller's transaction and never begins, commits or rolls back
one.  There is one exception.  On a MySQL connection that commits by itself, a call that changes
something runs in a transaction of its own.  Unlike PostgreSQL's functions, MySQL's procedures are
not atomic by themselves.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

from penstock.database import config, denied, dialects, pace as reconnect, timings, unwrap
from penstock.database.catalog import Statement
from penstock.database.dialect import Dialect, Row
from penstock.database.postgres.connection import libpq_url as libpq_url
from penstock.database.unwrap import driver_connection as driver_connection
from penstock.driver_errors import (
    driver_error,
    errno_of,
    from_database,
    lacks_procedure,
    sqlstate_of,
)
from penstock.errors import (
    DatabaseUnavailable,
    InvalidArgument,
    MigrationRunning,
    NoDiskSpace,
    PenstockError,
    TransactionRolledBack,
)

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

#: Shutdowns, and the time limits that end a session (for example when its lease runs out).
_SESSION_ENDED = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})
#: The same for MySQL and MariaDB, and their drivers' errors for a connection that is gone.
_CONNECTION_LOST = frozenset(
    {0, 1040, 1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 4031}
)
_CLIENT_ERRORS = range(2000, 2100)
#: Deadlocks, waits for a lock that took too long, and on MariaDB a row newer than the snapshot.
_CONTENTION = frozenset({"40P01", "55P03", 1020, 1205, 1213})
_DEADLOCK = frozenset({"40P01", 1213})
#: So often a call is made that ends in a deadlock, when it is a transaction of its own.
_TRIES = 4
_LONGEST_PAUSE_SECONDS = 0.05
#: What is in the one encoding cannot be written in the other.
_NO_SUCH_CHARACTER = frozenset({"22P05"})
_NOTICES_FULL = "54000"  # program_limit_exceeded
#: Ended by a limit of time or by an operator.
_CANCELLED = frozenset({"57014", 1317, 1969, 3024})
#: The server takes no writes: a standby that is not promoted yet, or an operator's setting.
_READ_ONLY = frozenset({"25006", 1290, 1792, 1836})
#: Serialization failures, and statements that a pooler sent to another session.
_PASSING = frozenset({"40001", "26000", "42P05"}) | _CANCELLED | _READ_ONLY
_INSUFFICIENT_RESOURCES = "53"


def connect(
    url: str | None = None,
    *,
    autocommit: bool = True,
    application_name: str = "penstock",
    statement_timeout_ms: int = 30_000,
) -> Connection:
    """A connection to ``url``, or to the database that the environment names.

    psycopg's for PostgreSQL, as the type says; PyMySQL's for MySQL and MariaDB.
    """
    url = url or config.database_url()
    with reconnect.turn():
        connection: Connection = dialects.of_url(url).connect(
            url,
            autocommit=autocommit,
            application_name=application_name,
            statement_timeout_ms=statement_timeout_ms,
        )
    return connection


def call(connection: Any, name: str, /, **binds: Any) -> list[tuple[Any, ...]]:
    """Run the named statement of ``sql/<dialect>/calls/*.sql`` in the caller's transaction."""
    if timings.observer is None:
        return _rows(connection, name, binds, raw=False)
    return _timed(name, _rows, connection, name, binds, raw=False)


def call_events(connection: Any, name: str, /, **binds: Any) -> list[tuple[Any, ...]]:
    """The same for a statement that returns events, to be decoded by :class:`penstock.Event`."""
    if timings.observer is None:
        return _rows(connection, name, binds, raw=True)
    return _timed(name, _rows, connection, name, binds, raw=True)


def stream(connection: Any, name: str, /, *, rows_at_once: int, **binds: Any) -> Iterator[Row]:
    """The rows of a named statement that only reads, as they come: never all are in memory.

    ``connection`` is one of :func:`connect`.  It can be used again when the rows were read to the
    end, or the iterator was closed.
    """
    dialect = dialects.of_connection(connection)
    statement = dialect.statement(name)
    if statement.binds != binds.keys():
        raise _unlike(statement, binds)
    again = _Again(dialect, connection, is_alone=dialect.is_alone(connection))
    while True:
        has_begun = False
        try:
            with typed_errors():
                for row in dialect.stream(connection, statement.text, binds, rows_at_once):
                    has_begun = True
                    yield row
            return
        except PenstockError as error:
            if has_begun or not again.may_follow(error):
                raise


def _unlike(statement: Statement, binds: dict[str, Any]) -> InvalidArgument:
    wrong = ", ".join(sorted(statement.binds ^ binds.keys()))
    return InvalidArgument(f"the statement {statement.name} and its call differ in: {wrong}")


def _timed(name: str, run: Callable[..., list[Row]], *given: Any, **how: Any) -> list[Row]:
    observe = timings.observer
    if observe is None or name not in timings.OPERATIONS:
        return run(*given, **how)
    begun = perf_counter()
    try:
        return run(*given, **how)
    finally:
        observe(timings.OPERATIONS[name], perf_counter() - begun)


def _rows(connection: Any, name: str, binds: dict[str, Any], *, raw: bool) -> list[Row]:
    # A call takes Python about as long as the server, so the usual one runs few functions.
    dialect = dialects.of_plain(connection.__class__)
    if dialect is None:
        connection = unwrap.unwrapped(connection)
        dialect = dialects.of_connection(connection)
    statement = dialect.statement(name)
    if statement.binds != binds.keys():
        raise _unlike(statement, binds)
    # Asked before the call too: a deadlock ends a transaction of MySQL, the caller's as well.
    is_alone = dialect.is_atomic or dialect.is_alone(connection)
    run, again = dialect.events if raw else dialect.execute, None
    while True:
        try:
            if dialect.is_atomic:
                return run(connection, statement.text, binds or None)
            return _atomically(dialect, connection, statement, partial(run, binds=binds or None))
        except Exception as error:
            again = again or _Again(dialect, connection, is_alone=is_alone)
            if not again.may_follow(error):
                _raise_typed(dialect, error)
                raise


class _Again:
    """Whether a call that failed is made again: after a deadlock, and while `migrate` runs."""

    def __init__(self, dialect: Dialect, connection: Any, *, is_alone: bool) -> None:
        self._dialect, self._connection, self._is_alone = dialect, connection, is_alone
        self._tries = _TRIES
        self._pauses: Iterator[float] | None = None

    def may_follow(self, error: Exception) -> bool:
        """Waits for a moment, and returns True, if the call is to be made again."""
        pause = self._pause(error)
        if pause is not None:
            sleep(pause)
        return pause is not None

    def _pause(self, error: Exception) -> float | None:
        if lacks_procedure(error):
            self._pauses = self._pauses or self._dialect.pauses_of_migration(
                self._connection, is_alone=self._is_alone
            )
            return next(self._pauses, None)
        self._tries -= 1
        if not (self._tries > 0 and self._is_alone and is_deadlock(error)):
            return None
        is_alone = self._dialect.is_alone(self._connection)
        return random.uniform(0, _LONGEST_PAUSE_SECONDS) if is_alone else None


def _atomically(
    dialect: Dialect, connection: Any, statement: Statement, run: Callable[..., list[Row]]
) -> list[Row]:
    with dialect.atomic(connection, statement), typed_errors():
        rows = run(connection, statement.text)
    return dialect.answered(rows, statement)


def _raise_typed(dialect: Dialect, error: Exception) -> None:
    """Raise the error that stands for a driver's, if there is one."""
    if isinstance(error, PenstockError):
        return
    translated = _translated(error, config.schema_name()) if dialect.is_atomic else None
    if translated is not None:
        raise translated from driver_error(error)
    said = dialect.out_of_range(error)
    if said is not None:
        raise InvalidArgument(
            f"a number is out of range: {said}", hint="give a smaller number"
        ) from driver_error(error)


def execute(
    connection: Any, sql: str, binds: dict[str, Any] | None = None
) -> list[tuple[Any, ...]]:
    """Run one statement in the caller's transaction; errors of Penstock's SQL become typed ones."""
    connection = unwrap.unwrapped(connection)
    dialect = dialects.of_connection(connection)
    with typed_errors():
        return dialect.execute(connection, sql, dict(binds) if binds else None)


@contextmanager
def typed_errors(schema: str | None = None) -> Iterator[None]:
    """Driver errors that are Penstock's become typed ones; all others pass unchanged."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        translated = _translated(error, schema or config.schema_name())
        if translated is None:
            raise
        # The driver's error, not SQLAlchemy's: that one prints the parameters, payloads included.
        raise translated from driver_error(error)


def _translated(error: BaseException, schema: str) -> PenstockError | None:
    if isinstance(error, UnicodeEncodeError) or sqlstate_of(error) in _NO_SUCH_CHARACTER:
        return InvalidArgument(
            f"a text has a character that the encoding of the connection or of the database "
            f"lacks: {driver_error(error)}",
            hint="use a database in UTF8, and client_encoding=utf8 in its address; or leave the "
            "character out",
        )
    return from_database(error, schema) or denied.translated(error, schema)


def dialect_of(connection: Any) -> str:
    """'postgres', 'mysql' or 'memory', by the kind of the connection."""
    return dialects.of_connection(connection).name


def database_key(connection: Any) -> tuple[str, ...] | None:
    """Which database the connection is open to, for caches; None when that is not known."""
    inner = driver_connection(connection)
    try:
        return _keys[inner]
    except (KeyError, TypeError):
        pass
    key = dialects.of_connection(connection).key(inner)
    if key is None:
        return None
    try:
        _keys[inner] = key
    except TypeError:  # a connection of a driver written in C may not be weakly referenced
        return key
    return key


_keys: weakref.WeakKeyDictionary[Any, tuple[str, ...]] = weakref.WeakKeyDictionary()


def is_unavailable(error: BaseException) -> bool:
    """Whether a driver error says that the connection was lost or the server is going away."""
    state = sqlstate_of(error) or ""
    if state.startswith("08") or state in _SESSION_ENDED:
        return True
    number = errno_of(error)
    if number is not None:
        return number in _CONNECTION_LOST or number in _CLIENT_ERRORS
    inner = driver_error(error)
    return type(inner).__name__ in {"OperationalError", "InterfaceError"} and not state


def is_contention(error: BaseException) -> bool:
    """Whether a driver error says that another transaction interfered: a retry may succeed.

    The database has rolled back at least the statement.  After a deadlock, or when a snapshot was
    too old for MariaDB, it has rolled back the whole transaction.  Begin that one again.
    """
    if isinstance(error, (MigrationRunning, TransactionRolledBack)):
        return True
    return (errno_of(error) or sqlstate_of(error)) in _CONTENTION


def is_deadlock(error: BaseException) -> bool:
    """Whether a driver error says that the database has ended a deadlock by this transaction."""
    return (errno_of(error) or sqlstate_of(error)) in _DEADLOCK


def is_without_notice(error: BaseException) -> bool:
    """Whether a COMMIT was refused because PostgreSQL's queue of notices is full."""
    return sqlstate_of(error) == _NOTICES_FULL and "NOTIFY" in str(error)


def is_cancelled(error: BaseException) -> bool:
    """Whether a driver error says that a time limit or an operator has ended the statement."""
    return (errno_of(error) or sqlstate_of(error)) in _CANCELLED


def is_ended_before_commit(error: BaseException) -> bool:
    """Whether a call that was a transaction of its own was ended so, and has certainly not written.

    An end that was reported for a COMMIT is none: that one may have been done.
    """
    inner = driver_error(error)
    is_undone = errno_of(inner) is None or getattr(inner, "is_before_commit", False)
    return is_cancelled(inner) and is_undone


def is_passing(error: BaseException) -> bool:
    """Whether the error comes from the database's present state and not from the call.

    The database cannot be reached, takes no more connections or no writes, has ended the statement,
    or another transaction interfered.
    """
    if isinstance(error, (DatabaseUnavailable, NoDiskSpace)):
        return True
    state = sqlstate_of(error) or ""
    if state in _PASSING or state.startswith(_INSUFFICIENT_RESOURCES):
        return True
    return errno_of(error) in _PASSING or is_unavailable(error) or is_contention(error)
