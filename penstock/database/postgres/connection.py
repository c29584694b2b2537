"""PostgreSQL: psycopg, and every DB-API driver that speaks to it."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, lru_cache
from typing import Any
from uuid import UUID

from penstock.database import address, catalog, config
from penstock.database.catalog import Statement
from penstock.database.dialect import (
    CONNECT_TIMEOUT_SECONDS,
    Row,
    on_sqlalchemy,
    tuples,
    unavailable,
    unusable,
)
from penstock.database.postgres import bounded
from penstock.driver_errors import driver_error, sqlstate_of
from penstock.errors import ConfigurationError, DatabaseTooOld, MissingExtra, PenstockError

OLDEST_SERVER = 140_000
_OUT_OF_RANGE = "22003"  # numeric_value_out_of_range
#: A prepared statement does not exist, or exists already: the server's session has changed.
_SESSION_CHANGED = frozenset({"26000", "42P05"})
_IDLE = 0  # libpq's PQTRANS_IDLE
#: Where psycopg's connection has a cursor for the next call.  To make one takes as long as all else
#: that a call does in Python: it has to find again how each type of parameter is written.
_SPARE = "_penstock_spare_cursor"
#: Where it has the types of which it has learned how to send them.
_TAUGHT = "_penstock_taught"
#: A cursor that had a large result is not kept, with the room that it needed.
_MOST_SPARE_ROWS = 100
#: A connection that the network has dropped in silence ends after some 11 s, whatever it waits for.
_NETWORK = {
    "connect_timeout": CONNECT_TIMEOUT_SECONDS,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
_WHO_ANSWERS = "SELECT pg_backend_pid()"

_HINTS = (
    ("password authentication failed", "check the user and the password"),
    ("no password supplied", "give a password"),
    ("does not exist", "check the names of database and user, or create them"),
    ("too many clients", "close connections or raise max_connections"),
    ("starting up", "wait until the server has started"),
)


class Postgres:
    """PostgreSQL 14 and newer."""

    name = "postgres"
    is_atomic = True

    def connect(
        self, url: str, *, autocommit: bool, application_name: str, statement_timeout_ms: int
    ) -> Any:
        """A psycopg connection whose calls end, in UTF-8 and at READ COMMITTED."""
        given = _Given(libpq_url(url), application_name, statement_timeout_ms)
        kind, _ = bounded.kinds()
        with given.typed_errors():
            try:
                connection = kind.connect(given.url, autocommit=True, **given.options)
            except load_psycopg().OperationalError as error:
                given.without_options(error)
                connection = kind.connect(given.url, autocommit=True, **given.options)
        try:
            with given.told_by_the_server():
                connection.answer_seconds = bounded.answer_seconds(statement_timeout_ms)
                require_server(connection.info.server_version)
                answered = connection.execute(_WHO_ANSWERS, prepare=False)
                _look_for_pooler(connection, answered.fetchone())
                for each in given.settings_left(connection):
                    connection.execute(each.encode(), prepare=False)
                connection.autocommit = autocommit
        except BaseException:
            connection.close()
            raise
        return connection

    def statement(self, name: str) -> Statement:
        """The statement, from the files of this dialect."""
        return catalog.statement(self.name, name, config.schema_name())

    def execute(self, connection: Any, sql: str, binds: dict[str, Any] | None) -> list[Row]:
        """Run one statement and read its one result."""
        kind: Any = type(connection)
        if _is_psycopg_type(kind):
            # Taken out at one step, so two threads never have the same one.
            cursor = vars(connection).pop(_SPARE, None) or _spare_cursor(connection)
            _run(connection, cursor, sql, binds and _with_literals(sql, binds))
            # Tells whether there are rows, without building `description`.
            if cursor.rownumber is not None:
                rows = list(cursor.fetchall())
                if len(rows) <= _MOST_SPARE_ROWS:
                    cursor.pgresult.clear()  # else its memory is free only at the next call
                    setattr(connection, _SPARE, cursor)
                return rows
            return pipelined_rows(cursor) if is_in_pipeline(connection) else []
        if on_sqlalchemy(connection):
            result = connection.exec_driver_sql(sql, binds)
            return [tuple(row) for row in result] if result.returns_rows else []
        with connection.cursor() as cursor:
            cursor.execute(sql, binds)
            if cursor.description is None:
                return []
            return tuples(cursor.fetchall())

    def events(self, connection: Any, sql: str, binds: dict[str, Any] | None) -> list[Row]:
        """Ids and times stay in their binary form; an event decodes them when they are read."""
        kind: Any = type(connection)
        if not _is_psycopg_type(kind):
            return self.execute(connection, sql, binds)
        from psycopg.types.string import ByteaBinaryLoader

        with _cursor(connection) as cursor:
            for kind in ("uuid", "timestamptz"):
                cursor.adapters.register_loader(kind, ByteaBinaryLoader)
            _run(connection, cursor, sql, binds, binary=True)
            return list(cursor.fetchall())

    def stream(
        self, connection: Any, sql: str, binds: dict[str, Any] | None, rows_at_once: int
    ) -> Iterator[Row]:
        """Read from the socket so many rows at a time."""
        with connection.cursor(binary=True) as cursor:
            yield from cursor.stream(sql, binds, size=rows_at_once)

    def answered(self, rows: list[Row], statement: Statement) -> list[Row]:
        """The rows unchanged."""
        return rows

    def atomic(self, connection: Any, statement: Statement) -> AbstractContextManager[Any]:
        """Every statement is atomic by itself."""
        return nullcontext()

    def pauses_of_migration(self, connection: Any, *, is_alone: bool) -> Iterator[float]:
        """None: functions are replaced in one transaction, and are never missing."""
        return iter(())

    def is_alone(self, connection: Any) -> bool:
        """When psycopg's connection commits by itself, and no transaction is open."""
        return bool(
            is_psycopg(connection)
            and connection.autocommit
            and not is_in_pipeline(connection)
            and connection.info.transaction_status == _IDLE
        )

    def key(self, driver: Any) -> tuple[str, ...] | None:
        """Host, port and name of the database."""
        info = getattr(driver, "info", None)
        if not isinstance(getattr(info, "dbname", None), str):
            return None
        parts = (getattr(info, name, None) for name in ("host", "hostaddr", "port", "dbname"))
        return tuple(str(part) for part in parts)

    def out_of_range(self, error: BaseException) -> str | None:
        """Found by the SQLSTATE."""
        if sqlstate_of(error) != _OUT_OF_RANGE:
            return None
        inner = driver_error(error)
        return str(getattr(getattr(inner, "diag", None), "message_primary", None) or inner)


