"""What tests of several folders share."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql

if TYPE_CHECKING:
    from resources.embedded import EmbeddedPostgres

#: A skip reason that begins so is named again in the last line of the run.
MISSING = "missing: "

#: Tests do not survive a power cut, and need not. One that waits for a lock for ever is to fail,
#: and not to stop the run. No autovacuum: while it analyzes a table it has a snapshot, and a test
#: of what a snapshot postpones is to see its own only.
FAST_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_prepared_transactions": "16",
    "lock_timeout": "60s",
    "autovacuum_naptime": "1d",
}

#: For sessions that are asked to end.
_END_SECONDS = 5

_admins: dict[str, psycopg.Connection[tuple[Any, ...]]] = {}


def missing(what: str, error: Exception | str) -> NoReturn:
    """Something that a test needs is not to be had: on CI a failure, elsewhere a named gap."""
    reason = f"{MISSING}{what} ({error})"
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """A server for tests, and how to make and drop databases on it."""

    admin_url: str
    embedded: EmbeddedPostgres | None = None

    def url(self, database: str) -> str:
        """The URL of a database of this server."""
        return urlunsplit(urlsplit(self.admin_url)._replace(path=f"/{database}"))

    def create(self, database: str, template: str = "template0") -> str:
        """Create a database, empty or as a copy, and answer its URL."""
        # Files are copied in half the time that the write-ahead log of the copy takes.
        version = self._admin().info.server_version
        by_files = sql.SQL("" if version < 150000 else "STRATEGY file_copy")
        self._run(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} {}").format(
                sql.Identifier(database), sql.Identifier(template), by_files
            )
        )
        return self.url(database)

    def drop(self, database: str) -> None:
        """Drop a database, whoever is still connected to it."""
        self._end_sessions(database)
        self._run(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database))
        )

    def _end_sessions(self, database: str) -> None:
        """The server looks for them every tenth of a second only, and most are about to end."""
        end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = {}"
        deadline = time.monotonic() + _END_SECONDS
        while self._run(sql.SQL(end).format(sql.Literal(database))).rowcount:
            if time.monotonic() > deadline:
                return  # the drop tells who stays
            time.sleep(0.001)

    def _admin(self) -> psycopg.Connection[tuple[Any, ...]]:
        """One connection for all tests: to open one takes as long as to drop a database."""
        found = _admins.get(self.admin_url)
        if found is None or found.closed:
            found = psycopg.connect(self.admin_url, autocommit=True)
            _admins[self.admin_url] = found
        return found

    def _run(self, statement: sql.Composed) -> psycopg.Cursor[tuple[Any, ...]]:
        connection = self._admin()
        try:
            return connection.execute(statement)
        except psycopg.OperationalError:
            if not connection.closed:
                raise
            # A test has ended that connection, or the server.
            return self._admin().execute(statement)

    def close(self) -> None:
        """The end of the connection that all tests share."""
        if found := _admins.pop(self.admin_url, None):
            found.close()

    def version(self) -> str:
        """What ``SHOW server_version`` says."""
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            row = connection.execute("SHOW server_version").fetchone()
        assert row is not None
        return str(row[0])
