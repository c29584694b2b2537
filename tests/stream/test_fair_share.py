"""Fair share: everything is held, nobody has much more, and nothing moves without need."""

from __future__ import annotations

import pytest

from penstock import stream
from penstock.publish import publish_batch
from penstock.records import Message
from penstock.stream import Membership
from tests.guards import without_guard
from tests.log.kit import Connection, drain, topic, value
from tests.stream.kit import STREAM, SUBSCRIPTION, holders

SHAPES = [(1, 1), (5, 16), (10, 3), (10, 4), (64, 5)]


def _busy(connection: Connection, partitions: int) -> None:
    topic(connection, partitions, STREAM)
    publish_batch(connection, [Message(STREAM, b"x", partition=n) for n in range(partitions)])
    drain(connection)
    stream.subscribe(connection, SUBSCRIPTION, [STREAM])


def _join(connection: Connection, count: int, first: int = 0) -> list[Membership]:
    return [
        stream.join(connection, SUBSCRIPTION, f"c{number:03}")
        for number in range(first, first + count)
    ]


def _rounds(connection: Connection, members: list[Membership], count: int = 2) -> None:
    """Check-ins of everybody in turn; what is to be released is released at once."""
    for _ in range(count):
        for member in members:
            held = stream.check_in(connection, member)
            asked = [lease for lease in held if lease.state == "RELEASING"]
            if asked:
                stream.release(connection, member, asked)


def _moves(connection: Connection) -> int:
    return int(
        value(connection, "SELECT count(*) FROM penstock.lease_history WHERE change = 'acquired'")
    )


def _counts(connection: Connection, members: list[Membership]) -> list[int]:
    held = list(holders(connection).values())
    return sorted(held.count(member.consumer) for member in members)


@pytest.mark.parametrize(("partitions", "consumers"), SHAPES)
def test_all_are_held_after_two_rounds_evenly_and_then_nothing_moves(
    connection: Connection, partitions: int, consumers: int
) -> None:
    """Guard: largest-remainder quotas with ties by id."""
    _busy(connection, partitions)
    members = _join(connection, consumers)
    _rounds(connection, members)
    counts = _counts(connection, members)
    assert sum(counts) == partitions
    assert counts[-1] - counts[0] <= 1
    before = _moves(connection)
    _rounds(connection, members, 3)
    assert _moves(connection) == before
    assert _counts(connection, members) == counts


@pytest.mark.parametrize(("partitions", "consumers"), [(5, 16), (10, 3)])
def test_without_the_remainders_partitions_are_starved(
    connection: Connection, partitions: int, consumers: int
) -> None:
    """Mutant: whole shares only."""
    without_guard(connection, "quotas", "r.whole + (r.place <= r.left_over)::integer", "r.whole")
    _busy(connection, partitions)
    members = _join(connection, consumers)
    _rounds(connection, members, 4)
    assert len(holders(connection)) < partitions


def test_with_ties_at_random_leases_wander(connection: Connection) -> None:
    """Mutant: the remainders go to whom chance chooses."""
    without_guard(connection, "quotas", "DESC, e.id)", "DESC, random())")
    _busy(connection, 10)
    members = _join(connection, 4)
    _rounds(connection, members)
    before = _moves(connection)
    _rounds(connection, members, 6)
    assert _moves(connection) > before


def test_a_fifth_consumer_of_64_partitions_moves_twelve(connection: Connection) -> None:
    """Guard: only the surplus is released."""
    _busy(connection, 64)
    members = _join(connection, 4)
    _rounds(connection, members)
    before = _moves(connection)
    members += _join(connection, 1, first=4)
    _rounds(connection, members, 4)
    assert _moves(connection) - before == 12
    assert _counts(connection, members) == [12, 13, 13, 13, 13]


def test_a_leaver_moves_only_what_it_held(connection: Connection) -> None:
    """Guard: quotas change for the rest by what became free."""
    _busy(connection, 64)
    members = _join(connection, 5)
    _rounds(connection, members, 3)
    before = _moves(connection)
    left = members.pop()
    held = list(holders(connection).values()).count(left.consumer)
    stream.leave(connection, left)
    _rounds(connection, members, 3)
    assert _moves(connection) - before == held
    assert _counts(connection, members) == [16, 16, 16, 16]


def test_shares_follow_the_weights(connection: Connection) -> None:
    """Guard: quotas by weight."""
    _busy(connection, 12)
    heavy = stream.join(connection, SUBSCRIPTION, "heavy", weight=3)
    light = stream.join(connection, SUBSCRIPTION, "light", weight=1)
    _rounds(connection, [heavy, light], 3)
    assert _counts(connection, [light, heavy]) == [3, 9]


def test_partitions_without_unread_events_are_not_leased(connection: Connection) -> None:
    """Guard: only what has a backlog is acquired; cold partitions cost nothing."""
    topic(connection, 8, STREAM)
    publish_batch(connection, [Message(STREAM, b"x", partition=3)])
    drain(connection)
    stream.subscribe(connection, SUBSCRIPTION, [STREAM])
    (member,) = _join(connection, 1)
    _rounds(connection, [member])
    assert holders(connection) == {3: "c000"}


def test_what_is_not_released_in_time_is_taken(connection: Connection) -> None:
    """Guard: the release deadline, fenced as any take-over."""
    _busy(connection, 4)
    (slow,) = _join(connection, 1)
    stream.check_in(connection, slow)
    (other,) = _join(connection, 1, first=1)
    asked = [lease for lease in stream.check_in(connection, slow) if lease.state == "RELEASING"]
    assert len(asked) == 2
    assert stream.check_in(connection, other) == []
    connection.execute(
        "UPDATE penstock.leases SET release_deadline = now() WHERE state = 'RELEASING'"
    )
    taken = stream.check_in(connection, other)
    assert {lease.partition for lease in taken} == {lease.partition for lease in asked}
    assert stream.release(connection, slow, asked) == 0