async def connect_async(url: str, *, application_name: str, statement_timeout_ms: int) -> Any:
    """A psycopg.AsyncConnection, with the same limits."""
    given = _Given(libpq_url(url), application_name, statement_timeout_ms)
    _, kind = bounded.kinds()
    with given.typed_errors():
        try:
            connection = await kind.connect(given.url, autocommit=True, **given.options)
        except load_psycopg().OperationalError as error:
            given.without_options(error)
            connection = await kind.connect(given.url, autocommit=True, **given.options)
    try:
        with given.told_by_the_server():
            connection.answer_seconds = bounded.answer_seconds(statement_timeout_ms)
            answered = await connection.execute(_WHO_ANSWERS, prepare=False)
            _look_for_pooler(connection, await answered.fetchone())
            for each in given.settings_left(connection):
                await connection.execute(each.encode(), prepare=False)
    except BaseException:
        await connection.close()
        raise
    return connection


def libpq_url(url: str) -> str:
    """The address as libpq reads it: SQLAlchemy's ``postgresql+psycopg://`` is accepted too."""
    if config.dialect_of_url(url) != "postgres":
        raise ConfigurationError(
            "this needs PostgreSQL, the address is another database's",
            hint="use a postgresql:// address",
        )
    scheme, found, rest = url.partition("://")
    if found:
        address.read(url)  # else libpq could take the end of a password for a host, and show it
    return f"{scheme.partition('+')[0].lower()}://{rest}" if found else url


