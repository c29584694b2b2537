"""Transactions of a log in memory: D1, and how two of them affect each other."""

from __future__ import annotations

import threading

import pytest

import penstock
from penstock.errors import DatabaseUnavailable, UsageError
from penstock.subscriptions import stream
from penstock.testing import (
    MemoryConnection,
    MemoryDatabase,
    WaitsForever,
    assert_nothing_published,
    published,
)
from penstock.testing.store import MemoryTransaction
from tests.kit.log import wait_until
from tests.kit.proof import proves
from tests.testing.conftest import ORDERS


def _undone(connection: MemoryConnection) -> list[bytes]:
    """What is published once an inner block and a whole one have raised."""
    with connection.transaction():
        penstock.publish(connection, ORDERS, b"kept", key="k")
        with pytest.raises(LookupError), connection.transaction():
            penstock.publish(connection, ORDERS, b"undone", key="k")
            raise LookupError
    with pytest.raises(LookupError), connection.transaction():
        penstock.publish(connection, ORDERS, b"rolled back", key="k")
        raise LookupError
    return [event.payload for event in published(connection, ORDERS)]


@proves("the test kit")
def test_an_event_exists_when_its_transaction_has_committed(
    db: MemoryDatabase, connection: MemoryConnection
) -> None:
    """Guard: a transaction keeps its changes to itself."""
    other = db.connect(autocommit=False)
    penstock.publish(other, ORDERS, b"1")
    assert_nothing_published(connection)
    other.commit()
    assert [event.payload for event in published(connection, ORDERS)] == [b"1"]


def test_what_is_rolled_back_is_gone(connection: MemoryConnection) -> None:
    """Guard: back_to, and the end of a transaction drops its changes."""
    assert _undone(connection) == [b"kept"]


@proves("the test kit", guard="the way back")
def test_without_the_way_back_a_savepoint_keeps_all(
    connection: MemoryConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: nothing is undone."""
    monkeypatch.setattr(MemoryTransaction, "back_to", lambda transaction, mark: None)
    assert _undone(connection) == [b"kept", b"undone"]


def test_a_statement_that_fails_leaves_nothing_of_itself(connection: MemoryConnection) -> None:
    with connection.transaction():
        with pytest.raises(penstock.InvalidArgument):
            stream.subscribe(connection, "new", [ORDERS], "middle")
        penstock.publish(connection, ORDERS, b"1")
    assert len(published(connection, ORDERS)) == 1
    with pytest.raises(penstock.SubscriptionNotFound):
        stream.position(connection, "new", ORDERS)


def test_a_wait_that_cannot_end_is_told_at_once(
    db: MemoryDatabase, connection: MemoryConnection
) -> None:
    """In the thread that would have to commit."""
    with db.connect(autocommit=False) as first:
        penstock.publish(first, ORDERS, b"1", dedup_key="a")
        with pytest.raises(WaitsForever, match="same thread"):
            penstock.publish(connection, ORDERS, b"2", dedup_key="a")
        first.rollback()
    penstock.publish(connection, ORDERS, b"3", dedup_key="a")
    assert [event.payload for event in published(connection, ORDERS)] == [b"3"]


def test_a_deadlock_is_told_to_one_of_the_two(db: MemoryDatabase, connection: object) -> None:
    """And the other one goes on."""
    first, second = db.connect(autocommit=False), db.connect(autocommit=False)
    penstock.publish(first, ORDERS, b"1", dedup_key="a")
    done: list[object] = []

    def crosswise() -> None:
        penstock.publish(second, ORDERS, b"2", dedup_key="b")
        done.append(penstock.publish(second, ORDERS, b"3", dedup_key="a"))
        second.commit()

    thread = threading.Thread(target=crosswise)
    thread.start()
    wait_until(lambda: second.is_waiting, "the second waits")
    with pytest.raises(WaitsForever, match="deadlock"):
        penstock.publish(first, ORDERS, b"4", dedup_key="b")
    first.rollback()
    thread.join(30)
    assert len(done) == 1


def test_a_block_is_ended_by_its_end(connection: MemoryConnection) -> None:
    with connection.transaction():
        for call in (connection.commit, connection.rollback):
            with pytest.raises(UsageError):
                call()
    connection.close()
    with pytest.raises(DatabaseUnavailable):
        penstock.publish(connection, ORDERS, b"x")


def test_a_whole_function_in_its_transaction(
    db: MemoryDatabase, connection: MemoryConnection
) -> None:
    """within_transaction opens, commits and closes a connection of its own."""
    penstock.within_transaction(db.connect, lambda _: [penstock.Message(ORDERS, b"1")])
    penstock.within_transaction(
        lambda: db.connect(autocommit=False), lambda _: [penstock.Message(ORDERS, b"2")]
    )
    assert sorted(event.payload for event in published(connection, ORDERS)) == [b"1", b"2"]
