"""Connections, and named statements on whatever connection the caller has.

:func:`call` works on a psycopg connection, a SQLAlchemy Connection or Session, and any other DB-API
connection.  It joins the caller's transaction and never begins, commits or rolls back one.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock import catalog, config
from penstock.errors import (
    ConfigurationError,
    DatabaseTooOld,
    DatabaseUnavailable,
    InvalidArgument,
    PenstockError,
    driver_error,
    from_database,
    sqlstate_of,
)

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

OLDEST_SERVER = 140_000
_OUT_OF_RANGE = "22003"  # numeric_value_out_of_range
CONNECT_TIMEOUT_SECONDS = 10

#: Shutdowns, and the time limits that end a session (as a lease that runs out does).
_SESSION_ENDED = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})

_HINTS = (
    ("password authentication failed", "check the user and the password"),
    ("no password supplied", "give a password"),
    ("does not exist", "check the names of database and user, or create them"),
    ("too many clients", "close connections or raise max_connections"),
    ("starting up", "wait until the server has started"),
)


def connect(
    url: str | None = None,
    *,
    autocommit: bool = True,
    application_name: str = "penstock",
    statement_timeout_ms: int = 30_000,
) -> Connection:
    """A psycopg connection to ``url``, or to the database that the environment names."""
    url = libpq_url(url or config.database_url())
    psycopg = _psycopg()
    try:
        options = _options(url, application_name, statement_timeout_ms)
        try:
            connection: Connection = psycopg.connect(url, autocommit=autocommit, **options)
        except psycopg.OperationalError as error:
            if "startup parameter" not in str(error):  # PgBouncer refuses `options`
                raise
            del options["options"]
            connection = psycopg.connect(url, autocommit=autocommit, **options)
    except psycopg.OperationalError as error:
        raise _unavailable(url, error) from None
    except psycopg.ProgrammingError:
        # libpq's words are not passed on: they quote what it could not read, passwords too.
        raise ConfigurationError(
            "the address of the database cannot be read",
            hint="write postgresql://user:password@host:5432/name, and in user and password "
            "%25 for %, %20 for a space, %40 for @, %2F for /",
        ) from None
    try:
        require_server(connection.info.server_version)
    except DatabaseTooOld:
        connection.close()
        raise
    return connection


def libpq_url(url: str) -> str:
    """The address as libpq reads it: SQLAlchemy's ``postgresql+psycopg://`` is accepted too."""
    if config.dialect_of_url(url) != "postgres":
        raise ConfigurationError(
            "MySQL and MariaDB are not supported yet", hint="use a postgresql:// address"
        )
    scheme, found, rest = url.partition("://")
    return f"{scheme.partition('+')[0].lower()}://{rest}" if found else url


def require_server(version: int) -> None:
    """DatabaseTooOld when the server's ``server_version_num`` is below what Penstock needs."""
    if version < OLDEST_SERVER:
        raise DatabaseTooOld(
            f"the server is PostgreSQL {version // 10_000}, Penstock needs "
            f"{OLDEST_SERVER // 10_000} or newer",
            hint="upgrade the server, or point the URL at a newer one",
        )


def call(connection: Any, name: str, /, **binds: Any) -> list[tuple[Any, ...]]:
    """Run the named statement of ``sql/<dialect>/*.sql`` in the caller's transaction."""
    connection = _unwrap(connection)
    statement = catalog.statement(dialect_of(connection), name, config.schema_name())
    if statement.binds != binds.keys():
        wrong = ", ".join(sorted(statement.binds ^ binds.keys()))
        raise InvalidArgument(f"the statement {name} and its call differ in: {wrong}")
    try:
        return execute(connection, statement.text, binds or None)
    except Exception as error:
        if sqlstate_of(error) != _OUT_OF_RANGE:
            raise
        inner = driver_error(error)
        message = getattr(getattr(inner, "diag", None), "message_primary", None) or inner
        raise InvalidArgument(
            f"a number is out of range: {message}", hint="give a smaller number"
        ) from inner


def execute(
    connection: Any, sql: str, binds: dict[str, Any] | None = None
) -> list[tuple[Any, ...]]:
    """Run one statement in the caller's transaction; errors of Penstock's SQL become typed ones."""
    connection = _unwrap(connection)
    with typed_errors():
        if hasattr(connection, "exec_driver_sql"):
            return _on_sqlalchemy(connection, sql, binds)
        return _on_driver(connection, sql, binds)


