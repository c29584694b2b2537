"""A login with USAGE on the schema and EXECUTE on its functions needs no right on a table."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql

import penstock
from penstock import log, migrate, stream
from penstock.cli import main
from penstock.errors import PermissionDenied
from tests.consumers.process import Daemon, until

TOPIC = "rights/orders"
CALLS = "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA penstock TO {}"


@pytest.fixture
def caller_url(
    connection: psycopg.Connection[tuple[object, ...]], database_url: str
) -> Iterator[str]:
    """The URL of a login that holds no right on any table."""
    name = f"caller_{os.getpid()}"
    role = sql.Identifier(name)
    penstock.create_topic(connection, TOPIC, 1, create_namespaces=True)
    stream.subscribe(connection, "billing", [TOPIC])
    connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'x'").format(role))
    try:
        connection.execute(sql.SQL("GRANT USAGE ON SCHEMA penstock TO {}").format(role))
        connection.execute(sql.SQL(CALLS).format(role))
        parts = urlsplit(database_url)
        host = parts.netloc.rpartition("@")[2]
        yield urlunsplit(parts._replace(netloc=f"{name}:x@{host}"))
    finally:
        connection.execute(sql.SQL("DROP OWNED BY {}").format(role))
        connection.execute(sql.SQL("DROP ROLE {}").format(role))


def test_tables_need_no_grants(
    caller_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", caller_url)
    with psycopg.connect(caller_url, autocommit=True) as caller:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            caller.execute("SELECT FROM penstock.schema_migrations")
        penstock.publish(caller, TOPIC, b"one")
        log.sequence(caller)
        assert [each.payload for each in log.fetch(caller, TOPIC, 0, 1)] == [b"one"]
        migrate.require_usable(caller)
        assert migrate.check(caller) == []
    assert {line.state for line in migrate.status(caller_url)} == {"applied"}
    assert main.run(["status"]) == 0
    assert TOPIC in capsys.readouterr().out


def test_the_daemon_needs_no_grants_on_tables(caller_url: str, tmp_path: Path) -> None:
    roles = ("--roles", "sequencer,sweep,consumers", "--http-port", "0")
    handler = ("--consumer", "billing=tests.consumers.handlers:record")
    daemon = Daemon(caller_url, tmp_path, (*roles, *handler))
    try:
        daemon.wait_started()
        with psycopg.connect(caller_url, autocommit=True) as caller:
            penstock.publish(caller, TOPIC, b"one")
        until(daemon.handled, "the handler to see the event")
        daemon.terminate()
        assert daemon.exit_code() == 0, daemon.text()
        assert "permission denied" not in daemon.text()
    finally:
        daemon.kill()


def test_a_schema_without_the_function_is_read_directly(
    connection: psycopg.Connection[tuple[object, ...]], caller_url: str
) -> None:
    connection.execute("DROP FUNCTION penstock.applied_migrations()")
    migrate.require_usable(connection)
    with pytest.raises(PermissionDenied, match="schema_migrations"):
        migrate.check(caller_url)
