"""MySQL and MariaDB: PyMySQL, and every DB-API driver that speaks to them.

Penstock's functions are procedures there.  A call can return several results, and all of them are
read.  When the connection commits by itself, a call is not atomic, so it gets a transaction of its
own.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from functools import cache
from typing import Any

from penstock.database import catalog, config
from penstock.database.catalog import Statement
from penstock.database.dialect import Row, on_sqlalchemy, tuples
from penstock.database.mysql import limits, replaced, scripts
from penstock.database.mysql.opening import is_mariadb, load_pymysql, opened, words
from penstock.driver_errors import driver_error, errno_of, lacks_procedure
from penstock.errors import PenstockError

#: How many seconds a transaction of a single call may be idle before its COMMIT.
OWN_IDLE_SECONDS = 3

#: A call lengthens it for itself.  One that was killed has not put it back.
_LIMIT = "@@SESSION.group_concat_max_len"
_SHORTENED = f"SET {_LIMIT} = IF({_LIMIT} = 4294967295, @@GLOBAL.group_concat_max_len, {_LIMIT})"

_DRIVERS = frozenset({"pymysql", "mysqldb", "mysql", "mariadb"})
_IN_TRANSACTION = 1  # SERVER_STATUS_IN_TRANS
_TINY, _TIMESTAMP, _DATETIME = 1, 7, 12  # types of columns in the protocol
_OUT_OF_RANGE = frozenset({1264, 1690})
_NO_SAVEPOINT = 1305


class MySQL:
    """MySQL 8.0 and newer, MariaDB 10.6 and newer."""

    name = "mysql"
    is_atomic = False

    def connect(
        self, url: str, *, autocommit: bool, application_name: str, statement_timeout_ms: int
    ) -> Any:
        """A PyMySQL connection: utf8mb4, UTC, READ COMMITTED as on PostgreSQL, and limits."""
        options = {"program_name": application_name, "autocommit": autocommit}
        return opened(url, options, statement_timeout_ms)

    def statement(self, name: str) -> Statement:
        """The statement, from the files of this dialect."""
        return catalog.statement(self.name, name, config.schema_name())

    def execute(self, connection: Any, sql: str, binds: dict[str, Any] | None) -> list[Row]:
        """Run one statement and read all its results."""
        binds = binds and _binds(binds)
        with _decoding(connection) as read:
            if on_sqlalchemy(connection):
                result = connection.exec_driver_sql(sql, binds)
                try:
                    return read(result.cursor) if result.cursor is not None else []
                finally:
                    result.close()
            cursor = _cursor(connection)
            try:
                cursor.execute(sql, binds)
                return read(cursor)
            finally:
                cursor.close()

    def events(self, connection: Any, sql: str, binds: dict[str, Any] | None) -> list[Row]:
        """The same as any other rows."""
        return self.execute(connection, sql, binds)

    def stream(
        self, connection: Any, sql: str, binds: dict[str, Any] | None, rows_at_once: int
    ) -> Iterator[Row]:
        """Read from the socket; the error that may follow the last row is read too."""
        with (
            _decoding(connection),
            closing(connection.cursor(load_pymysql().cursors.SSCursor)) as rows,
        ):
            rows.execute(sql, binds and _binds(binds))
            while True:
                while rows.description is not None and (found := rows.fetchmany(rows_at_once)):
                    yield from tuples(found)
                if not rows.nextset():
                    return

    def answered(self, rows: list[Row], statement: Statement) -> list[Row]:
        """Decode the columns that come as JSON and are lists on PostgreSQL."""
        if not statement.json:
            return rows
        places = statement.json
        return [
            tuple(json.loads(v) if n in places and v is not None else v for n, v in enumerate(row))
            for row in rows
        ]

    def atomic(self, connection: Any, statement: Statement) -> AbstractContextManager[Any]:
        """An error undoes a statement that changes something, in a transaction or not."""
        if limits.limited:
            _lift_ended(connection)
        return nullcontext() if statement.reads else _whole(connection, statement)

    def is_alone(self, connection: Any) -> bool:
        """When the connection commits by itself, and no transaction is open."""
        from penstock.database.unwrap import driver_connection

        return _commits_by_itself(connection, driver_connection(connection))

    def pauses_of_migration(self, connection: Any, *, is_alone: bool) -> Iterator[float]:
        """While a migration holds its lock: see :mod:`penstock.database.mysql.replaced`."""
        binds = {"name": scripts.lock(config.schema_name())}

        def is_migrating() -> bool:
            ((session,),) = self.execute(connection, "SELECT IS_USED_LOCK(%(name)s)", binds)
            return session is not None

        return replaced.pauses(is_migrating, is_alone=is_alone)

    def key(self, driver: Any) -> tuple[str, ...] | None:
        """The server.  The name of the schema says which of its databases is Penstock's."""
        host, port = getattr(driver, "host", None), getattr(driver, "port", None)
        if not isinstance(host, str) or not isinstance(port, int):
            return None
        return ("mysql", host, str(port), str(getattr(driver, "unix_socket", None)))

    def out_of_range(self, error: BaseException) -> str | None:
        """Found by the number of the error."""
        return words(driver_error(error)) if errno_of(error) in _OUT_OF_RANGE else None


