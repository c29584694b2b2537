"""PostgreSQL: psycopg, and every DB-API driver that speaks to it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

from penstock.database import address, catalog, config
from penstock.database.catalog import Statement
from penstock.database.dialect import (
    CONNECT_TIMEOUT_SECONDS,
    Row,
    on_sqlalchemy,
    tuples,
    unavailable,
)
from penstock.errors import (
    ConfigurationError,
    DatabaseTooOld,
    MissingExtra,
    PenstockError,
    driver_error,
    sqlstate_of,
)

OLDEST_SERVER = 140_000
_OUT_OF_RANGE = "22003"  # numeric_value_out_of_range
#: A prepared statement is not there, or there already: the server's session is another one by now.
_SESSION_CHANGED = frozenset({"26000", "42P05"})
_IDLE = 0  # libpq's PQTRANS_IDLE
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

    def connect(
        self, url: str, *, autocommit: bool, application_name: str, statement_timeout_ms: int
    ) -> Any:
        """A psycopg connection."""
        url = libpq_url(url)
        psycopg = _psycopg()
        try:
            options = _options(url, application_name, statement_timeout_ms)
            try:
                connection = psycopg.connect(url, autocommit=True, **options)
            except psycopg.OperationalError as error:
                options = _without_options(options, error)
                connection = psycopg.connect(url, autocommit=True, **options)
        except psycopg.OperationalError as error:
            raise _unavailable(url, error) from None
        except psycopg.ProgrammingError:
            # libpq's words are not passed on: they quote what it could not read, passwords too.
            raise _unreadable() from None
        try:
            require_server(connection.info.server_version)
            answered = connection.execute(_WHO_ANSWERS, prepare=False)
            _look_for_pooler(connection, answered.fetchone())
            connection.autocommit = autocommit
        except BaseException as error:
            connection.close()
            if isinstance(error, psycopg.OperationalError):
                raise _unavailable(url, error) from None
            raise
        return connection

    def statement(self, name: str) -> Statement:
        """Out of the files of its dialect."""
        return catalog.statement(self.name, name, config.schema_name())

    def binds(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """As they are: psycopg knows the types."""
        return dict(given)

    def execute(self, connection: Any, sql: str, binds: dict[str, Any] | None) -> list[Row]:
        """One statement, one result."""
        if on_sqlalchemy(connection):
            result = connection.exec_driver_sql(sql, binds)
            return [tuple(row) for row in result] if result.returns_rows else []
        if _is_psycopg(connection):
            with _cursor(connection) as cursor:
                _run(connection, cursor, sql, binds)
                # Whether there are rows; `description` would be built first.
                return [] if cursor.rownumber is None else list(cursor.fetchall())
        with connection.cursor() as cursor:
            cursor.execute(sql, binds)
            if cursor.description is None:
                return []
            return tuples(cursor.fetchall())

    def events(self, connection: Any, sql: str, binds: dict[str, Any] | None) -> list[Row]:
        """Ids and times as the bytes that travel; an event decodes them when it is asked."""
        if not _is_psycopg(connection):
            return self.execute(connection, sql, binds)
        from psycopg.types.string import ByteaBinaryLoader

        with _cursor(connection) as cursor:
            for kind in ("uuid", "timestamptz"):
                cursor.adapters.register_loader(kind, ByteaBinaryLoader)
            _run(connection, cursor, sql, binds, binary=True)
            return list(cursor.fetchall())

    def answered(self, rows: list[Row], statement: Statement) -> list[Row]:
        """As they are."""
        return rows

    def atomic(self, connection: Any, statement: Statement) -> AbstractContextManager[Any]:
        """Every statement is atomic by itself."""
        return nullcontext()

    def key(self, driver: Any) -> tuple[str, ...] | None:
        """Host, port and name of the database."""
        info = getattr(driver, "info", None)
        if not isinstance(getattr(info, "dbname", None), str):
            return None
        parts = (getattr(info, name, None) for name in ("host", "hostaddr", "port", "dbname"))
        return tuple(str(part) for part in parts)

    def out_of_range(self, error: BaseException) -> str | None:
        """By the SQLSTATE."""
        if sqlstate_of(error) != _OUT_OF_RANGE:
            return None
        inner = driver_error(error)
        return str(getattr(getattr(inner, "diag", None), "message_primary", None) or inner)


async def connect_async(url: str, *, application_name: str, statement_timeout_ms: int) -> Any:
    """A psycopg.AsyncConnection, with the same limits."""
    url = libpq_url(url)
    psycopg = _psycopg()
    connect = psycopg.AsyncConnection.connect
    try:
        options = _options(url, application_name, statement_timeout_ms)
        try:
            connection = await connect(url, autocommit=True, **options)
        except psycopg.OperationalError as error:
            options = _without_options(options, error)
            connection = await connect(url, autocommit=True, **options)
    except psycopg.OperationalError as error:
        raise _unavailable(url, error) from None
    except psycopg.ProgrammingError:
        raise _unreadable() from None
    try:
        answered = await connection.execute(_WHO_ANSWERS, prepare=False)
        _look_for_pooler(connection, await answered.fetchone())
    except BaseException as error:
        await connection.close()
        if isinstance(error, psycopg.OperationalError):
            raise _unavailable(url, error) from None
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
        address.read(url)  # libpq would look for a host that is the end of a password, and say so
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
    """Prepare no statements where the session's process is not the one that the login named.

    A pooler names itself, and may hand the next transaction to another session of the server's:
    there what was prepared is not known, or something else has its name.
    """
    if answer[0] != connection.info.backend_pid:
        connection.prepare_threshold = None


def is_own_session(connection: Any) -> bool:
    """Whether the server's process that the login named answers, and no pooler between."""
    answer = connection.execute(_WHO_ANSWERS, prepare=False).fetchone()
    return bool(answer[0] == connection.info.backend_pid)