def require_server(version: int) -> None:
    """DatabaseTooOld when the server's ``server_version_num`` is below what Penstock needs."""
    if version < OLDEST_SERVER:
        raise DatabaseTooOld(
            f"the server is PostgreSQL {version // 10_000}, Penstock needs "
            f"{OLDEST_SERVER // 10_000} or newer",
            hint="upgrade the server, or point the URL at a newer one",
        )


def _look_for_pooler(connection: Any, answer: Any) -> None:
    """Prepare no statements when there is a pooler between this program and the server.

    A pooler gives a process id of its own at the login, so it differs from that of the session.  It
    may run the next transaction in another session of the server.  There a prepared statement does
    not exist, or its name stands for another statement.
    """
    if answer[0] != connection.info.backend_pid:
        connection.prepare_threshold = None


def is_own_session(connection: Any) -> bool:
    """Whether this connection has its own session: the process id is that of the login."""
    answer = connection.execute(_WHO_ANSWERS, prepare=False).fetchone()
    return bool(answer[0] == connection.info.backend_pid)


def _run(connection: Any, cursor: Any, sql: str, binds: Any, **how: Any) -> None:
    """Execute, and once more when the session has changed because of an undetected pooler."""
    try:
        cursor.execute(sql, binds, **how)
    except Exception as error:
        if sqlstate_of(error) not in _SESSION_CHANGED or connection.prepare_threshold is None:
            raise
        connection.prepare_threshold = None
        # The statement was refused before it began.  An open transaction is lost.
        if connection.info.transaction_status != _IDLE:
            raise
        cursor.execute(sql, binds, **how)


def _with_literals(sql: str, binds: dict[str, Any]) -> dict[str, Any]:
    """Lists of numbers and of UUIDs as texts, where the statement says what they are.

    psycopg takes 25 microseconds to convert a list, however short it is.
    """
    for name in _arrays(sql):
        given = binds[name]
        if isinstance(given, list) and _PLAIN.issuperset(map(type, given)):
            binds[name] = f"{{{','.join(map(str, given))}}}"
    return binds


_PLAIN = frozenset({int, UUID})
_ARRAY = re.compile(r"%\((\w+)\)s::(?:bigint|uuid)\[\]")


@lru_cache(maxsize=256)
def _arrays(sql: str) -> frozenset[str]:
    return frozenset(_ARRAY.findall(sql))


def _unreadable() -> ConfigurationError:
    return ConfigurationError("the address of the database cannot be read", hint=address.HINT)


def _unavailable(url: str, error: BaseException) -> PenstockError:
    hint = next((hint for sign, hint in _HINTS if sign in str(error)), "")
    return unavailable(url, error, hint)


def sends(driver: Any, kind: type, dumper: Any) -> None:
    """From now on psycopg's connection sends values of a type in this way."""
    taught = vars(driver).setdefault(_TAUGHT, set())
    if kind not in taught:
        driver.adapters.register_dumper(kind, dumper)
        taught.add(kind)
        vars(driver).pop(_SPARE, None)  # a cursor knows what its connection knew when it was made


def is_psycopg(connection: Any) -> bool:
    """Whether this is psycopg's own synchronous connection, without a wrapper."""
    kind: Any = type(connection)
    return _is_psycopg_type(kind)


@cache
def _is_psycopg_type(kind: Any) -> bool:
    return any(
        (each.__module__, each.__name__) == ("psycopg", "Connection") for each in kind.__mro__
    )


def is_in_pipeline(connection: Any) -> bool:
    """Whether psycopg's connection is in its pipeline mode: a statement's result comes later."""
    return bool(connection.info.pipeline_status)


def pipelined_rows(cursor: Any) -> list[Row]:
    """The rows of the statement that was sent last in a pipeline: to ask for them waits for it."""
    try:
        return list(cursor.fetchall())
    except load_psycopg().ProgrammingError:
        if cursor.pgresult is None or cursor.description is not None:
            raise
        return []  # a statement without rows


