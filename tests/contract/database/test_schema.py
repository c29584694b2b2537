"""A new installation gets the tables as they are now; migrations lead an older one to the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from penstock import database
from penstock.database import catalog, migrate
from tests.contract.databases import ContractDatabase
from tests.kit.proof import proves
from tools.schema import __main__ as command
from tools.schema.facts import difference, read

Install = Callable[[], str]

#: A migration made for these tests, and what it changes in the tables of now.
MORE = "-- name: more\n-- Is more.\nALTER TABLE removals ADD COLUMN extra INT;\n"
#: What differs after a statement, one of each kind.
CHANGES = {
    "ALTER TABLE removals ADD COLUMN other INT NOT NULL DEFAULT 5": "table removals, column other",
    "ALTER TABLE removals ALTER COLUMN other SET DEFAULT 6": "table removals, column other",
    "CREATE INDEX removals_other ON removals (other)": "removals_other",
    "ALTER TABLE removals ADD CONSTRAINT removals_check CHECK (other > 0)": "removals_check",
    "CREATE TABLE additions (id INT PRIMARY KEY)": "table additions",
    "DROP TABLE pressure": "table pressure",
    "INSERT INTO additions VALUES (1)": "rows of additions",
}
OF_POSTGRES = {
    "ALTER TABLE removals ALTER COLUMN name SET STORAGE EXTERNAL": "table removals, column name",
    "ALTER TABLE removals SET (fillfactor = 50)": "table removals",
    "CREATE SEQUENCE counter": "sequence counter",
    "CREATE FUNCTION one() RETURNS int LANGUAGE sql AS 'SELECT 1'": "function one()",
    "CREATE OR REPLACE FUNCTION one() RETURNS int LANGUAGE sql AS 'SELECT 2'": "function one()",
    "REVOKE EXECUTE ON FUNCTION one() FROM PUBLIC": "function one()",
    "GRANT SELECT ON removals TO PUBLIC": "table removals",
    "COMMENT ON TABLE removals IS 'gone'": "table removals",
    "ALTER TYPE queue_piece ADD ATTRIBUTE more int": "type queue_piece",
}
OF_MYSQL = {
    "CREATE FUNCTION one() RETURNS INT DETERMINISTIC RETURN 1": "routine one",
    "CREATE PROCEDURE two(a INT) BEGIN END": "parameter PROCEDURE two a",
    "ALTER TABLE removals CONVERT TO CHARACTER SET latin1": "table removals, )",
    "CREATE VIEW gone AS SELECT name FROM removals": "view gone",
}


@pytest.fixture
def install(db: ContractDatabase, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Makes another schema without functions, which do not come by steps; returns its name."""
    monkeypatch.setattr(catalog, "functions", lambda dialect: catalog.Functions((), "f" * 64))
    made: list[str] = []

    def make() -> str:
        made.append(f"compared_{os.getpid()}_{len(made)}")
        migrate.migrate(db.url, made[-1])
        return made[-1]

    yield make
    word, end = ("SCHEMA", "CASCADE") if db.engine == "postgres" else ("DATABASE", "")
    for each in made:
        db.run(f"DROP {word} {each} {end}")


def one_by_one(dialect: str, applied: object) -> list[catalog.Step]:
    """What an installation of the first version gets until it is where this one is."""
    return [catalog.Step(each.text, (each,)) for each in catalog.migrations(dialect)]


def facts(db: ContractDatabase, schema: str) -> dict[str, str]:
    with closing(database.connect(db.url)) as connection:
        return read(connection, schema, rows=True)


@proves("a program works on its own tables")
@pytest.mark.long_on("mysql")
def test_migrations_and_tables_lead_to_one_schema(
    db: ContractDatabase, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trivial while there is one migration, so one is made: the tables have to follow it."""
    dialect = "postgres" if db.engine == "postgres" else "mysql"
    known, tables = catalog.migrations(dialect), catalog.tables(dialect)
    now = facts(db, install())
    if len(known) > 1:
        with monkeypatch.context() as patch:
            patch.setattr(catalog, "steps", one_by_one)
            assert difference(facts(db, install()), now) == []
    made = catalog.Migration(len(known) + 1, "more", MORE, "f" * 64, 0)
    monkeypatch.setattr(catalog, "migrations", lambda dialect: (*known, made))
    with monkeypatch.context() as patch:
        patch.setattr(catalog, "steps", one_by_one)
        led = facts(db, install())
    (forgotten,) = difference(led, now)
    assert forgotten.startswith("- table removals, column extra: ")
    head, name, rest = tables.partition(
        "TABLE " + "IF NOT EXISTS " * (dialect == "mysql") + "removals"
    )
    body, end, others = rest.partition("\n)")
    followed = f"{head}{name}{body},\n    extra INT{end}{others}"
    monkeypatch.setattr(catalog, "tables", lambda dialect: followed)
    new = install()
    assert difference(led, facts(db, new)) == []
    assert {line.state for line in migrate.status(db.url, new)} == {"applied"}


@pytest.mark.long_on("mysql", "mariadb")
def test_every_kind_of_difference_is_seen(
    db: ContractDatabase, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    new = install()
    is_postgres = db.engine == "postgres"
    # A session of its own: what it is about is this schema.
    own = db.connect()
    database.execute(own, f"SET search_path = {new}" if is_postgres else f"USE {new}")
    before = facts(db, new)
    for statement, what in (CHANGES | (OF_POSTGRES if is_postgres else OF_MYSQL)).items():
        database.execute(own, statement)
        after = facts(db, new)
        lines = difference(before, after)
        assert any(what in line.partition(": ")[0] for line in lines), (statement, lines)
        before = after
    assert command.main(["compare", db.url, db.url, "--schema", new]) == 0
    assert capsys.readouterr().out == "no difference\n"
    assert command.main(["compare", db.url, db.url, "--schema", new, "penstock"]) == 1
    assert "- table additions" in capsys.readouterr().out