def is_driver(connection: Any) -> bool:
    """Whether a connection is of a driver for MySQL or MariaDB, subclasses included."""
    return bool(_modules(connection.__class__) & _DRIVERS)


@cache
def _modules(kind: Any) -> frozenset[str]:
    return frozenset(each.__module__.partition(".")[0].lower() for each in kind.__mro__)


def in_transaction(driver: Any) -> bool | None:
    """Whether a driver's connection is inside a transaction; None when it does not say."""
    status = getattr(driver, "server_status", None)
    return bool(status & _IN_TRANSACTION) if isinstance(status, int) else None


def undo_call(driver: Any) -> None:
    """After an error inside a transaction: undo the call that raised it.

    The server runs no handler when it kills a statement, and a driver can fail by itself in the
    middle of a call.  Then what the call has done stays, and this undoes it.  A call that is undone
    already, or has not begun, has no savepoint, and then this changes nothing.
    """
    with suppress(Exception), closing(_cursor(driver)) as cursor:
        cursor.execute(_SHORTENED)
        cursor.execute("ROLLBACK TO SAVEPOINT penstock_call")
        cursor.execute("RELEASE SAVEPOINT penstock_open")


def took_savepoint(driver: Any, name: str) -> bool:
    """Whether a savepoint was still there.  Releases it and those after it."""
    try:
        driver.query(f"RELEASE SAVEPOINT {name}")
    except Exception as error:
        if errno_of(error) != _NO_SAVEPOINT:
            raise
        return False
    return True


@contextmanager
def _whole(connection: Any, statement: Statement) -> Iterator[None]:
    from penstock.database.unwrap import driver_connection

    driver = driver_connection(connection)
    if _commits_by_itself(connection, driver):
        with _own_transaction(driver, statement):
            yield
        return
    try:
        yield
    except BaseException as error:
        # What a procedure raised, it has undone.  It could not without the procedure that undoes.
        if not isinstance(error, PenstockError) or lacks_procedure(error):
            undo_call(driver)
        raise
    if statement.limits:
        limits.note(connection, driver)


def _lift_ended(connection: Any) -> None:
    """Before a call: the transaction that had a limit may have ended."""
    from penstock.database.unwrap import driver_connection

    driver = driver_connection(connection)
    if driver in limits.limited and in_transaction(driver) is False:
        limits.lift_noted(driver)


