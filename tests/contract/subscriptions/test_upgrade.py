"""Sinks knew topics by their address: what an installation of then has sent goes on as it was."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ops.sinks.jsonl import JsonlSink
from penstock.database import catalog, migrate
from penstock.subscriptions import stream
from penstock.topics import names
from tests.contract.databases import ContractDatabase
from tests.contract.topics.test_identity import files, killed, lines, relayed
from tests.kit.log import known_as
from tests.kit.stream import STREAM, SUBSCRIPTION, filled, more

IDENTITY = "identity"
#: What takes the migration back, where it is the newest.
BEFORE = """
    ALTER TABLE penstock.topics DROP COLUMN known_as;
    ALTER TABLE penstock.blocks DROP COLUMN topic;
    ALTER TABLE penstock.stops {key}, DROP COLUMN subscription_id, ADD PRIMARY KEY (partition_id);
    DELETE FROM penstock.schema_migrations WHERE name IN ('identity', '{functions}')
"""


@pytest.fixture
def old(db: ContractDatabase, tmp_path: Path) -> Iterator[ContractDatabase]:
    """Before the migration: a relay has sent ten events under the topic's address and is gone."""
    own = db.connect()
    filled(own, events=15)
    db.run("UPDATE penstock.topics SET known_as = address")
    killed(db, tmp_path)
    on_postgres = db.engine == "postgres"
    key = "DROP CONSTRAINT stops_pkey" if on_postgres else "DROP PRIMARY KEY"
    # Only there the migration drops functions, for their arguments.
    functions = "functions" if on_postgres else ""
    for statement in BEFORE.format(key=key, functions=functions).split(";"):
        db.run(statement)
    own.close()
    yield db
    migrate.migrate(db.url)


def test_an_open_block_is_finished_as_it_was(old: ContractDatabase, tmp_path: Path) -> None:
    """Guards: topics keep the address of then as their name, and open blocks theirs."""
    assert IDENTITY in migrate.migrate(old.url).applied
    own = old.connect()
    assert known_as(own, STREAM) == STREAM
    renamed = names.rename_topic(own, STREAM, "renamed")
    assert relayed(old, tmp_path) == (15, "")
    names.create_topic(own, STREAM)
    stream.subscribe(own, SUBSCRIPTION, [STREAM])
    more(own, events=3)
    assert relayed(old, tmp_path) == (3, "")
    with closing(JsonlSink(tmp_path)) as sink:
        assert files(tmp_path) == {
            sink.path(STREAM, 0).name: lines(STREAM, 1, 10) + lines(renamed, 11, 15),
            sink.path(known_as(own, STREAM), 0).name: lines(STREAM, 1, 3),
        }


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("SET known_as = address", "SET known_as = 'new'"),
        ("= t.address", "= 'a/longer-address-than-the-one-that-it-was-sent-under'"),
    ],
)
def test_without_the_old_names_it_is_sent_otherwise(
    old: ContractDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, instead: str
) -> None:
    """Mutants: the topic gets a new name; the block gets another address."""
    known = catalog.migrations("postgres" if old.engine == "postgres" else "mysql")
    (own,) = [each for each in known if each.name == IDENTITY]
    assert own.text.count(text) == 1
    mutant = dataclasses.replace(own, text=own.text.replace(text, instead))
    monkeypatch.setattr(
        catalog,
        "migrations",
        lambda dialect: tuple(mutant if each is own else each for each in known),
    )
    migrate.migrate(old.url)
    monkeypatch.undo()
    relayed(old, tmp_path, 0.3)
    with closing(JsonlSink(tmp_path)) as sink:
        assert files(tmp_path) != {sink.path(STREAM, 0).name: lines(STREAM, 1, 15)}
