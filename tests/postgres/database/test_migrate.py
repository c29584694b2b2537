"""The schema is installed once, wholly or not at all, also when several try at the same time."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from penstock import database
from penstock.database import catalog, migrate
from penstock.database.postgres import connection as postgres
from penstock.errors import (
    ConfigurationError,
    DatabaseTooOld,
    DatabaseUnavailable,
    MigrationBlocked,
    NotMigrated,
    PenstockError,
    PermissionDenied,
    SchemaTooNew,
)
from resources.embedded import find_bin_dir
from tests.support import PostgresServer, missing

Connection = psycopg.Connection[tuple[Any, ...]]
NEWEST = len(catalog.migrations("postgres"))


@pytest.fixture
def empty(empty_database_url: str) -> Iterator[Connection]:
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        yield connection


def add_migration(patch: pytest.MonkeyPatch, text: str, *, oldest: int = 0) -> None:
    """One more migration than the files have."""
    known = catalog.migrations("postgres")
    new = catalog.Migration(NEWEST + 1, "addition", text, f"{hash(text)}", oldest)
    patch.setattr(catalog, "migrations", lambda dialect: (*known, new))


def exists(connection: Connection, relation: str) -> bool:
    row = connection.execute("SELECT to_regclass(%s)", [relation]).fetchone()
    return row is not None and row[0] is not None


def states(url: str) -> dict[str, str]:
    return {line.name: line.state for line in migrate.status(url)}


def test_status_and_check_write_nothing(empty: Connection, empty_database_url: str) -> None:
    assert len(migrate.check(empty_database_url)) == NEWEST + 1
    migrate.status(empty)
    assert not empty.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'penstock'").fetchall()


def test_four_runners_at_once_apply_everything_once(empty_database_url: str) -> None:
    """At SERIALIZABLE; at the default level the contract has the same on every engine."""
    start = threading.Barrier(4)
    applied: list[str] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with psycopg.connect(empty_database_url) as connection:
                connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
                start.wait()
                applied.extend(migrate.migrate(connection).applied)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert sorted(applied) == sorted(
        (*(m.name for m in catalog.migrations("postgres")), "functions")
    )


def test_a_failing_migration_leaves_nothing(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        add_migration(patch, "CREATE TABLE half (id int); SELECT 1 / 0;")
        with pytest.raises(psycopg.errors.DivisionByZero):
            migrate.migrate(database_url)
        assert not exists(connection, "penstock.half")
        assert states(database_url)["addition"] == "pending"
    add_migration(monkeypatch, "CREATE TABLE whole (id int);")
    assert migrate.migrate(database_url).applied == ("addition",)
    assert exists(connection, "penstock.whole")


def test_a_newer_schema_is_not_migrated_but_may_be_used(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        add_migration(patch, "CREATE TABLE newer (id int);")
        migrate.migrate(database_url)
    migrate.require_usable(connection)
    with pytest.raises(SchemaTooNew, match="upgrade this program"):
        migrate.migrate(database_url)
    assert states(database_url)["addition"] == "newer"


def test_a_schema_that_ended_this_program_is_refused(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        add_migration(patch, "DROP TABLE IF EXISTS old;", oldest=NEWEST + 1)
        migrate.migrate(database_url)
        migrate.require_usable(connection)
    with pytest.raises(SchemaTooNew):
        migrate.require_usable(connection)


def test_functions_of_a_newer_program_are_not_replaced(
    database_url: str, connection: Connection
) -> None:
    connection.execute(
        "UPDATE penstock.schema_migrations SET checksum = 'x', program = '99.0' WHERE version = 0"
    )
    with pytest.raises(SchemaTooNew, match=r"99\.0"):
        migrate.migrate(database_url)
    migrate.require_usable(connection)
    connection.execute("UPDATE penstock.schema_migrations SET program = '0.0.1' WHERE version = 0")
    assert migrate.migrate(database_url).applied == ("functions",)


def test_a_program_with_a_new_migration_finds_the_schema_not_migrated(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate.require_usable(connection)
    add_migration(monkeypatch, "SELECT 1;")
    with pytest.raises(NotMigrated, match="addition"):
        migrate.require_usable(connection)


def test_a_server_that_is_too_old_is_refused(
    empty: Connection, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.require_server(140_000)
    with pytest.raises(DatabaseTooOld, match="PostgreSQL 13, Penstock needs 14"):
        postgres.require_server(130_014)
    monkeypatch.setattr(postgres, "OLDEST_SERVER", 990_000)
    for target in (empty, empty_database_url):
        with pytest.raises(DatabaseTooOld):
            migrate.migrate(target)
    assert not exists(empty, "penstock.schema_migrations")


def test_a_table_in_use_stops_the_migration_and_lets_others_pass(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_migration(monkeypatch, "ALTER TABLE topics ADD COLUMN extra int;")
    failures: list[BaseException] = []

    def run() -> None:
        try:
            migrate.migrate(database_url, lock_wait_seconds=1.5)
        except BaseException as error:
            failures.append(error)

    with psycopg.connect(database_url) as other:
        other.execute("SELECT count(*) FROM penstock.topics")
        thread = threading.Thread(target=run)
        thread.start()
        # The next one queues up behind the waiting migration, but not for long.
        connection.execute("SET lock_timeout = '2s'")
        while thread.is_alive():
            connection.execute("SELECT count(*) FROM penstock.topics")
            thread.join(0.01)
    assert [type(error) for error in failures] == [MigrationBlocked]
    assert "run it again" in str(failures[0])
    assert "addition" in migrate.migrate(database_url).applied


def test_a_login_without_rights_is_told_so(
    postgres_server: PostgresServer, empty: Connection, empty_database_url: str
) -> None:
    role = f"nobody_{os.getpid()}"
    empty.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'x'").format(sql.Identifier(role)))
    try:
        url = psycopg.conninfo.make_conninfo(empty_database_url, user=role, password="x")
        with pytest.raises(PermissionDenied, match="CREATE on the database"):
            migrate.migrate(url)
    finally:
        empty.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def test_two_schemas_live_side_by_side(
    empty: Connection, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for schema in ("penstock", "user"):  # a reserved word
        assert migrate.migrate(empty_database_url, schema).schema == schema
    found = "SELECT count(*) FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r'"
    counts = [empty.execute(found, [name]).fetchone() for name in ("penstock", '"user"')]
    assert counts[0] == counts[1]
    monkeypatch.setenv("PENSTOCK_SCHEMA", "user")
    database.call(empty, "create_namespace", path="a")
    assert empty.execute('SELECT path FROM "user".namespaces').fetchall() == [("a",)]
    assert empty.execute("SELECT path FROM penstock.namespaces").fetchall() == []


@pytest.mark.parametrize("schema", ["public", "pg_catalog", 'x"; DROP TABLE y; --'])
def test_a_schema_of_others_is_refused(empty_database_url: str, schema: str) -> None:
    for verb in (
        lambda: migrate.migrate(empty_database_url, schema),
        lambda: migrate.print_sql(schema),
    ):
        with pytest.raises(ConfigurationError):
            verb()


def test_the_printed_sql_is_always_the_same_text() -> None:
    assert migrate.print_sql() == migrate.print_sql()
    assert migrate.print_sql(since=NEWEST).count("\nBEGIN;") == 1
    assert "CREATE SCHEMA" not in migrate.print_sql(since=1)


@pytest.mark.parametrize("schema", ["penstock", "outbox"])
def test_the_printed_sql_makes_the_same_schema_as_the_runner(
    postgres_server: PostgresServer, empty_database_url: str, tmp_path: Path, schema: str
) -> None:
    script = tmp_path / "penstock.sql"
    script.write_text(migrate.print_sql(schema), "utf-8")
    by_psql = postgres_server.create(f"printed_{os.getpid()}")
    try:
        client("psql", by_psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", str(script))
        migrate.migrate(empty_database_url, schema)
        assert dump(by_psql) == dump(empty_database_url)
        assert recorded(by_psql, schema) == recorded(empty_database_url, schema)
        assert migrate.migrate(by_psql, schema).applied == ()
    finally:
        postgres_server.drop(f"printed_{os.getpid()}")


def test_the_printed_sql_refuses_to_run_twice(connection: Connection) -> None:
    with pytest.raises(psycopg.errors.DuplicateTable):
        connection.execute(migrate.print_sql().encode())


def test_a_server_that_does_not_answer_is_named_without_its_password() -> None:
    with pytest.raises(DatabaseUnavailable, match=r"//127\.0\.0\.1:1/bank") as caught:
        migrate.migrate("postgresql://teller:s3cret@127.0.0.1:1/bank")
    assert "s3cret" not in str(caught.value)
    assert "teller" not in str(caught.value)
    assert caught.value.__cause__ is None


def client(program: str, url: str, *arguments: str) -> str:
    try:
        path = find_bin_dir() / program
    except PenstockError as error:
        missing(program, error)
    done = subprocess.run(
        [str(path), *arguments, url], check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout


def dump(url: str) -> str:
    """The schema as pg_dump writes it, without the random word of its first and last line."""
    lines = client("pg_dump", url, "--schema-only").splitlines()
    return "\n".join(line for line in lines if "restrict" not in line)


def recorded(url: str, schema: str) -> list[tuple[Any, ...]]:
    columns = sql.SQL("SELECT version, name, checksum, oldest_program, program FROM {} ORDER BY 1")
    with psycopg.connect(url) as connection:
        return connection.execute(
            columns.format(sql.Identifier(schema, "schema_migrations"))
        ).fetchall()
