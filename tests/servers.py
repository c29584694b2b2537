"""The database servers of the tests: given by environment variables, else started here.

- ``PENSTOCK_TEST_POSTGRES_URL``, ``PENSTOCK_TEST_MYSQL_URL``, ``PENSTOCK_TEST_MARIADB_URL``: a
  superuser's URL of a server that is there already (the tests then run in one process);
- ``PENSTOCK_TEST_ETCD_URL``, ``PENSTOCK_TEST_REDIS_URL``: stores for leases that are there already;
- ``PENSTOCK_TEST_POSTGRES_MAJOR=14`` to ``17``, ``PENSTOCK_TEST_MARIADB_VERSION=10.11``: another
  version of our own one;
- ``PENSTOCK_TEST_DATABASES=postgres,mysql``: only these; tests of the others are skipped.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import psycopg
import pymysql
import pytest
from psycopg import sql

from penstock.errors import PenstockError
from resources.embedded import EmbeddedPostgres, find_bin_dir
from tests.support import FAST_SETTINGS, PostgresServer, missing
from tools.servers import (
    MARIADB,
    MARIADB_10_11,
    MYSQL,
    Distribution,
    MySQLServer,
    StoreServer,
    catalogue,
)
from tools.servers.postgres_matrix import (
    MatrixPostgres,
    fetched as matrix_fetched,
    version as matrix_version,
)

DATABASES = ("postgres", "mysql", "mariadb")

_NOT_HERE = "not here yet, fetched when the first test asks for it"


@dataclass(frozen=True, slots=True)
class MySQLTestServer:
    """A MySQL or MariaDB for tests, and how to make and drop databases on it."""

    admin_url: str
    embedded: MySQLServer | None = None

    def url(self, database: str) -> str:
        """The URL of a database of this server."""
        return urlunsplit(urlsplit(self.admin_url)._replace(path=f"/{quote(database, safe='')}"))

    def create(self, database: str) -> str:
        """Create an empty database and answer its URL."""
        self._administrate(f"CREATE DATABASE {_identifier(database)}")
        return self.url(database)

    def drop(self, database: str) -> None:
        """Drop a database; waits for transactions of others that still use its tables."""
        self._administrate(f"DROP DATABASE IF EXISTS {_identifier(database)}")

    def connect(self, database: str | None = None, **options: Any) -> pymysql.Connection:
        """A PyMySQL connection, not in autocommit mode unless the options say so."""
        parts = urlsplit(self.admin_url)
        return pymysql.connect(
            host=parts.hostname,
            port=parts.port or 3306,
            user=unquote(parts.username or "root"),
            password=unquote(parts.password or ""),
            database=database,
            **options,
        )

    def version(self) -> str:
        """What ``SELECT VERSION()`` says."""
        return str(self._administrate("SELECT VERSION()"))

    def _administrate(self, statement: str) -> Any:
        with self.connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            row = cursor.fetchone()
        return row[0] if row else None


def chosen() -> tuple[str, ...]:
    """Which of the databases this run is about: all, unless PENSTOCK_TEST_DATABASES says so."""
    named = os.environ.get("PENSTOCK_TEST_DATABASES", "").replace(",", " ").split()
    unknown = set(named) - set(DATABASES)
    if unknown:
        raise pytest.UsageError(f"PENSTOCK_TEST_DATABASES: {unknown} is not of {DATABASES}")
    return tuple(named) or DATABASES


def given_ones() -> list[str]:
    """The databases whose server is not our own."""
    return [each for each in DATABASES if _given(each)]


def postgres(folder: Path) -> Iterator[PostgresServer]:
    """The PostgreSQL of this run, until the generator is closed."""
    _only_when_chosen("postgres")
    given = _given("postgres")
    if given:
        yield (server := PostgresServer(given))
        server.close()
        return
    try:
        embedded = _own_postgres(folder)
        embedded.start()
    except PenstockError as error:
        missing("PostgreSQL", error)
    try:
        server = PostgresServer(embedded.url("postgres"), embedded)
        _log_in_quickly(server)
        yield server
        server.close()
    finally:
        embedded.stop()


def mysql(folder: Path) -> Iterator[MySQLTestServer]:
    """The MySQL of this run."""
    yield from _mysql_family("mysql", folder)


def mariadb(folder: Path) -> Iterator[MySQLTestServer]:
    """The MariaDB of this run."""
    yield from _mysql_family("mariadb", folder)


def store(name: str, folder: Path) -> Iterator[str]:
    """The URL of the etcd or Redis of this run."""
    given = _given(name)
    if given:
        yield given
        return
    server = StoreServer(folder, catalogue.STORES[name])
    try:
        server.start()
    except PenstockError as error:
        missing(server.title, error)
    try:
        yield server.url()
    finally:
        server.stop()


def header() -> list[str]:
    """A line for each database of this run; nothing is started or fetched for it."""
    described = {"postgres": _postgres_line, "mysql": _mysql_line, "mariadb": _mysql_line}
    return [f"{each}: {described[each](each)}" for each in chosen()]


def _mysql_family(name: str, folder: Path) -> Iterator[MySQLTestServer]:
    _only_when_chosen(name)
    given = _given(name)
    if given:
        yield MySQLTestServer(given)
        return
    distribution = _distribution(name)
    server = MySQLServer(folder, distribution)
    try:
        server.start()
    except PenstockError as error:
        missing(distribution.title, error)
    try:
        yield MySQLTestServer(server.url("mysql"), server)
    finally:
        server.stop()


def _only_when_chosen(name: str) -> None:
    if name not in chosen():
        pytest.skip(f"this run is about {', '.join(chosen())}")


def _given(name: str) -> str | None:
    return os.environ.get(f"PENSTOCK_TEST_{name.upper()}_URL")


def _distribution(name: str) -> Distribution:
    if name == "mysql":
        return MYSQL
    wanted = os.environ.get("PENSTOCK_TEST_MARIADB_VERSION")
    if wanted not in {None, "", "10.11"}:
        raise pytest.UsageError(f"PENSTOCK_TEST_MARIADB_VERSION is {wanted!r}; 10.11 is known")
    return MARIADB_10_11 if wanted else MARIADB


def _major() -> int | None:
    wanted = os.environ.get("PENSTOCK_TEST_POSTGRES_MAJOR")
    if wanted and not wanted.isdecimal():
        raise pytest.UsageError(f"PENSTOCK_TEST_POSTGRES_MAJOR is {wanted!r}, not a number")
    return int(wanted) if wanted else None


def _own_postgres(folder: Path) -> EmbeddedPostgres:
    major = _major()
    if major is None:
        return EmbeddedPostgres(folder, settings=FAST_SETTINGS)
    return MatrixPostgres(major, folder, settings=FAST_SETTINGS)


def _log_in_quickly(server: PostgresServer) -> None:
    """4,096 rounds of a hash are half of a login, and tests log in thousands of times."""
    parts = urlsplit(server.admin_url)
    with psycopg.connect(server.admin_url, autocommit=True) as connection:
        if connection.info.server_version >= 160_000:
            connection.execute("SET scram_iterations = 1")
            connection.execute(
                sql.SQL("ALTER ROLE {} PASSWORD {}").format(
                    sql.Identifier(parts.username or ""), sql.Literal(parts.password)
                )
            )


def _postgres_line(name: str) -> str:
    given, major = _given(name), _major()
    try:
        if given:
            return f"{PostgresServer(given).version()} (given)"
        if major is not None:
            return matrix_version(major) if matrix_fetched(major) else _NOT_HERE
        command = [str(find_bin_dir() / "postgres"), "--version"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (PenstockError, psycopg.Error, OSError, subprocess.CalledProcessError) as error:
        return f"none ({error})"


def _mysql_line(name: str) -> str:
    given, distribution = _given(name), _distribution(name)
    try:
        if given:
            return f"{MySQLTestServer(given).version()} (given)"
        if not distribution.fetched():
            return _NOT_HERE
        return distribution.version()
    except (PenstockError, OSError, pymysql.Error) as error:
        return f"none ({error})"


def _identifier(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
