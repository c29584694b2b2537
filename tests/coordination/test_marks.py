"""Positions of another store, recorded in the database for retention: forward only, and fenced."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from penstock import database
from penstock.errors import BeyondHighWatermark, StaleLease
from penstock.leases.coordination import LeaseRegistry, marks, memory, open_registry
from penstock.leases.coordination.marks import copy_positions, keep_copying
from penstock.subscriptions import stream
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import Guard, without
from tests.kit.proof import proves
from tests.kit.stream import STREAM, SUBSCRIPTION, filled, member_with_lease, stored
from tools.servers import StoreServer

EVENTS = 10
NO_EPOCH: Guard = {
    "postgres": ("mark_low_water", "OR given.lease_epoch < given.known_epoch", ""),
    "mysql": ("mark_one", "OR given_epoch < known_epoch", ""),
}


def registry_at(db: ContractDatabase, position: int) -> LeaseRegistry:
    """A registry in memory whose one consumer has come so far."""
    registry = memory.MemoryRegistry()
    ((partition_id,),) = db.run("SELECT partition_id FROM penstock.leases")
    registry.initialize({partition_id: 0})
    registry.register("a")
    assert registry.claim(partition_id, "a", 0)
    registry.update_position(partition_id, "a", position, 1)
    return registry


@proves("S20 with positions elsewhere")
def test_marks_follow(db: ContractDatabase) -> None:
    connection = db.connect()
    filled(connection, events=EVENTS)
    registry = registry_at(db, 4)
    assert copy_positions(connection, SUBSCRIPTION, registry) == 1
    assert stored(connection) == 4
    assert copy_positions(connection, SUBSCRIPTION, registry) == 0
    (held,) = registry.owned_by("a")
    registry.update_position(held.partition_id, "a", EVENTS, 1)
    assert copy_positions(connection, SUBSCRIPTION, registry) == 1
    assert stored(connection) == EVENTS


@pytest.mark.parametrize("tries", [3, 1])
def test_a_claim_while_positions_are_copied(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    """A new holder has told the database.  Guard: TRIES; with one, nothing is copied."""
    monkeypatch.setattr(marks, "TRIES", tries)
    connection = db.connect()
    filled(connection, events=EVENTS)
    registry = registry_at(db, 4)
    before = [registry.snapshot()]
    (held,) = registry.owned_by("a")
    registry.release(held.partition_id, "a", held.lease_epoch)
    registry.register("b")
    claimed = registry.claim(held.partition_id, "b", held.lease_epoch)
    assert claimed is not None
    marks.tell(connection, SUBSCRIPTION, [replace(claimed, position=0)])
    real = registry.snapshot
    monkeypatch.setattr(registry, "snapshot", lambda: before.pop() if before else real())
    if tries == 1:
        with pytest.raises(StaleLease):
            copy_positions(connection, SUBSCRIPTION, registry)
    else:
        assert copy_positions(connection, SUBSCRIPTION, registry) == 1
    assert stored(connection) == (0 if tries == 1 else 4)


def test_a_mark_beyond_the_log(db: ContractDatabase) -> None:
    connection = db.connect()
    filled(connection, events=EVENTS)
    with pytest.raises(BeyondHighWatermark):
        copy_positions(connection, SUBSCRIPTION, registry_at(db, EVENTS + 1))
    assert stored(connection) == 0


def test_leases_are_in_one_place_only(db: ContractDatabase) -> None:
    connection = db.connect()
    filled(connection, events=EVENTS)
    member_with_lease(connection, "somebody")
    with pytest.raises(StaleLease):
        copy_positions(connection, SUBSCRIPTION, registry_at(db, 4))
    assert stored(connection) == 0


@proves("S20 with positions elsewhere", guard="the lease_epoch")
@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_mark_from_before_a_seek(db: ContractDatabase, is_guarded: bool) -> None:
    """Somebody rewound the subscription in the database: what another store has done is void."""
    connection = db.connect()
    filled(connection, events=EVENTS)
    registry = registry_at(db, 4)
    for _ in range(2):
        stream.seek(connection, SUBSCRIPTION, STREAM, 0, "earliest")
    if is_guarded:
        with pytest.raises(StaleLease):
            copy_positions(connection, SUBSCRIPTION, registry)
        assert stored(connection) == 0
    else:
        without(db, NO_EPOCH)
        copy_positions(connection, SUBSCRIPTION, registry)
        assert stored(connection) == 4


@proves("S20 with positions elsewhere")
def test_nothing_is_freed_while_the_store_is_away(
    database_url: str, own_etcd: StoreServer, caplog: pytest.LogCaptureFixture
) -> None:
    with database.connect(database_url) as connection:
        filled(connection, events=EVENTS)
        ids = [row[0] for row in connection.execute("SELECT partition_id FROM penstock.leases")]
        registry = open_registry(own_etcd.url(), SUBSCRIPTION)
        registry.initialize(dict.fromkeys(ids, 0))
        registry.register("a")
        assert registry.claim(ids[0], "a", 0)
        registry.update_position(ids[0], "a", 4, 1)
        stop = threading.Event()
        stop.set()
        keep_copying(database_url, SUBSCRIPTION, registry, stop)
        assert stored(connection) == 4
        registry.update_position(ids[0], "a", 9, 1)
        own_etcd.kill()
        keep_copying(database_url, SUBSCRIPTION, registry, stop)
        assert stored(connection) == 4
        assert "were not copied" in caplog.text
        own_etcd.start()
        keep_copying(database_url, SUBSCRIPTION, open_registry(own_etcd.url(), SUBSCRIPTION), stop)
        assert stored(connection) == 9
