"""The SQL files can be read, and every named statement fits what the drivers expect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.database import catalog
from penstock.database.mysql import markers
from penstock.errors import InvalidArgument, PenstockError
from penstock.subscriptions import inbox

NAMES = sorted(catalog.statements("postgres"))


def test_a_block_has_a_name_a_comment_and_one_statement() -> None:
    (block,) = catalog.parse("-- name: one\n-- What it does.\nSELECT penstock.f(%(a)s);\n")
    assert block == catalog.Statement(
        "one", "What it does.", "SELECT penstock.f(%(a)s)", frozenset({"a"})
    )


def test_another_schema_takes_the_place_of_penstock() -> None:
    (block,) = catalog.parse("-- name: one\nSELECT penstock.f(), my_penstock.g()", "outbox")
    assert block.text == 'SELECT "outbox".f(), my_penstock.g()'


def test_an_unknown_statement_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no SQL statement named 'nothing'"):
        catalog.statement("postgres", "nothing")


@pytest.mark.parametrize("name", NAMES)
def test_a_statement_is_explained_and_fits_every_driver(name: str) -> None:
    statement = catalog.statement("postgres", name)
    assert statement.about, "a comment says what it does"
    assert "--" not in statement.text
    assert ";" not in statement.text
    assert "%" not in statement.text.replace("%(", "").replace("%%", ""), "only %(bind)s"


def test_every_statement_is_valid_on_a_migrated_database(
    connection: psycopg.Connection[Any], subtests: pytest.Subtests
) -> None:
    # A table of the application's database; a statement that makes one cannot be prepared.
    inbox.create(connection)
    for name in set(NAMES) - {"create_inbox"}:
        statement = catalog.statement("postgres", name)
        places = {bind: f"${number}" for number, bind in enumerate(sorted(statement.binds), 1)}
        with subtests.test(name):
            connection.execute(f'PREPARE "{name}" AS {statement.text % places}'.encode())


def test_migrations_are_numbered_and_functions_are_in_the_order_of_their_rooms() -> None:
    migrations = catalog.migrations("postgres")
    assert [each.version for each in migrations] == list(range(1, len(migrations) + 1))
    names = [name for name, _ in catalog.functions("postgres").files]
    rooms = [name.partition("/")[0] for name in names]
    assert rooms == sorted(rooms, key=catalog.ROOMS.index)
    assert names[-1] == "install/start.sql", "what runs at once comes when all functions exist"


def test_a_marker_is_written_out_as_a_handler() -> None:
    text = "BEGIN\n    {{on error: CALL undo_call(); DO LAST_INSERT_ID(a)}}\n    SELECT 1;\n"
    assert markers.expanded("log/x.sql", text) == (
        "BEGIN\n"
        "    DECLARE EXIT HANDLER FOR SQLEXCEPTION\n"
        "    BEGIN\n"
        "        CALL undo_call();\n"
        "        DO LAST_INSERT_ID(a);\n"
        "        RESIGNAL;\n"
        "    END;\n"
        "    SELECT 1;\n"
    )


@pytest.mark.parametrize(
    "line",
    [
        "{{on eror: CALL undo_call()}}",
        "{{on error CALL undo_call()}}",
        "{{on error: }}",
        "{{on error: CALL undo_call()",
        "DO 1; {{on error: CALL undo_call()}}",
        "{{undo}}",
    ],
)
def test_an_unknown_marker_is_refused(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: expanded.  A handler that is not there would leave half of a call in its place."""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "x.sql").write_text(f"-- name: x\n-- Is x.\nBEGIN\n    {line}\nEND;")
    monkeypatch.setattr(catalog, "_folder", lambda dialect: tmp_path)
    load = catalog.functions.__wrapped__
    with pytest.raises(PenstockError, match=r"log/x\.sql: there is no such marker") as raised:
        load("mysql")
    assert line in str(raised.value)


def test_the_checksum_is_that_of_what_the_database_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a change of what a marker stands for would not reach a database."""
    load = catalog.functions.__wrapped__
    before = load("mysql")
    assert not any("{{" in text for _, text in before.files)
    monkeypatch.setattr(
        markers, "_handler", lambda found: f"{found['indent']}-- {found['what']}, otherwise"
    )
    assert load("mysql").checksum != before.checksum


@pytest.mark.parametrize("dialect", ["postgres", "mysql"])
def test_tables_and_migrations_name_no_schema(dialect: str) -> None:
    for text in (catalog.tables(dialect), *(each.text for each in catalog.migrations(dialect))):
        code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
        assert "penstock." not in code


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the SQL of a made dialect is: one room with one table."""
    (tmp_path / "topics").mkdir()
    (tmp_path / "topics" / catalog.TABLES).write_text("-- name: a\n-- Why.\nCREATE TABLE a ();\n")
    monkeypatch.setattr(catalog, "_folder", lambda dialect: tmp_path)
    for each in (catalog.tables, catalog.migrations):
        monkeypatch.setattr(catalog, each.__name__, each.__wrapped__)
    return tmp_path


def put(folder: Path, name: str, text: str) -> None:
    path = folder / "migrations" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"-- name: x\n-- Why.\n{text}\n")


def test_a_comment_may_be_put_better(folder: Path) -> None:
    """The statements are what was applied."""
    (before,) = catalog.migrations("x")
    tables = folder / "topics" / catalog.TABLES
    tables.write_text("-- name: a\n-- Better.\nCREATE TABLE\n    a -- None.\n    ();\n")
    assert catalog.migrations("x")[0].checksum == before.checksum
    tables.write_text("-- name: a\n-- Better.\nCREATE TABLE b ();\n")
    assert catalog.migrations("x")[0].checksum != before.checksum


def test_an_old_schema_gets_migrations_and_a_new_one_the_tables_of_now(folder: Path) -> None:
    first = catalog.migrations("x")[0]
    put(folder, "0002_more.sql", "ALTER TABLE a ADD COLUMN b int;")
    assert [each.name for each in catalog.migrations("x")] == ["tables", "more"]
    now = "-- name: a\n-- Why.\nCREATE TABLE a (b int);\n"
    (folder / "topics" / catalog.TABLES).write_text(now)
    # At the first release what the tables were is laid down.
    put(folder, "0001_tables.sql", "CREATE TABLE a ();")
    assert catalog.migrations("x")[0].checksum == first.checksum
    (new,) = catalog.steps("x", {})
    assert (new.text, [each.version for each in new.recorded]) == (now, [1, 2])
    (old,) = catalog.steps("x", {0, 1})
    assert ("ADD COLUMN" in old.text, [each.version for each in old.recorded]) == (True, [2])
    assert catalog.steps("x", {0, 1, 2}) == []


def test_migrations_have_no_gap(folder: Path) -> None:
    put(folder, "0003_more.sql", "SELECT 1;")
    with pytest.raises(PenstockError, match="not numbered 0002, 0003"):
        catalog.migrations("x")
