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


@pytest.mark.parametrize("migration", catalog.migrations("postgres"), ids=lambda each: each.name)
def test_a_migration_names_no_schema(migration: catalog.Migration) -> None:
    code = "\n".join(
        line for line in migration.text.splitlines() if not line.lstrip().startswith("--")
    )
    assert "penstock." not in code
