"""What holds back cleaning: sessions, prepared transactions, replication slots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psycopg
import pytest

from penstock.doctor import Limits, Severity, doctor
from penstock.subscriptions import stream
from resources.embedded import EmbeddedPostgres
from tests.doctor.kit import NOW, TOPIC, Connection, Run, begin, only, owned_by
from tests.guards import definition, without_guard
from tests.kit.log import drain, put
from tests.kit.proof import proves

pytestmark = pytest.mark.timeout(240)


def test_the_oldest_holder_of_a_snapshot(url: str, run: Run) -> None:
    """Two hold one; the older is named with who it is and what it does, without its data."""
    with ExitStack() as stack:
        oldest = begin(
            stack, url, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SELECT 'secret'",
            application_name="report",
        )  # fmt: skip
        begin(stack, url, "SELECT pg_current_xact_id()")
        assert doctor(url) == []
        found = only(doctor(url, NOW))
        assert found.check == "snapshot"
        assert f"session {oldest.info.backend_pid} of postgres" in found.what
        assert "(application 'report'; idle in transaction, SELECT)" in found.what
        assert "(1 more like it)" in found.what
        assert "secret" not in found.what
        run(found.command, url)
        with pytest.raises(psycopg.OperationalError):
            oldest.execute("SELECT")
        assert "SELECT)" in only(doctor(url, NOW)).what


def test_a_holder_in_another_database_matters_when_it_has_written(
    server: EmbeddedPostgres, url: str, run: Run
) -> None:
    elsewhere = server.url("billing")
    with ExitStack() as stack:
        begin(stack, elsewhere, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SELECT")
        assert doctor(url, NOW) == []
        begin(stack, elsewhere, "SELECT pg_current_xact_id()")
        found = only(doctor(url, NOW))
        assert (found.check, " in billing " in found.what) == ("snapshot", True)
        run(found.command, url)
        assert doctor(url, NOW) == []


@proves("F11", how="the doctor names it")
@pytest.mark.parametrize("database", ["shop", "billing"])
def test_a_prepared_transaction(
    server: EmbeddedPostgres, url: str, run: Run, database: str
) -> None:
    with psycopg.connect(server.url(database)) as connection:
        connection.execute("SELECT pg_current_xact_id()")
        connection.execute("PREPARE TRANSACTION 'it''s $HOME'")
        connection.commit()
    assert doctor(url) == []
    found = only(doctor(url, NOW))
    assert found.check == "prepared_transaction"
    assert f"of postgres in {database} was prepared" in found.what
    run(found.command, url)


@proves("F11", how="one that holds a lease")
@pytest.mark.parametrize("in_savepoint", [False, True])
def test_a_prepared_transaction_that_holds_a_lease(
    url: str, admin: Connection, run: Run, in_savepoint: bool
) -> None:
    """Its consumer is gone and the partition never moves: named soon, as an error."""
    put(admin, "1", name=TOPIC)
    drain(admin)
    stream.subscribe(admin, "billing", [TOPIC])
    member = stream.join(admin, "billing", "gone")
    leases = stream.check_in(admin, member)
    with psycopg.connect(url) as connection:
        connection.execute("SAVEPOINT inner_one" if in_savepoint else "SELECT")
        stream.commit(connection, member, [(leases[0], leases[0].position + 1)])
        connection.execute("PREPARE TRANSACTION 'orders-7'")
        connection.commit()
    try:
        admin.execute("UPDATE penstock.consumers SET deadline = now() - interval '1 hour'")
        other = stream.join(admin, "billing", "next")
        assert stream.check_in(admin, other) == []
        assert doctor(url) == []
        found = only(doctor(url, Limits(waiting_seconds=0)))
        assert (found.check, found.severity) == ("prepared_transaction", Severity.ERROR)
        part = "some partition" if in_savepoint else f'partition 0 of {TOPIC} for "billing"'
        assert f"It holds the lease of {part}: nobody else can read there" in found.what
        run(found.command, url)
        assert len(stream.check_in(admin, other)) == 1
    finally:
        if admin.execute("SELECT FROM pg_prepared_xacts").fetchall():
            admin.execute("ROLLBACK PREPARED 'orders-7'")
        stream.unsubscribe(admin, "billing")


@proves("F11", guard="the look at leases")
def test_without_the_look_at_leases_it_is_a_prepared_transaction_like_any_other(
    url: str, admin: Connection
) -> None:
    """Mutant of snapshot_holders: named after ten minutes, and without a word of the lease."""
    put(admin, "1", name=TOPIC)
    drain(admin)
    stream.subscribe(admin, "billing", [TOPIC])
    member = stream.join(admin, "billing", "gone")
    leases = stream.check_in(admin, member)
    with psycopg.connect(url) as connection:
        stream.commit(connection, member, [(leases[0], leases[0].position + 1)])
        connection.execute("PREPARE TRANSACTION 'orders-8'")
        connection.commit()
    try:
        with mutated(admin, "snapshot_holders", "leases_prepared(p.transaction)", "NULL"):
            assert doctor(url, Limits(waiting_seconds=0)) == []
        assert "orders-8" in only(doctor(url, Limits(waiting_seconds=0))).what
    finally:
        admin.execute("ROLLBACK PREPARED 'orders-8'")
        stream.unsubscribe(admin, "billing")


@pytest.mark.parametrize(
    "create",
    [
        "SELECT pg_create_physical_replication_slot('standby', true)",
        "SELECT pg_create_logical_replication_slot('standby', 'pgoutput')",
    ],
)
def test_a_replication_slot_without_a_reader(
    url: str, admin: Connection, run: Run, create: str
) -> None:
    admin.execute(create.encode())
    found = only(doctor(url, NOW))
    assert found.check == "replication_slot"
    assert "'standby' has had no reader" in found.what
    assert "of WAL until the disk is full" in found.what
    run(found.command, url)


def test_sessions_that_nobody_may_look_at_are_counted(
    server: EmbeddedPostgres, url: str, run: Run
) -> None:
    with owned_by(server, "modest") as own, ExitStack() as stack:
        assert doctor(own) == []
        begin(stack, url, "SELECT pg_current_xact_id()")
        found = only(doctor(own, NOW))
        assert (found.check, found.what.split()[0]) == ("hidden_sessions", "1")
        run(found.command.replace("-U modest", "-U postgres"), url)
        assert only(doctor(own, NOW)).check == "snapshot"


def test_the_guards_are_what_finds(url: str, admin: Connection) -> None:
    """Without its condition each of the questions misses what it is there for."""
    with ExitStack() as stack:
        begin(stack, url, "SELECT pg_current_xact_id()")
        with mutated(admin, "snapshot_holders", "a.backend_xid IS NOT NULL OR", ""):
            assert doctor(url, NOW) == []
        assert only(doctor(url, NOW)).check == "snapshot"


@contextmanager
def mutated(admin: Connection, name: str, old: str, new: str) -> Iterator[None]:
    before = definition(admin, name)
    without_guard(admin, name, old, new)
    try:
        yield
    finally:
        admin.execute(before.encode())