@contextmanager
def typed_errors(schema: str | None = None) -> Iterator[None]:
    """Driver errors that are Penstock's become typed ones, all others pass untouched."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        translated = from_database(error, schema or config.schema_name())
        if translated is None:
            raise
        # The driver's error, not SQLAlchemy's: that one prints the parameters, payloads included.
        raise translated from driver_error(error)


def dialect_of(connection: Any) -> str:
    """'postgres' or 'mysql', by the kind of the connection."""
    name = getattr(getattr(connection, "dialect", None), "name", None)  # SQLAlchemy
    name = name or getattr(connection, "vendor", None)  # Django
    module = type(connection).__module__.partition(".")[0].lower()
    if name in {"mysql", "mariadb"} or module in {"pymysql", "mysqldb", "mysql", "mariadb"}:
        raise InvalidArgument("MySQL and MariaDB are not supported yet")
    return "postgres"


def driver_connection(connection: Any) -> Any:
    """The driver's own connection below SQLAlchemy's or Django's."""
    connection = _unwrap(connection)
    if hasattr(connection, "exec_driver_sql"):
        return connection.connection.driver_connection
    if hasattr(connection, "driver_connection"):  # SQLAlchemy's raw_connection()
        return connection.driver_connection
    if hasattr(connection, "vendor"):
        return getattr(connection, "connection", connection)
    return connection


def database_key(connection: Any) -> tuple[str, ...] | None:
    """Which database the connection is open to, for caches; None when it cannot be told."""
    inner = driver_connection(connection)
    try:
        return _keys[inner]
    except (KeyError, TypeError):
        pass
    info = getattr(inner, "info", None)
    if not isinstance(getattr(info, "dbname", None), str):
        return None
    parts = (getattr(info, name, None) for name in ("host", "hostaddr", "port", "dbname"))
    key = tuple(str(part) for part in parts)
    try:
        _keys[inner] = key
    except TypeError:  # a connection of a driver written in C may not be weakly referenced
        return key
    return key


_keys: weakref.WeakKeyDictionary[Any, tuple[str, ...]] = weakref.WeakKeyDictionary()


def _on_sqlalchemy(
    connection: Any, sql: str, binds: dict[str, Any] | None
) -> list[tuple[Any, ...]]:
    result = connection.exec_driver_sql(sql, binds)
    return [tuple(row) for row in result] if result.returns_rows else []


def _on_driver(connection: Any, sql: str, binds: dict[str, Any] | None) -> list[tuple[Any, ...]]:
    with _cursor(connection) as cursor:
        cursor.execute(sql, binds)
        return [tuple(row) for row in cursor.fetchall()] if cursor.description is not None else []


def _cursor(connection: Any) -> Any:
    if type(connection).__module__.startswith("psycopg") and hasattr(connection, "row_factory"):
        # The caller's connection may be set to give dictionaries.
        return connection.cursor(row_factory=_psycopg().rows.tuple_row)
    return connection.cursor()


def _unwrap(connection: Any) -> Any:
    """SQLAlchemy's Session becomes its Connection; what cannot work is refused by name."""
    if hasattr(connection, "exec_driver_sql") or hasattr(connection, "cursor"):
        if inspect.iscoroutinefunction(getattr(connection, "commit", None)):
            raise InvalidArgument(
                f"{type(connection).__name__} is asynchronous", hint="use a synchronous connection"
            )
        return connection
    if hasattr(connection, "get_bind") and callable(getattr(connection, "connection", None)):
        return _unwrap(connection.connection())
    raise InvalidArgument(
        f"{type(connection).__name__} is not a database connection",
        hint="give a psycopg connection, a SQLAlchemy Connection or Session, "
        "or another DB-API connection",
    )


def _options(url: str, application_name: str, statement_timeout_ms: int) -> dict[str, Any]:
    """What is added to the URL; what the URL says itself wins."""
    given = _psycopg().conninfo.conninfo_to_dict(url)
    options = f"{given.get('options') or ''} -c statement_timeout={int(statement_timeout_ms)}"
    return {
        "options": options.strip(),
        "application_name": given.get("application_name") or application_name,
        "connect_timeout": given.get("connect_timeout") or CONNECT_TIMEOUT_SECONDS,
    }


def _unavailable(url: str, error: BaseException) -> PenstockError:
    text = _without_secrets(url, error)
    hint = next((hint for sign, hint in _HINTS if sign in text), "")
    return DatabaseUnavailable(
        f"cannot connect to {config.redact(url)}: {text}",
        hint=hint or f"start the server, or correct {config.URL_VARIABLE}",
    )


def _without_secrets(url: str, error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return config.redact(text.replace(url, config.redact(url)))


def is_unavailable(error: BaseException) -> bool:
    """Whether a driver error says that the connection was lost or the server is going away."""
    state = sqlstate_of(error) or ""
    if state.startswith("08") or state in _SESSION_ENDED:
        return True
    inner = driver_error(error)
    return type(inner).__name__ in {"OperationalError", "InterfaceError"} and not state


def _psycopg() -> Any:
    try:
        import psycopg
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "psycopg":
            raise
        raise ConfigurationError(
            "the PostgreSQL driver psycopg is not installed",
            hint="run: pip install 'penstock[postgres]'",
        ) from None
    return psycopg
