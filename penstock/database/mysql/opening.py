"""How a connection to MySQL or MariaDB is opened: its address, its session, its limits of time."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, unquote

from penstock.database import address
from penstock.database.dialect import CONNECT_TIMEOUT_SECONDS, unavailable, unusable
from penstock.database.mysql.blocks import with_blocks
from penstock.driver_errors import errno_of
from penstock.errors import ConfigurationError, DatabaseTooOld, MissingExtra

#: DEFAULT (expression) and CHECK; SKIP LOCKED and JSON_TABLE.
OLDEST_MYSQL = (8, 0, 16)
OLDEST_MARIADB = (10, 6, 0)

#: What a client waits for an answer, beside twice the time limit of its statements.
SLACK_SECONDS = 10
_DEFAULT_PORT = 3306
#: Keepalives begin after 5 silent seconds and come every 2; so does the end of what is not
#: acknowledged: after 10 seconds (the last is in milliseconds).
_NETWORK = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 5),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 2),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 10_000),
)
_HIGHEST_PORT = 65_535
_TEXT_OPTIONS = frozenset({"unix_socket", "ssl_ca", "ssl_cert", "ssl_key"})
_SWITCHES = frozenset({"ssl_disabled", "ssl_verify_cert", "ssl_verify_identity"})

_HINTS = {
    1045: "check the user and the password",
    1698: "check the user and the password",
    1049: "check the name of the database, or create it",
    1044: "grant the user a right on the database. If it is Penstock's own, as its owner run: "
    "penstock rights install; then: penstock rights grant LOGIN publisher (or consumer, operator)",
    2013: "the server does not answer: look whether it is frozen, and is MySQL or MariaDB",
    1040: "close connections or raise max_connections",
}


def opened(url: str, options: Mapping[str, Any], statement_timeout_ms: int) -> Any:
    """A connection with its session set; what the URL says wins over ``options``."""
    with _typed_errors(url):
        connection = _connected({**options, **_options(url)})
        try:
            require_server(connection.server_version)
            with connection.cursor() as cursor:
                for statement in _session(connection.server_version, statement_timeout_ms):
                    cursor.execute(statement)
        except BaseException:
            connection.close()
            raise
    limit_answers(connection, read_seconds(statement_timeout_ms))
    _notice_silence(connection)
    return connection


def _notice_silence(connection: Any) -> None:
    """Let TCP end a connection whose packets get lost in silence, as libpq does for PostgreSQL.

    PyMySQL has no option for it.  A socket file needs none, and a system may lack an option.
    """
    sock = connection._sock
    if sock is None or sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    for level, name, value in _NETWORK:
        number = getattr(socket, name, None)
        if number is not None:
            sock.setsockopt(level, number, value)


def is_mariadb(version: str) -> bool:
    """Whether a server with this ``VERSION()`` is MariaDB."""
    return "mariadb" in version.lower()


def require_server(version: str) -> None:
    """DatabaseTooOld when the server's ``VERSION()`` is below what Penstock needs."""
    mariadb = is_mariadb(version)
    # Old clients accepted no number above 5, so MariaDB puts "5.5.5-" in front of its own.
    found = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)\.(\d+)", version)
    number = tuple(map(int, found.groups())) if found else (0, 0, 0)
    name, oldest = ("MariaDB", OLDEST_MARIADB) if mariadb else ("MySQL", OLDEST_MYSQL)
    if number < oldest:
        raise DatabaseTooOld(
            f"the server is {name} {'.'.join(map(str, number))}, Penstock needs "
            f"{'.'.join(map(str, oldest))} or newer",
            hint="upgrade the server, or point the URL at a newer one",
        )


def _connected(options: dict[str, Any]) -> Any:
    """A connection whose every read and write is limited, as the connect is.

    PyMySQL's own limit ends with TCP: a server that is frozen accepts, and says nothing.
    """
    driver, seconds = load_pymysql(), options["connect_timeout"]
    return with_blocks(driver.connections.Connection)(
        **options,
        read_timeout=seconds,
        write_timeout=seconds,
        charset="utf8mb4",
        cursorclass=driver.cursors.Cursor,
    )