def _spare_cursor(connection: Any) -> Any:
    """A cursor that its connection can keep: it does not keep its connection.

    Otherwise the two would hold each other.  A connection that is dropped without ``close`` would
    stay open, on the server too, until Python looks for such circles.  What was sent last, with
    its payload, stays until the next call: psycopg has no way to let go of that alone.
    """
    kind, tuple_row = _cursor_kind(connection.cursor_factory)
    return kind(weakref.proxy(connection), row_factory=tuple_row)


def _cursor(connection: Any) -> Any:
    """A cursor that gives tuples, takes named parameters and can return the binary format.

    The caller's connection may be set to dictionaries, or to cursors that cannot do this.
    """
    kind, tuple_row = _cursor_kind(connection.cursor_factory)
    return kind(connection, row_factory=tuple_row)


@cache
def _cursor_kind(kind: Any) -> tuple[Any, Any]:
    psycopg = load_psycopg()
    if issubclass(kind, (psycopg.ClientCursor, psycopg.RawCursor)):
        kind = psycopg.Cursor
    return kind, psycopg.rows.tuple_row


class _Given:
    """What is added to an address; what stands in the address itself wins, but for the encoding.

    A database or a login may have another style of dates (psycopg reads times in ISO alone),
    another encoding of the client, or another isolation level than the functions allow.
    """

    def __init__(self, url: str, application_name: str, statement_timeout_ms: int) -> None:
        given = self._read(url)
        self.url = url
        self._settings = {
            "statement_timeout": str(int(statement_timeout_ms)),
            "DateStyle": "ISO",
            "default_transaction_isolation": "read committed",
        }
        escaped = (each.replace(" ", "\\ ") for each in self._settings.values())
        ours = [f"-c {name}={each}" for name, each in zip(self._settings, escaped, strict=True)]
        self.options: dict[str, Any] = {
            name: given.get(name) or value for name, value in _NETWORK.items()
        }
        self.options |= {
            "options": " ".join([given.get("options") or "", *ours]).strip(),
            "application_name": given.get("application_name") or application_name,
            "client_encoding": "UTF8",
        }

    @staticmethod
    def _read(url: str) -> dict[str, Any]:
        try:
            return dict(load_psycopg().conninfo.conninfo_to_dict(url))
        except load_psycopg().ProgrammingError:
            # libpq's message is not passed on: it quotes what it could not read, even passwords.
            raise _unreadable() from None

    @contextmanager
    def typed_errors(self) -> Iterator[None]:
        """What goes wrong in the connect becomes a typed error."""
        psycopg = load_psycopg()
        try:
            yield
        except psycopg.OperationalError as error:
            raise _unavailable(self.url, error) from None
        except psycopg.ProgrammingError:
            raise _unreadable() from None
        except UnicodeError as error:  # psycopg looks up the host itself
            raise unusable(self.url, error) from None

    @contextmanager
    def told_by_the_server(self) -> Iterator[None]:
        """The address was good; what goes wrong now is what the server has refused."""
        psycopg = load_psycopg()
        try:
            yield
        except psycopg.OperationalError as error:
            raise _unavailable(self.url, error) from None
        except psycopg.Error as error:
            raise ConfigurationError(
                f"{address.shown(self.url)} refuses what every connection needs: {error}",
                hint="let the login, or the pooler in between, take this setting",
            ) from error

    def without_options(self, error: BaseException) -> None:
        """Go on without `options` when that may be what was refused; else raises the error.

        Poolers and proxies refuse that parameter, each in its own words.
        """
        said = str(error)
        if "FATAL" not in said or any(sign in said for sign, _ in _HINTS):
            raise error
        self.options.pop("options", None)

    def settings_left(self, connection: Any) -> list[str]:
        """The statements that set what could not be given as options.

        Where a pooler gives the session to others afterwards, only what poolers follow is set.
        """
        if "options" in self.options:
            return []
        is_shared = connection.prepare_threshold is None
        names = ["DateStyle"] if is_shared else list(self._settings)
        return [f"SET {name} = '{self._settings[name]}'" for name in names]


def load_psycopg() -> Any:
    """psycopg, which is imported only when it is needed."""
    try:
        import psycopg
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "psycopg":
            raise
        raise MissingExtra.of("psycopg", "psycopg[binary]") from None
    return psycopg
