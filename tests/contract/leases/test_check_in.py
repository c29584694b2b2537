"""Fair share on every engine: all is held, evenly, and no partition moves without need."""

from __future__ import annotations

import math
from typing import Any

import pytest

from penstock import subscriptions
from penstock.errors import (
    DuplicateSession,
    InvalidArgument,
    StaleLease,
    SubscriptionNotFound,
    UnknownConsumer,
)
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.subscriptions import stream
from penstock.subscriptions.stream import Membership
from tests.contract.databases import ContractDatabase
from tests.contract.kit import count
from tests.contract.stream_kit import (
    PAST,
    Guard,
    acquired,
    check_in_rounds,
    end_lease,
    join,
    without,
)
from tests.kit.log import drain, topic
from tests.kit.proof import proves
from tests.kit.stream import STREAM, SUBSCRIPTION, filled, holders, member_with_lease

SHAPES = [(1, 1), (5, 16), (10, 3), (10, 4), (64, 5)]

WHOLE_SHARES: Guard = {
    "postgres": ("quotas", "r.whole + (r.place <= r.left_over)::integer", "r.whole"),
    "mysql": (
        "find_standings",
        "SELECT r.id, r.missing + (r.place <= r.left_over), r.held FROM",
        "SELECT r.id, r.missing, r.held FROM",
    ),
}
TIES_BY_CHANCE: Guard = {
    "postgres": ("quotas", "DESC, e.id)", "DESC, random())"),
    "mysql": ("find_standings", "DESC, e.id)", "DESC, RAND())"),
}
EVERYBODY_IS_DEAD: Guard = {
    "postgres": ("collect_dead", "c.deadline <= now", "c.heartbeat_at < now"),
    "mysql": (
        "check_in",
        "CALL collect_dead(owner_id, present, expired, locked);",
        "CALL collect_dead(owner_id, present + INTERVAL 9999999 MICROSECOND, expired, locked);",
    ),
}


def _busy(connection: Any, partitions: int) -> None:
    topic(connection, partitions, STREAM)
    publish_batch(connection, [Message(STREAM, b"x", partition=n) for n in range(partitions)])
    drain(connection)
    stream.subscribe(connection, SUBSCRIPTION, [STREAM])


def _counts(connection: Any, members: list[Membership]) -> list[int]:
    held = list(holders(connection).values())
    return sorted(held.count(member.consumer) for member in members)


@proves("L3, L4 by weight")
@proves("L3, L4")
@pytest.mark.parametrize(("partitions", "consumers"), SHAPES)
def test_all_are_held_after_two_rounds_evenly_and_then_nothing_moves(
    db: ContractDatabase, partitions: int, consumers: int
) -> None:
    """Guard: largest-remainder quotas with ties by id."""
    own = db.connect()
    _busy(own, partitions)
    members = join(own, consumers)
    check_in_rounds(own, members)
    counts = _counts(own, members)
    assert sum(counts) == partitions
    assert counts[-1] - counts[0] <= 1
    before = acquired(db)
    check_in_rounds(own, members, 3)
    assert acquired(db) == before
    assert _counts(own, members) == counts


@proves("L3, L4 by weight", guard="remainders")
@proves("L3, L4", guard="largest remainders")
def test_without_the_remainders_partitions_are_starved(db: ContractDatabase) -> None:
    """Mutant: whole shares only."""
    without(db, WHOLE_SHARES)
    own = db.connect()
    _busy(own, 10)
    check_in_rounds(own, join(own, 3), 4)
    assert len(holders(own)) < 10


@proves("L3, L4 by weight", guard="ties by id")
def test_with_ties_at_random_leases_wander(db: ContractDatabase) -> None:
    """Mutant: the remainders go to whom chance chooses."""
    without(db, TIES_BY_CHANCE)
    own = db.connect()
    _busy(own, 10)
    members = join(own, 4)
    check_in_rounds(own, members)
    before = acquired(db)
    check_in_rounds(own, members, 6)
    assert acquired(db) > before


def test_a_fifth_consumer_of_64_partitions_moves_twelve(db: ContractDatabase) -> None:
    """Guard: only the surplus is released."""
    own = db.connect()
    _busy(own, 64)
    members = join(own, 4)
    check_in_rounds(own, members)
    before = acquired(db)
    members += join(own, 1, first=4)
    check_in_rounds(own, members, 4)
    assert acquired(db) - before == 12
    assert _counts(own, members) == [12, 13, 13, 13, 13]


def test_a_leaver_moves_only_what_it_held(db: ContractDatabase) -> None:
    """Guard: quotas change for the rest by what became free."""
    own = db.connect()
    _busy(own, 16)
    members = join(own, 5)
    check_in_rounds(own, members, 3)
    before = acquired(db)
    left = members.pop()
    held = list(holders(own).values()).count(left.consumer)
    stream.leave(own, left)
    stream.leave(own, left)
    check_in_rounds(own, members, 3)
    assert acquired(db) - before == held
    assert _counts(own, members) == [4, 4, 4, 4]