@contextmanager
def _own_transaction(driver: Any, statement: Statement) -> Iterator[None]:
    """Two statements around a call: the second is its COMMIT, as switching autocommit on is.

    Between them the server ends the session if its client stops.  A process that is paused just
    before COMMIT would keep the locks of the call.  That could block every check-in of a
    subscription, or the sequencer, for hours.
    """
    mariadb = is_mariadb(str(getattr(driver, "server_version", "")))
    name = "@@SESSION." + ("idle_transaction_timeout" if mariadb else "wait_timeout")
    most = f"IF({name} = 0, {OWN_IDLE_SECONDS}, LEAST({name}, {OWN_IDLE_SECONDS}))"
    end = f"SET autocommit = 1, {name} = @penstock_idle"
    driver.query(f"SET @penstock_idle = {name}, {name} = CAST({most} AS SIGNED), autocommit = 0")
    try:
        try:
            yield
        except Exception as error:
            # For is_ended_before_commit(): the end of a COMMIT has the same number.
            vars(driver_error(error))["is_before_commit"] = True
            raise
        if statement.limits:
            driver.commit()
            limits.lift(driver)
        driver.query(end)
    except BaseException:
        # When the connection is gone, the server rolls back itself.
        if getattr(driver, "open", True):
            driver.rollback()
            driver.query(end)
            driver.query(_SHORTENED)
        raise


def _commits_by_itself(connection: Any, driver: Any) -> bool:
    """True only when it is certain, because beginning a transaction commits an open one."""
    if in_transaction(driver) is not False or not hasattr(driver, "begin"):
        return False
    return bool(driver.get_autocommit())


def _binds(given: dict[str, Any]) -> dict[str, Any]:
    """Lists become JSON, UUIDs become text, and times become UTC."""
    return {name: _bind(value) for name, value in given.items()}


def _bind(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return json.dumps([_element(each) for each in value])
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return str(value) if isinstance(value, uuid.UUID) else value


def _element(value: Any) -> Any:
    return str(value) if isinstance(value, uuid.UUID) else value


@contextmanager
def _decoding(connection: Any) -> Iterator[Callable[[Any], list[Row]]]:
    """How to read results with aware times and truth values.

    PyMySQL gets other decoders inside the block, because its own decoder of times takes longer than
    the server takes for a whole row.  Values that other drivers have decoded are converted.
    """
    from penstock.database.unwrap import driver_connection

    driver = driver_connection(connection)
    before = getattr(driver, "decoders", None)
    if not isinstance(before, dict):
        yield _read_converted
        return
    driver.decoders = before | _DECODERS
    # The application may have asked for bytes in place of text.
    unicode_before, driver.use_unicode = getattr(driver, "use_unicode", True), True
    try:
        yield _read
    finally:
        driver.decoders, driver.use_unicode = before, unicode_before


def _read(cursor: Any) -> list[Row]:
    """The rows of every result."""
    found: list[Row] = []
    while True:
        if cursor.description is not None:
            found += tuples(cursor.fetchall())
        # Also reads what comes last: an error after a result would otherwise be lost.
        if not cursor.nextset():
            return found


def _read_converted(cursor: Any) -> list[Row]:
    found: list[Row] = []
    while True:
        if cursor.description is not None:
            makers = [_MAKERS.get(column[1], _same) for column in cursor.description]
            found += (_made(makers, row) for row in tuples(cursor.fetchall()))
        if not cursor.nextset():
            return found


def _made(makers: list[Callable[[Any], Any]], row: Any) -> Row:
    return tuple(
        None if value is None else make(value) for make, value in zip(makers, row, strict=True)
    )


def _same(value: Any) -> Any:
    return value


def _in_utc(value: datetime) -> datetime:
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


def _utc(text: str) -> datetime:
    return datetime.fromisoformat(f"{text}+00:00")


def _truth(text: str) -> bool:
    return text != "0"


_DECODERS = {_TIMESTAMP: _utc, _DATETIME: _utc, _TINY: _truth}
_MAKERS: dict[int, Callable[[Any], Any]] = {_TIMESTAMP: _in_utc, _DATETIME: _in_utc, _TINY: bool}


def _cursor(connection: Any) -> Any:
    kind: Any = type(connection)
    if "pymysql" in _modules(kind):
        # The caller's connection may be set to give dictionaries, or row by row.
        return connection.cursor(load_pymysql().cursors.Cursor)
    return connection.cursor()
