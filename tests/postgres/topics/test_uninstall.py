"""Uninstall takes nothing of yours: what would go with the schema refuses it, whatever it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import penstock
from penstock import database
from penstock.errors import InUse, InvalidArgument
from penstock.topics import uninstalling
from penstock.topics.uninstalling import uninstall
from tests.kit.log import Connection, topic, value
from tests.kit.names import meets
from tests.kit.proof import proves

#: What is made, and the name that has to be in the error.  Some names look like the schema's own.
YOURS = {
    "view": (
        "CREATE SCHEMA app_penstock; CREATE VIEW app_penstock.v AS SELECT 1 FROM penstock.topics",
        "app_penstock.v",
    ),
    "default": (
        "CREATE TABLE public.penstock (id text DEFAULT penstock.current_history()::text)",
        "public.penstock",
    ),
    "foreign key": (
        "CREATE TABLE t (id bigint REFERENCES penstock.topics)", "public.t",
    ),
    "policy": (
        ("CREATE TABLE t (id bigint);"
        " CREATE POLICY mine ON t USING (id IN (SELECT s.id FROM penstock.topics AS s))"),
        "mine on public.t",
    ),
    "expression index": (
        "CREATE TABLE t (n bigint); CREATE INDEX by_ids ON t (penstock.ids_wanted('a', n, 1))",
        "public.by_ids",
    ),
    "function": (
        ("CREATE FUNCTION counted() RETURNS bigint LANGUAGE sql"
        " BEGIN ATOMIC SELECT count(*) FROM penstock.topics; END"),
        "public.counted()",
    ),
    "trigger": (
        ("CREATE TABLE t (id bigint); CREATE TRIGGER penstock BEFORE INSERT ON t"
        " EXECUTE FUNCTION penstock.refuse_closed()"),
        "penstock on public.t",
    ),
    "column": ("CREATE TABLE t (mine penstock.topics)", "public.t.mine"),
    "partition": (
        ("CREATE TABLE mine (LIKE penstock.events INCLUDING ALL); ALTER TABLE penstock.events"
        " ATTACH PARTITION mine FOR VALUES FROM (1000000000000000) TO (1000000000000001)"),
        "public.mine",
    ),
    "publication": ("CREATE PUBLICATION mine FOR TABLE penstock.topics", "publication mine"),
}  # fmt: skip


@pytest.mark.parametrize("kind", YOURS)
def test_what_would_go_with_the_schema_refuses(connection: Connection, kind: str) -> None:
    """Guard: the owner is told by its id (places in installed_users), for all kinds."""
    made, name = YOURS[kind]
    connection.execute(made.encode())
    with pytest.raises(InvalidArgument, match=r"uses it: .*") as refused:
        uninstall(connection)
    assert name in str(refused.value)
    found = connection.execute("SELECT to_regclass('penstock.topics') IS NOT NULL").fetchone()
    assert found == (True,)


def test_a_slice_that_clean_has_detached_is_not_yours(connection: Connection) -> None:
    """Guard: installed_slices. It is no partition any more, and goes with the schema."""
    (slice_name,) = connection.execute(
        "SELECT slice FROM penstock.slices WHERE parent = 'events' LIMIT 1"
    ).fetchall()[0]
    connection.execute(
        f"ALTER TABLE penstock.events DETACH PARTITION penstock.{slice_name}".encode()
    )
    uninstall(connection)
    assert connection.execute("SELECT to_regnamespace('penstock')").fetchone() == (None,)


@proves("uninstall holds up nobody")
def test_who_makes_something_in_the_schema_is_not_held_up(
    connection: Connection, database_url: str
) -> None:
    """Guard: lock_timeout. Without it the drop waits, and takes what was made."""
    connection.execute("SET statement_timeout = '5s'")
    with psycopg.connect(database_url) as other:
        other.execute("CREATE TABLE penstock.mine (id int)")
        with pytest.raises(InUse):
            uninstall(connection, wait_seconds=0)
    with pytest.raises(InvalidArgument, match=r"not Penstock's: mine\."):
        uninstall(connection)


@proves("uninstall holds up nobody", guard="`NOWAIT`")
def test_without_nowait_it_stands_in_everybodys_way(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: it waits for the lock until a time limit ends it, and all others wait behind it."""
    monkeypatch.setattr(uninstalling, "_LOCK", uninstalling._LOCK.removesuffix(" NOWAIT"))
    topic(connection, 1, "shop/orders")
    with psycopg.connect(database_url) as publisher:
        penstock.publish(publisher, "shop/orders", b"1")
        connection.execute("SET statement_timeout = '200ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            uninstall(connection, wait_seconds=0)


@pytest.fixture
def undone(connection: Connection, database_url: str) -> Iterator[Connection]:
    """An open transaction that has published and undone it: it still holds the sequences."""
    topic(connection, 1, "shop/orders")
    with psycopg.connect(database_url) as publisher:
        publisher.execute("SAVEPOINT before")
        penstock.publish(publisher, "shop/orders", b"1")
        publisher.execute("ROLLBACK TO before")
        yield publisher


@proves("uninstall holds up nobody", how="its savepoint was undone")
def test_who_holds_a_sequence_only_is_not_held_up(
    connection: Connection, undone: Connection
) -> None:
    """LOCK takes all tables, and DROP does not wait for the sequence with them in hand."""
    connection.execute("SET statement_timeout = '20s'")
    with pytest.raises(InUse):
        uninstall(connection, wait_seconds=0)
    penstock.publish(undone, "shop/orders", b"2")
    undone.commit()
    uninstall(connection)


@proves("uninstall holds up nobody", guard="`lock_timeout`")
def test_without_lock_timeout_it_waits_for_a_sequence(
    connection: Connection, undone: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: everybody waits until a time limit ends DROP."""
    monkeypatch.setattr(uninstalling, "_SHORT_WAIT", "SELECT 1")
    connection.execute("SET statement_timeout = '500ms'")
    with pytest.raises(psycopg.errors.QueryCanceled):
        uninstall(connection, wait_seconds=0)


@proves("uninstall holds up nobody", how="it waits for a vacuum")
def test_autovacuum_has_time_to_give_way(connection: Connection, database_url: str) -> None:
    """It does so when somebody has waited for deadlock_timeout.  Publishers go on meanwhile."""
    topic(connection, 1, "shop/orders")
    with psycopg.connect(database_url) as vacuum:
        vacuum.execute("LOCK TABLE penstock.events IN SHARE UPDATE EXCLUSIVE MODE")

        def let_go() -> None:
            penstock.publish(connection, "shop/orders", b"1")
            vacuum.rollback()

        waited, done = meets(let_go, connection, database_url, uninstall)
    assert waited
    assert done[0].name == "penstock"
    assert value(connection, uninstalling._VACUUM_WAIT) == "2s"  # deadlock_timeout is 1 s


@pytest.mark.parametrize("gone", ["TABLE penstock.{}", "SCHEMA penstock CASCADE"])
def test_what_another_drops_meanwhile(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    """Clean drops a slice, or a second uninstall all, when names are read and locks not taken.

    Guards: NotMigrated, and that nothing is locked when nothing is there.
    """
    slices = [value(connection, "SELECT min(slice) FROM penstock.slices WHERE parent = 'events'")]
    send = database.execute

    def dropping(own: Any, sql: str, *binds: Any) -> Any:
        if sql.startswith("LOCK") and slices:
            with psycopg.connect(database_url) as other:
                other.execute(f"DROP {gone.format(slices.pop())}".encode())
        return send(own, sql, *binds)

    monkeypatch.setattr(database, "execute", dropping)
    uninstall(connection)
    assert not slices
    assert value(connection, "SELECT to_regnamespace('penstock')") is None