def _run(connection: Any, cursor: Any, sql: str, binds: Any, **how: Any) -> None:
    """Execute; once more where the session has changed, for a pooler that was not seen."""
    try:
        cursor.execute(sql, binds, **how)
    except Exception as error:
        if sqlstate_of(error) not in _SESSION_CHANGED or connection.prepare_threshold is None:
            raise
        connection.prepare_threshold = None
        # It was refused before it began. In a transaction, that one is lost.
        if connection.info.transaction_status != _IDLE:
            raise
        cursor.execute(sql, binds, **how)


def _without_options(options: dict[str, Any], error: BaseException) -> dict[str, Any]:
    """What is left to connect with where PgBouncer refuses `options`; else the error."""
    if "startup parameter" not in str(error):
        raise error
    return {name: value for name, value in options.items() if name != "options"}


def _unreadable() -> ConfigurationError:
    return ConfigurationError("the address of the database cannot be read", hint=address.HINT)


def _unavailable(url: str, error: BaseException) -> PenstockError:
    hint = next((hint for sign, hint in _HINTS if sign in str(error)), "")
    return unavailable(url, error, hint)


def _is_psycopg(connection: Any) -> bool:
    kind: Any = type(connection)
    return _is_psycopg_type(kind)


@cache
def _is_psycopg_type(kind: Any) -> bool:
    return any(
        (each.__module__, each.__name__) == ("psycopg", "Connection") for each in kind.__mro__
    )


def _cursor(connection: Any) -> Any:
    """A cursor that gives tuples, takes named parameters and can answer in the binary format.

    The caller's connection may be set to give dictionaries, or cursors that cannot do these.
    """
    psycopg = _psycopg()
    kind = connection.cursor_factory
    if issubclass(kind, (psycopg.ClientCursor, psycopg.RawCursor)):
        kind = psycopg.Cursor
    return kind(connection, row_factory=psycopg.rows.tuple_row)


def _options(url: str, application_name: str, statement_timeout_ms: int) -> dict[str, Any]:
    """What is added to the URL; what the URL says itself wins."""
    given = _psycopg().conninfo.conninfo_to_dict(url)
    options = f"{given.get('options') or ''} -c statement_timeout={int(statement_timeout_ms)}"
    return {
        "options": options.strip(),
        "application_name": given.get("application_name") or application_name,
        "connect_timeout": given.get("connect_timeout") or CONNECT_TIMEOUT_SECONDS,
    }


def _psycopg() -> Any:
    try:
        import psycopg
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "psycopg":
            raise
        raise MissingExtra.of("psycopg", "psycopg[binary]") from None
    return psycopg
