"""Uninstall says what it would drop, refuses what is somebody else's, and leaves nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import penstock
from penstock import database
from penstock.database import migrate
from penstock.errors import InUse, InvalidArgument
from penstock.topics import uninstalling
from penstock.topics.uninstalling import installed_parts, uninstall
from tests import command
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import dialect
from tests.kit.log import topic
from tests.kit.proof import proves
from tests.kit.stream import SUBSCRIPTION, filled

#: An installation beside that of the test.
SECOND = "penstock_second"


def _schemas(db: ContractDatabase) -> list[str]:
    rows = db.run(
        "SELECT schema_name FROM information_schema.schemata"
        " WHERE schema_name IN ('penstock', 'penstock_second')"
    )
    return [row[0] for row in rows]


def test_it_says_what_it_would_drop_and_drops_nothing(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    own = db.connect()
    filled(own)
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", db.url)
    said = command.run(capsys, "uninstall", "--output=json")
    (schema, *rest) = said.rows
    assert (schema["kind"], schema["name"], schema["goes"]) == ("schema", "penstock", True)
    assert "1 topics, 10 events, 1 subscriptions, of which 1 have not read all" in schema["holds"]
    assert all(each["kind"] in {"role", "slot"} for each in rest)
    assert "nothing was dropped" in said.err
    wrong = command.run(capsys, "uninstall", "--yes", "other")
    assert "the schema is penstock, not other" in wrong.err
    assert len(database.call(own, "subscription_lag", subscription=SUBSCRIPTION)) == 1


def test_what_is_somebody_elses_is_not_dropped(db: ContractDatabase) -> None:
    """A table in the schema, and a view outside of it. Guard: _require_nothing_else."""
    own = db.connect()
    for table in ("mine", "events_mine"):  # the second looks like a slice
        db.run(f"CREATE TABLE penstock.{table} (id INT)")
        try:
            with pytest.raises(InvalidArgument, match=rf"not Penstock's: {table}\."):
                uninstall(own)
        finally:
            db.run(f"DROP TABLE penstock.{table}")
    home = "public" if dialect(db) == "postgres" else "penstock_views"
    if home != "public":
        db.run("CREATE DATABASE penstock_views")
    db.run(f"CREATE VIEW {home}.theirs AS SELECT name FROM penstock.subscriptions")
    try:
        with pytest.raises(InvalidArgument, match=r"uses it: .*theirs"):
            uninstall(own)
    finally:
        db.run(f"DROP VIEW {home}.theirs")
        if home != "public":
            db.run("DROP DATABASE penstock_views")
    assert _schemas(db) == ["penstock"]


def test_afterwards_nothing_is_left(db: ContractDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second installation goes, and the first one stays."""
    monkeypatch.setenv("PENSTOCK_SCHEMA", SECOND)
    migrate.migrate(db.url, schema=SECOND)
    with database.connect(db.url) as own:
        before = installed_parts(own)
        done = uninstall(own)
    assert [(each.kind, each.name) for each in done] == [(each.kind, each.name) for each in before]
    assert _schemas(db) == ["penstock"]


@pytest.fixture
def published(db: ContractDatabase, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A connection whose transaction has published into the second installation."""
    monkeypatch.setenv("PENSTOCK_SCHEMA", SECOND)
    migrate.migrate(db.url, schema=SECOND)
    word = "SCHEMA" if dialect(db) == "postgres" else "DATABASE"
    with database.connect(db.url) as own, database.connect(db.url, autocommit=False) as publisher:
        try:
            topic(own, 1, "shop/orders")
            penstock.publish(publisher, "shop/orders", b"1")
            yield publisher
        finally:
            publisher.rollback()
            gone = f"DROP {word} IF EXISTS {SECOND}{' CASCADE' if word == 'SCHEMA' else ''}"
            database.execute(own, gone)


@proves("uninstall holds up nobody")
def test_who_is_at_work_is_not_held_up(db: ContractDatabase, published: Any) -> None:
    """Nothing is dropped, and the transaction goes on; after its end all goes."""
    with database.connect(db.url) as own:
        with pytest.raises(InUse, match="nothing was dropped"):
            uninstall(own, wait_seconds=0)
        penstock.publish(published, "shop/orders", b"2")
        published.commit()
        penstock.sequence(own)
        assert len(penstock.fetch(own, "shop/orders", 0, 1)) == 2
        uninstall(own)
    assert _schemas(db) == ["penstock"]


def test_what_is_made_between_two_tries_is_not_dropped(
    db: ContractDatabase, published: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: _require_nothing_else in _is_dropped."""

    def meanwhile(_: float) -> None:
        published.rollback()
        db.run(f"CREATE TABLE {SECOND}.mine (id INT)")

    paused = SimpleNamespace(monotonic=time.monotonic, sleep=meanwhile)
    monkeypatch.setattr(uninstalling, "time", paused)
    with (
        database.connect(db.url) as own,
        pytest.raises(InvalidArgument, match=r"not Penstock's: mine\."),
    ):
        uninstall(own, wait_seconds=60)
    assert len(_schemas(db)) == 2


@proves("uninstall holds up nobody", guard="lock_wait_timeout of MariaDB")
@pytest.mark.long_on("postgres")  # which does not have it
@pytest.mark.parametrize("db", ["mariadb"], indirect=True)
def test_without_that_it_waits_for_the_lock(
    db: ContractDatabase, published: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: it waits as on MySQL, until a time limit ends it, and all others wait behind it."""
    monkeypatch.setattr(uninstalling, "_LOCK_WAIT", "SET SESSION lock_wait_timeout = 60")
    with database.connect(db.url) as own:
        database.execute(own, "SET SESSION max_statement_time = 0.2")
        with pytest.raises(Exception, match="max_statement_time"):
            uninstall(own, wait_seconds=0)
