"""The version after this one: it has one more column, and another text of some functions."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

import pytest

from penstock.database import catalog, migrate
from tests.contract.databases import ContractDatabase

#: A column of a table that all programs read.
COLUMN = "-- name: more\n-- For a rehearsal.\nALTER TABLE topics ADD COLUMN rehearsed INT;\n"
_BEGIN = re.compile(r"^((?:\w+: )?BEGIN\n)", re.MULTILINE)
APPLIED = ("rehearsal", "functions")


def become_next_version(
    monkeypatch: pytest.MonkeyPatch, changed: Iterable[str] | None = None
) -> None:
    """What this process migrates to.  ``changed`` are its functions with another text, or all."""
    migrations, functions = catalog.migrations, catalog.functions
    wanted = None if changed is None else set(changed)

    def more(dialect: str) -> tuple[catalog.Migration, ...]:
        known = migrations(dialect)
        return (*known, catalog.Migration(len(known) + 1, "rehearsal", COLUMN, "f" * 64, 0))

    def with_others(text: str) -> str:
        for name, body in catalog.blocks(text):
            if wanted is None or name in wanted:
                text = text.replace(
                    body, _BEGIN.sub(r"\1    -- Of the next version.\n", body, count=1)
                )
        return text

    def others(dialect: str) -> catalog.Functions:
        known = functions(dialect)
        files = tuple((name, with_others(text)) for name, text in known.files)
        assert files != known.files
        return dataclasses.replace(known, files=files, checksum="f" * 64)

    monkeypatch.setattr(catalog, "migrations", more)
    monkeypatch.setattr(catalog, "functions", others)


def become_this_version(db: ContractDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the schema back, where tests share it."""
    monkeypatch.undo()
    if db.engine == "postgres":
        return
    columns = db.run(
        "SELECT * FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'penstock'"
        " AND TABLE_NAME = 'topics' AND COLUMN_NAME = 'rehearsed'"
    )
    if columns:
        db.run("ALTER TABLE penstock.topics DROP COLUMN rehearsed")
    db.run("DELETE FROM penstock.schema_migrations WHERE name IN ('rehearsal', 'functions')")
    migrate.migrate(db.url)