def limit_answers(connection: Any, seconds: float | None) -> None:
    """What the socket may wait for from now on; PyMySQL has no way but this one."""
    connection._read_timeout = connection._write_timeout = seconds


def read_seconds(statement_timeout_ms: int) -> float | None:
    """For how long a client waits for a word of the server; None (no limit) without a time limit.

    It is for a server that is frozen, and longer than any statement within its limit needs: MySQL
    limits only a SELECT and each wait for a lock, and a call can wait for more than one.
    """
    if statement_timeout_ms <= 0:
        return None
    return 2 * statement_timeout_ms / 1000 + SLACK_SECONDS


@contextmanager
def _typed_errors(url: str) -> Iterator[None]:
    """What goes wrong while a connection is opened becomes a typed error, without the secrets."""
    driver = load_pymysql()
    try:
        yield
    except driver.MySQLError as error:
        hint = _HINTS.get(errno_of(error) or 0, "")
        raise unavailable(url, RuntimeError(words(error)), hint) from None
    except RuntimeError:
        # PyMySQL needs it to log in without TLS, and does not install it.
        raise MissingExtra.of("cryptography", "pymysql[rsa]") from None
    except OSError as error:  # PyMySQL reads certificates before it connects
        raise ConfigurationError(
            "the files for TLS that the address of the database names cannot be used: "
            f"{error.strerror or type(error).__name__}",
            hint="look at ssl_ca, ssl_cert and ssl_key: each names a PEM file that can be read",
        ) from None
    except ValueError as error:  # a host that is no name, no user, a number out of range
        raise unusable(url, error) from None


def _options(url: str) -> dict[str, Any]:
    """The parts of the address as PyMySQL takes them."""
    parts = address.read(url)
    host, colon, port = parts.hosts.rpartition(":")
    if not colon or parts.hosts.endswith("]"):
        host, port = parts.hosts, ""
    try:
        given = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
        number = int(port or _DEFAULT_PORT)
        if not 0 < number <= _HIGHEST_PORT or "," in host:
            raise ValueError("one host, one port")
    except ValueError:
        raise ConfigurationError(
            "the address of the database cannot be read", hint=address.HINT
        ) from None
    options: dict[str, Any] = {
        "host": unquote(host.strip("[]") or "localhost"),
        "port": number,
        "user": unquote(parts.user or "") or None,
        # PyMySQL would send text as Latin-1.
        "password": unquote(parts.password or "").encode(),
        "database": unquote(parts.database.removeprefix("/")) or None,
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
    }
    for name, value in given.items():
        options |= _option(name, value)
    return options


def _option(name: str, value: str) -> dict[str, Any]:
    if name in _TEXT_OPTIONS:
        return {name: value}
    if name in _SWITCHES:
        return {name: value.lower() in {"1", "true", "yes", "on"}}
    if name == "application_name":
        return {"program_name": value}
    if name == "connect_timeout" and value.isdigit() and int(value) > 0:
        return {name: int(value)}
    known = ", ".join(sorted({*_TEXT_OPTIONS, *_SWITCHES, "application_name", "connect_timeout"}))
    raise ConfigurationError(
        "an option in the address of the database is not known",
        hint=f"after the ? write one of {known}",
    )


def _session(version: str, statement_timeout_ms: int) -> list[str]:
    """The settings that make a session behave like one on PostgreSQL."""
    statements = [
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        "SET SESSION time_zone = '+00:00'",
    ]
    if statement_timeout_ms > 0:
        seconds = max(1, -(-statement_timeout_ms // 1000))
        statements.append(
            f"SET SESSION innodb_lock_wait_timeout = {seconds}, lock_wait_timeout = {seconds}"
        )
        limit = (
            f"max_statement_time = {statement_timeout_ms / 1000}"
            if is_mariadb(version)
            else f"max_execution_time = {statement_timeout_ms}"
        )
        statements.append(f"SET SESSION {limit}")
    return statements


def words(error: BaseException) -> str:
    """The message of the server or of PyMySQL, without the number."""
    return str(error.args[-1]) if error.args else type(error).__name__


def load_pymysql() -> Any:
    """PyMySQL, which is imported only when it is needed."""
    try:
        import pymysql.cursors
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pymysql":
            raise
        raise MissingExtra.of("pymysql", "pymysql") from None
    return pymysql
