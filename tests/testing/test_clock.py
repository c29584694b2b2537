"""In a log in memory, time passes only when a test says so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import penstock
from penstock import subscriptions
from penstock.errors import DatabaseUnavailable, InvalidArgument, StaleLease, UnknownConsumer
from penstock.subscriptions import policies, stream
from penstock.testing import MemoryConnection, MemoryDatabase, NotInMemory, VirtualClock, published
from tests.kit.proof import proves
from tests.testing.conftest import ORDERS


def _held(
    connection: MemoryConnection, name: str
) -> tuple[stream.Membership, list[penstock.Lease]]:
    member = stream.join(connection, "billing", name)
    return member, stream.check_in(connection, member)


@proves("the test kit")
def test_a_dead_consumer_is_replaced_after_its_lease(
    db: MemoryDatabase, connection: MemoryConnection
) -> None:
    """D8 without waiting. Guard: the deadline, by the clock of the log."""
    for number in range(4):
        penstock.publish(connection, ORDERS, b"%d" % number, partition=number % 2)
    db.run_until_idle()
    dead, lost = _held(connection, "a")
    db.clock.advance(9)
    assert _held(connection, "b")[1] == []
    db.clock.advance(2)
    (taken,) = {len(_held(connection, "c")[1])}
    assert taken == 1, "b lives, and has its share"
    with pytest.raises(StaleLease):
        stream.commit(connection, dead, [(lost[0], 1)])
    with pytest.raises(UnknownConsumer):
        stream.heartbeat(connection, dead)


def test_a_transaction_that_outlives_its_lease_is_ended(
    db: MemoryDatabase, connection: MemoryConnection
) -> None:
    """Guard: the limit that the fence sets."""
    penstock.publish(connection, ORDERS, b"1", partition=0)
    db.run_until_idle()
    member, leases = _held(connection, "a")
    slow = db.connect(autocommit=False)
    stream.commit(slow, member, [(leases[0], 1)])
    db.clock.advance(9.9)
    with pytest.raises(DatabaseUnavailable, match="outlived its lease"):
        slow.commit()
    assert slow.closed
    assert stream.position(connection, "billing", ORDERS) == {0: 0, 1: 0}


def test_a_delayed_event_comes_when_the_clock_says_so(
    db: MemoryDatabase, connection: MemoryConnection
) -> None:
    later = db.clock.now() + timedelta(days=2)
    penstock.publish(connection, ORDERS, b"later", not_before=later)
    assert published(connection, ORDERS) == []
    db.clock.advance(2 * 86_400)
    (event,) = published(connection, ORDERS)
    assert event.sequenced_at == later
    assert event.created_at == later - timedelta(days=2)


def test_a_dedup_key_lives_for_an_hour(db: MemoryDatabase, connection: MemoryConnection) -> None:
    first = penstock.publish(connection, ORDERS, b"1", dedup_key="a")
    db.clock.advance(3_599)
    assert penstock.publish(connection, ORDERS, b"1", dedup_key="a") == first
    db.clock.advance(1)
    assert penstock.publish(connection, ORDERS, b"1", dedup_key="a") != first


def test_a_policy_of_a_subscription(connection: MemoryConnection) -> None:
    """As a whole, with versions; what is above subscriptions is not there."""
    before = policies.subscription_policy(connection, "billing")
    assert before.max_attempts == 10
    policies.set_policy(
        connection, "retry", {"max_attempts": 3}, scope="subscription", name="billing"
    )
    policies.set_policy(connection, "retry", {"jitter": 0}, scope="subscription", name="billing")
    after = policies.subscription_policy(connection, "billing")
    assert (after.max_attempts, after.jitter, after.version) == (10, 0, before.version + 2)
    stream.configure_subscription(
        connection, "billing", heartbeat_seconds=1, lease_seconds=4, release_seconds=2
    )
    member = stream.join(connection, "billing", "a")
    assert (member.heartbeat_seconds, member.lease_seconds) == (1, 4)
    with pytest.raises(NotInMemory):
        policies.set_policy(connection, "retry", {"jitter": 0})


def test_a_subscription_begins_at_a_time_is_reset_and_paused(
    db: MemoryDatabase, connection: MemoryConnection
) -> None:
    """As on a database; the time is that of the virtual clock."""
    for number in range(3):
        penstock.publish(connection, ORDERS, b"%d" % number, partition=0)
        db.run_until_idle()
        db.clock.advance(10)
    since = db.clock.now() - timedelta(seconds=25)
    stream.subscribe(connection, "late", [ORDERS], since)
    assert stream.position(connection, "late", ORDERS) == {0: 1, 1: 0}
    assert stream.reset(connection, "late", "latest") == {(ORDERS, 0): 3, (ORDERS, 1): 0}
    with pytest.raises(InvalidArgument):
        stream.reset(connection, "late", db.clock.now() + timedelta(seconds=1))
    assert subscriptions.pause(connection, "billing")
    member, leases = _held(connection, "a")
    assert leases == []
    assert subscriptions.resume(connection, "billing")
    assert len(stream.check_in(connection, member)) == 1


def test_the_clock_begins_where_it_is_told() -> None:
    start = datetime(2030, 1, 1, tzinfo=UTC)
    clock = VirtualClock(start)
    clock.advance(0.5)
    assert clock.now() == start + timedelta(seconds=0.5)
    assert clock.monotonic() == start.timestamp() + 0.5
    with pytest.raises(InvalidArgument):
        clock.advance(-1)
    with pytest.raises(InvalidArgument):
        VirtualClock(datetime(2030, 1, 1))
