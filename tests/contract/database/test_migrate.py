"""Installing and upgrading: once, also when several try, and never over an edited file."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import database
from penstock.database import catalog, config, migrate
from penstock.errors import (
    ConfigurationError,
    InvalidArgument,
    MigrationChanged,
    NotMigrated,
    SchemaTooNew,
    UnreleasedSchema,
)
from penstock.topics import names
from tests.contract.databases import ContractDatabase
from tests.contract.kit import sql
from tests.kit.proof import proves

SCHEMA = f"penstock_m{os.getpid()}"


@pytest.fixture
def schema(db: ContractDatabase, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a schema that is not there; removed after the test."""
    monkeypatch.setenv("PENSTOCK_SCHEMA", SCHEMA)
    yield SCHEMA
    word = "SCHEMA" if db.engine == "postgres" else "DATABASE"
    cascade = "CASCADE" if db.engine == "postgres" else ""
    db.run(f"DROP {word} IF EXISTS {SCHEMA} {cascade}")


@pytest.fixture
def installed(db: ContractDatabase) -> Iterator[str]:
    """The name of the schema that other tests use too; its records are put back after the test."""
    name = config.schema_name()
    db.run(f"CREATE TEMPORARY TABLE kept AS SELECT * FROM {name}.schema_migrations")
    yield name
    db.run(f"DELETE FROM {name}.schema_migrations")
    db.run(f"INSERT INTO {name}.schema_migrations SELECT * FROM kept")
    db.run(f"DROP TABLE IF EXISTS {name}.half")


def _dialect(db: ContractDatabase) -> str:
    return "postgres" if db.engine == "postgres" else "mysql"


def _everything(db: ContractDatabase) -> list[str]:
    return [*(each.name for each in catalog.migrations(_dialect(db))), "functions"]


def _add_migration(db: ContractDatabase, patch: pytest.MonkeyPatch, text: str) -> None:
    known = catalog.migrations(_dialect(db))
    new = catalog.Migration(len(known) + 1, "addition", text, f"{abs(hash(text)):064d}", 0)
    patch.setattr(catalog, "migrations", lambda dialect: (*known, new))


def test_an_empty_database_is_migrated_once(db: ContractDatabase, schema: str) -> None:
    assert {line.state for line in migrate.status(db.url)} == {"pending"}
    first = migrate.migrate(db.url)
    assert (first.schema, list(first.applied)) == (schema, _everything(db))
    assert {line.state for line in migrate.status(db.url)} == {"applied"}
    assert migrate.check(db.url) == []
    assert migrate.migrate(db.url).applied == ()
    own = db.connect()
    migrate.require_usable(own)
    names.create_namespace(own, "shop")
    assert [each.path for each in names.list_namespaces(own)] == ["shop"]


def test_an_empty_database_is_not_usable(db: ContractDatabase, schema: str) -> None:
    with pytest.raises(NotMigrated, match="penstock migrate"):
        migrate.require_usable(db.connect())
    with pytest.raises(NotMigrated, match="penstock migrate"):
        names.create_namespace(db.connect(), "shop")


def test_three_runners_at_once_apply_everything_once(db: ContractDatabase, schema: str) -> None:
    """Guard: the lock of the migration, and that each looks again once it has the lock."""
    applied: list[str] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            applied.extend(migrate.migrate(db.url).applied)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert failures == []
    assert sorted(applied) == sorted(_everything(db))