def test_shares_follow_the_weights(db: ContractDatabase) -> None:
    """Guard: quotas by weight."""
    own = db.connect()
    _busy(own, 12)
    heavy = stream.join(own, SUBSCRIPTION, "heavy", weight=3)
    light = stream.join(own, SUBSCRIPTION, "light", weight=1)
    check_in_rounds(own, [heavy, light], 3)
    assert _counts(own, [light, heavy]) == [3, 9]


def test_partitions_without_unread_events_are_not_leased(db: ContractDatabase) -> None:
    """Guard: only what has a backlog is acquired; cold partitions cost nothing."""
    own = db.connect()
    topic(own, 8, STREAM)
    publish_batch(own, [Message(STREAM, b"x", partition=3)])
    drain(own)
    stream.subscribe(own, SUBSCRIPTION, [STREAM])
    (member,) = join(own, 1)
    check_in_rounds(own, [member])
    assert holders(own) == {3: "c000"}


def test_what_is_not_released_in_time_is_taken(db: ContractDatabase) -> None:
    """Guard: the release deadline, fenced as any take-over."""
    own = db.connect()
    _busy(own, 4)
    (slow,) = join(own, 1)
    stream.check_in(own, slow)
    (other,) = join(own, 1, first=1)
    asked = [lease for lease in stream.check_in(own, slow) if lease.state == "RELEASING"]
    assert len(asked) == 2
    assert stream.check_in(own, other) == []
    db.run(
        "UPDATE penstock.leases SET release_deadline = %(past)s WHERE state = 'RELEASING'",
        {"past": PAST},
    )
    taken = stream.check_in(own, other)
    assert {lease.partition for lease in taken} == {lease.partition for lease in asked}
    assert stream.release(own, slow, asked) == 0


def _check_in_beside(db: ContractDatabase) -> dict[int, str]:
    own = db.connect()
    filled(own)
    member_with_lease(own, "a")
    other = stream.join(own, SUBSCRIPTION, "b")
    for _ in range(3):
        stream.check_in(own, other)
    return holders(own)


def test_a_live_lease_is_never_taken(db: ContractDatabase) -> None:
    """Guard: only consumers whose deadline has passed are collected."""
    assert _check_in_beside(db) == {0: "a"}


def test_without_the_deadline_a_live_lease_is_taken(db: ContractDatabase) -> None:
    """Mutant: everybody counts as dead."""
    without(db, EVERYBODY_IS_DEAD)
    assert _check_in_beside(db) == {0: "b"}


def test_after_the_deadline_the_next_check_in_takes_over(db: ContractDatabase) -> None:
    """D8: lease time plus one check-in; the epoch grows, and the database has the witness."""
    own = db.connect()
    filled(own, partitions=3)
    first = stream.join(own, SUBSCRIPTION, "a")
    lost = stream.check_in(own, first)
    end_lease(db, "a")
    taken = stream.check_in(own, stream.join(own, SUBSCRIPTION, "b"))
    assert [lease.partition for lease in taken] == [0, 1, 2]
    assert [lease.lease_epoch for lease in taken] == [lease.lease_epoch + 1 for lease in lost]
    assert subscriptions.take_overs(own, SUBSCRIPTION) == 3
    with pytest.raises(UnknownConsumer):
        stream.heartbeat(own, first)


def test_who_is_no_member_is_told(db: ContractDatabase) -> None:
    """Typed errors for an unknown consumer, a second session and an unknown subscription."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    stranger = Membership(SUBSCRIPTION, "x", member.session, 3, 10)
    with pytest.raises(UnknownConsumer):
        stream.check_in(own, stranger)
    with pytest.raises(UnknownConsumer):
        stream.heartbeat(own, stranger)
    with pytest.raises(StaleLease):
        stream.commit(own, stranger, [(lease, 1)])
    with pytest.raises(DuplicateSession):
        stream.join(own, SUBSCRIPTION, "a")
    with pytest.raises(SubscriptionNotFound):
        stream.join(own, "nobody", "a")
    stream.leave(own, stranger)
    stream.heartbeat(own, member)
    assert holders(own) == {0: "a"}


def test_a_weight_that_breaks_the_sums_of_others_is_refused(db: ContractDatabase) -> None:
    """Guard: the bounds of a weight; PyMySQL could not even send one that is not finite."""
    own = db.connect()
    filled(own)
    bad: list[Any] = [0.0, -1.0, 1e308, math.inf, -math.inf, math.nan, None, "heavy", True]
    for weight in bad:
        with pytest.raises(InvalidArgument):
            stream.join(own, SUBSCRIPTION, "heavy", weight)
    assert count(db, "consumers") == 0


def test_the_last_place_of_a_subscription(db: ContractDatabase) -> None:
    """Guard: max_consumers."""
    own = db.connect()
    filled(own)
    db.run("UPDATE penstock.subscriptions SET max_consumers = 2")
    join(own, 2)
    with pytest.raises(InvalidArgument, match="2 consumers already"):
        join(own, 1, first=2)