def test_an_edited_migration_is_refused(
    db: ContractDatabase, installed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _add_migration(db, monkeypatch, "-- name: more\nCREATE TABLE IF NOT EXISTS half (id int);\n")
    assert "addition" in migrate.migrate(db.url).applied
    db.run(f"UPDATE {installed}.schema_migrations SET checksum = 'x' WHERE version = 2")
    for verb in (migrate.migrate, migrate.check):
        with pytest.raises(MigrationChanged, match="0002_"):
            verb(db.url)


#: What a version before the first release has recorded: its own first migration and some more, or
#: the tables as they were at that time.
UNRELEASED = {
    "migrations": "UPDATE {0} SET name = 'names', checksum = 'x', version = version + 47"
    " WHERE version = 1; INSERT INTO {0} (version, name, checksum, oldest_program, program,"
    " applied_by) VALUES (1, 'names', 'x', 0, '0.1', 'them')",
    "tables": "UPDATE {0} SET checksum = 'x' WHERE version = 1",
}


@proves("a program works on its own tables")
@pytest.mark.parametrize("made_by", UNRELEASED)
def test_what_was_never_released_is_refused(
    db: ContractDatabase, installed: str, made_by: str
) -> None:
    """Guard: _refuse_unreleased, before anything is written.  The functions would be outdated."""
    for statement in UNRELEASED[made_by].format(f"{installed}.schema_migrations").split("; "):
        db.run(statement)
    db.run(f"UPDATE {installed}.schema_migrations SET checksum = 'x' WHERE version = 0")
    listed = f"SELECT version, name, checksum, applied_at FROM {installed}.schema_migrations"
    before = sorted(db.run(listed))
    for verb in (migrate.migrate, migrate.check, migrate.status):
        with pytest.raises(UnreleasedSchema, match="never released"):
            verb(db.url)
    with pytest.raises(UnreleasedSchema) as refused:
        migrate.require_usable(db.connect())
    for command in ("penstock tail TOPIC --from earliest", "then DROP ", "`penstock migrate`"):
        assert command in str(refused.value.hint)
    assert sorted(db.run(listed)) == before


@proves("a program works on its own tables", guard="the refusal of other tables")
def test_without_the_refusal_a_program_starts_on_tables_that_are_not_its_own(
    db: ContractDatabase, installed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: _refuse_unreleased does nothing.  Then the older tables are as good as its own."""
    db.run(f"UPDATE {installed}.schema_migrations SET name = 'names' WHERE version = 1")
    monkeypatch.setattr(migrate, "_refuse_unreleased", lambda *arguments: None)
    migrate.require_usable(db.connect())
    assert migrate.migrate(db.url).applied == ()


@proves("a program works on its own tables")
def test_functions_of_an_older_release_are_refused(db: ContractDatabase, installed: str) -> None:
    """They may lack what this program calls.  The same functions under an older number are fine."""
    records = f"UPDATE {installed}.schema_migrations SET"
    own = db.connect()
    db.run(f"{records} program = '0.0.9' WHERE version = 0")
    migrate.require_usable(own)
    db.run(f"{records} checksum = 'x' WHERE version = 0")
    with pytest.raises(NotMigrated, match=r"are of Penstock 0\.0\.9.*run `penstock migrate`"):
        migrate.require_usable(own)


@proves("a program works on its own tables", guard="`_refuse_older_functions`")
def test_without_the_refusal_a_program_starts_on_functions_of_before(
    db: ContractDatabase, installed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = f"{installed}.schema_migrations"
    db.run(f"UPDATE {records} SET program = '0.0.9', checksum = 'x' WHERE version = 0")
    monkeypatch.setattr(migrate, "_refuse_older_functions", lambda *arguments: None)
    migrate.require_usable(db.connect())


def test_what_failed_half_way_is_done_again(
    db: ContractDatabase, installed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: a migration is recorded after its last statement, and each can be repeated."""
    good = "-- name: half\nCREATE TABLE IF NOT EXISTS half (id int);\n\n-- name: rest\n"
    with monkeypatch.context() as patch:
        _add_migration(db, patch, f"{good}INSERT INTO nowhere VALUES (1);\n")
        with pytest.raises(Exception, match="nowhere"):
            migrate.migrate(db.url)
        assert {line.name: line.state for line in migrate.status(db.url)}["addition"] == "pending"
    with monkeypatch.context() as patch:
        _add_migration(db, patch, f"{good}INSERT INTO half VALUES (1);\n")
        assert "addition" in migrate.migrate(db.url).applied
        assert db.run(f"SELECT id FROM {installed}.half") == [(1,)]
    with pytest.raises(SchemaTooNew, match="upgrade this program"):
        migrate.migrate(db.url)


def test_changed_functions_are_applied_again(db: ContractDatabase, installed: str) -> None:
    changed = f"UPDATE {installed}.schema_migrations SET checksum = 'x'"
    db.run(f"{changed} WHERE version = 0")
    assert [line.state for line in migrate.check(db.url)] == ["outdated"]
    assert migrate.migrate(db.url).applied == ("functions",)
    db.run(f"{changed}, program = '99.0' WHERE version = 0")
    with pytest.raises(SchemaTooNew, match=r"99\.0"):
        migrate.migrate(db.url)


def test_a_connection_is_left_as_it_was(db: ContractDatabase, schema: str) -> None:
    """Refused inside a transaction; else its settings are what they were."""
    asked = (
        "SELECT current_setting('search_path'), current_setting('lock_timeout')"
        if db.engine == "postgres"
        else "SELECT DATABASE(), @@sql_mode, @@lock_wait_timeout, @@collation_connection"
    )
    with db.connect(autocommit=False) as connection:
        before = database.execute(connection, asked)
        sql(connection, "SELECT 1 FROM penstock.histories")
        with pytest.raises(InvalidArgument, match="inside a transaction"):
            migrate.migrate(connection)
        connection.rollback()
        migrate.migrate(connection)
        assert database.execute(connection, asked) == before
        connection.rollback()
        assert migrate.check(connection) == []


def test_the_printed_sql_is_always_the_same_text(db: ContractDatabase) -> None:
    dialect = _dialect(db)
    whole = migrate.print_sql(dialect=dialect)
    assert whole == migrate.print_sql(dialect=dialect)
    newest = len(catalog.migrations(dialect))
    assert migrate.print_sql(dialect=dialect, since=newest) in whole or len(
        migrate.print_sql(dialect=dialect, since=newest)
    ) < len(whole)
    assert "secret" not in re.sub(r"--[^\n]*", "", whole)


def test_the_printed_sql_makes_the_schema(mysql_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard: --print is what the runner runs, statement by statement."""
    monkeypatch.setenv("PENSTOCK_SCHEMA", SCHEMA)
    connection = mysql_db.connect()
    printed = migrate.print_sql(SCHEMA, dialect="mysql")
    try:
        for statement in printed.partition("DELIMITER $$\n")[2].split("\n$$\n")[:-1]:
            sql(connection, statement)
        assert {line.state for line in migrate.status(mysql_db.url)} == {"applied"}
        assert migrate.migrate(mysql_db.url).applied == ()
    finally:
        sql(connection, f"DROP DATABASE IF EXISTS {SCHEMA}")


@pytest.mark.parametrize("name", ["mysql", "sys", "performance_schema"])
def test_a_schema_of_the_servers_is_refused(mysql_db: Any, name: str) -> None:
    with pytest.raises(ConfigurationError):
        migrate.migrate(mysql_db.url, name)
