"""The fence: who has lost a lease changes nothing, and who holds one does not lose it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock import database, stream
from penstock.errors import (
    BackwardCommit,
    BeyondHighWatermark,
    DuplicateSession,
    InvalidArgument,
    PenstockError,
    StaleLease,
    SubscriptionNotFound,
    UnknownConsumer,
    WrongIsolation,
)
from penstock.log import sequence
from penstock.records import Lease
from penstock.stream import Membership
from tests.guards import without_guard
from tests.log.kit import Connection, open_transaction
from tests.stream.kit import (
    STREAM,
    SUBSCRIPTION,
    end_lease,
    filled,
    holders,
    member_with_lease,
    stored,
)

NO_EPOCH = (
    "hold_leases",
    "ON given.partition_id = l.partition_id AND given.lease_epoch = l.lease_epoch",
    "ON given.partition_id = l.partition_id",
)
NO_FENCE = (
    "hold_leases",
    "IF held <> cardinality(partition_ids) OR left_seconds IS NULL OR left_seconds <= 0 THEN",
    "IF false THEN",
)
NO_LIMIT = ("hold_leases", "PERFORM limit_transaction(left_seconds);", "")


def _old_epoch(connection: Connection) -> None:
    """Commits under the epoch before a seek, after the same consumer got the lease again."""
    filled(connection)
    member, old = member_with_lease(connection, "a")
    stream.seek(connection, SUBSCRIPTION, STREAM, 0, "earliest")
    (new,) = stream.check_in(connection, member)
    assert new.lease_epoch > old.lease_epoch
    stream.commit(connection, member, [(old, 5)])


def test_a_stale_lease_epoch_is_rejected(connection: Connection) -> None:
    """Guard: lease_epoch in the fence's condition."""
    with pytest.raises(StaleLease):
        _old_epoch(connection)
    assert stored(connection) == 0


def test_without_the_epoch_the_stale_commit_is_accepted(connection: Connection) -> None:
    """Mutant: the fence compares the holder only."""
    without_guard(connection, *NO_EPOCH)
    _old_epoch(connection)
    assert stored(connection) == 5


def _check_in_beside(connection: Connection) -> dict[int, str]:
    filled(connection)
    member_with_lease(connection, "a")
    other = stream.join(connection, SUBSCRIPTION, "b")
    for _ in range(3):
        stream.check_in(connection, other)
    return holders(connection)


def test_a_live_lease_is_never_taken(connection: Connection) -> None:
    """Guard: only consumers whose deadline has passed are collected."""
    assert _check_in_beside(connection) == {0: "a"}


def test_without_the_deadline_a_live_lease_is_taken(connection: Connection) -> None:
    """Mutant: everybody counts as dead."""
    without_guard(connection, "collect_dead", "c.deadline <= now", "c.heartbeat_at < now")
    assert _check_in_beside(connection) == {0: "b"}


def _taken_over(connection: Connection) -> tuple[Membership, Lease]:
    """A consumer that was paused past its lease, whose partition another one holds now."""
    filled(connection)
    paused = member_with_lease(connection, "a")
    end_lease(connection, "a")
    member_with_lease(connection, "b")
    return paused


def test_a_commit_after_the_take_over_is_rejected(connection: Connection) -> None:
    """Guard: the fence. The database counts the refusal although it rolls back."""
    member, lease = _taken_over(connection)
    before = stream.rejected_commits(connection)
    with pytest.raises(StaleLease), connection.transaction():
        stream.commit(connection, member, [(lease, 5)])
    assert stored(connection) == 0
    assert stream.rejected_commits(connection) == before + 1
    assert stream.take_overs(connection, SUBSCRIPTION) == 1
    with pytest.raises(UnknownConsumer):
        stream.check_in(connection, member)
    assert stream.poll(connection, member, [lease]) == []


def test_without_the_fence_the_paused_consumer_commits(connection: Connection) -> None:
    """Mutant: commit does not look at what it locked."""
    without_guard(connection, *NO_FENCE)
    without_guard(connection, *NO_LIMIT)
    member, lease = _taken_over(connection)
    stream.commit(connection, member, [(lease, 5)])
    assert stored(connection) == 5


def test_a_commit_after_the_deadline_is_rejected_before_anybody_took_over(
    connection: Connection,
) -> None:
    """Guard: the deadline in the fence; its limit would lie in the past."""
    filled(connection)
    member, lease = member_with_lease(connection, "a")
    end_lease(connection, "a")
    with pytest.raises(StaleLease):
        stream.commit(connection, member, [(lease, 5)])
    stream.heartbeat(connection, member)
    stream.commit(connection, member, [(lease, 5)])
    assert stored(connection) == 5


@pytest.mark.parametrize(
    ("position", "error"),
    [(0, BackwardCommit), (4, BackwardCommit), (5, BackwardCommit), (11, BeyondHighWatermark)],
)
def test_positions_move_forward_up_to_the_high_watermark(
    connection: Connection, position: int, error: type[PenstockError]
) -> None:
    """Guard: the comparison with position and high watermark, behind the lock."""
    filled(connection)
    member, lease = member_with_lease(connection, "a")
    stream.commit(connection, member, [(lease, 5)])
    with pytest.raises(error):
        stream.commit(connection, member, [(lease, position)])
    assert stored(connection) == 5
    stream.commit(connection, member, [(lease, 10)])


@pytest.mark.parametrize(("position", "accepted"), [(4, 4), (11, 11)])
def test_without_the_comparison_any_position_is_taken(
    connection: Connection, position: int, accepted: int
) -> None:
    """Mutant: no comparison."""
    filled(connection)
    member, lease = member_with_lease(connection, "a")
    stream.commit(connection, member, [(lease, 5)])
    without_guard(
        connection,
        "commit",
        "WHERE given.wanted IS NULL OR given.wanted <= stored.position",
        "WHERE false",
    )
    without_guard(connection, "commit", "OR given.wanted > high_watermark(given.partition_id)", "")
    without_guard(connection, "commit", "OR given.read_after <> stored.position", "")
    stream.commit(connection, member, [(lease, position)])
    assert stored(connection) == accepted


def _read_twice(connection: Connection) -> None:
    """Events 1 to 5 are done, but their reader believes that they are not and does 1 to 10."""
    filled(connection)
    member, lease = member_with_lease(connection, "a")
    stream.commit(connection, member, [(lease, 5)], after=[0])
    stream.commit(connection, member, [(lease, 10)], after=[0])


def test_a_commit_of_events_that_are_done_already_is_rejected(connection: Connection) -> None:
    """Guard: the position behind which the events were read."""
    with pytest.raises(BackwardCommit):
        _read_twice(connection)
    assert stored(connection) == 5


def test_without_it_they_would_be_done_twice(connection: Connection) -> None:
    """Mutant: a commit only has to lie ahead."""
    without_guard(connection, "commit", "OR given.read_after <> stored.position", "")
    _read_twice(connection)
    assert stored(connection) == 10


def _one_partition_twice(connection: Connection) -> None:
    filled(connection)
    member, lease = member_with_lease(connection, "a")
    stream.commit(connection, member, [(lease, 7), (lease, 3)])


def test_a_commit_names_a_partition_once(connection: Connection) -> None:
    """Guard: the arrays hold each partition once."""
    with pytest.raises(InvalidArgument):
        _one_partition_twice(connection)
    assert stored(connection) == 0


def test_named_twice_a_position_moves_back(connection: Connection) -> None:
    """Mutant: duplicates are let through."""
    without_guard(
        connection,
        "commit",
        "(SELECT count(DISTINCT p.id) FROM unnest(partition_ids) AS p (id))",
        "cardinality(partition_ids)",
    )
    _one_partition_twice(connection)
    assert stored(connection) == 3


def test_several_partitions_are_committed_all_or_none(connection: Connection) -> None:
    """Guard: one statement for all; the second is wrong, the first does not move."""
    filled(connection, partitions=2)
    member = stream.join(connection, SUBSCRIPTION, "a")
    first, second = stream.check_in(connection, member)
    with pytest.raises(BeyondHighWatermark):
        stream.commit(connection, member, [(first, 5), (second, 99)])
    assert stream.position(connection, SUBSCRIPTION, STREAM) == {0: 0, 1: 0}
    stream.commit(connection, member, [(second, 6), (first, 5)])
    assert stream.position(connection, SUBSCRIPTION, STREAM) == {0: 5, 1: 6}


def test_a_seek_raises_the_epoch_and_takes_the_lease(connection: Connection) -> None:
    """Guard: seek moves the fence."""
    filled(connection)
    member, lease = member_with_lease(connection, "a")
    stream.commit(connection, member, [(lease, 7)])
    assert stream.seek(connection, SUBSCRIPTION, STREAM, 0, 3) == 2
    with pytest.raises(StaleLease):
        stream.commit(connection, member, [(lease, 8)])
    (again,) = stream.check_in(connection, member)
    assert (again.lease_epoch, again.position) == (lease.lease_epoch + 2, 2)
    assert stream.seek(connection, SUBSCRIPTION, STREAM, 0, "latest") == 10
    with pytest.raises(BeyondHighWatermark):
        stream.seek(connection, SUBSCRIPTION, STREAM, 0, 12)


def test_without_raising_it_a_commit_from_before_the_seek_counts(connection: Connection) -> None:
    """Mutant: seek leaves the lease to its holder."""
    without_guard(
        connection,
        "seek",
        "SET state = 'AVAILABLE', holder = NULL, lease_epoch = l.lease_epoch + 1,",
        "SET",
    )
    filled(connection)
    member, lease = member_with_lease(connection, "a")
    stream.seek(connection, SUBSCRIPTION, STREAM, 0, 3)
    stream.commit(connection, member, [(lease, 8)])
    assert stored(connection) == 8


def test_who_is_no_member_is_told(connection: Connection) -> None:
    """Typed errors for an unknown consumer, a second session and an unknown subscription."""
    filled(connection)
    member, lease = member_with_lease(connection, "a")
    stranger = Membership(SUBSCRIPTION, "x", member.session, 3, 10)
    with pytest.raises(UnknownConsumer):
        stream.check_in(connection, stranger)
    with pytest.raises(UnknownConsumer):
        stream.heartbeat(connection, stranger)
    with pytest.raises(StaleLease):
        stream.commit(connection, stranger, [(lease, 1)])
    with pytest.raises(DuplicateSession):
        stream.join(connection, SUBSCRIPTION, "a")
    with pytest.raises(SubscriptionNotFound):
        stream.join(connection, "nobody", "a")
    stream.leave(connection, stranger)
    assert holders(connection) == {0: "a"}


def test_after_its_deadline_an_id_can_join_again_and_gets_a_new_epoch(
    connection: Connection,
) -> None:
    """Guard: join gives up what an earlier run held."""
    filled(connection)
    member, lease = member_with_lease(connection, "a")
    end_lease(connection, "a")
    _, again = member_with_lease(connection, "a")
    assert again.lease_epoch > lease.lease_epoch
    with pytest.raises(StaleLease):
        stream.commit(connection, member, [(lease, 1)])


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_what_relies_on_a_lock_refuses_an_old_snapshot(
    connection: Connection, database_url: str, level: str
) -> None:
    """Guard: require_read_committed; see also the race of subscribe and clean."""
    filled(connection)
    member, lease = member_with_lease(connection, "a")
    verbs: list[Callable[[Connection], object]] = [
        lambda other: stream.commit(other, member, [(lease, 1)]),
        sequence,
        lambda other: stream.subscribe(other, "another", [STREAM]),
        lambda other: stream.seek(other, SUBSCRIPTION, STREAM, 0, "earliest"),
        lambda other: database.execute(other, f"SELECT penstock.clean('{STREAM}')"),
    ]
    with open_transaction(database_url) as other:
        for verb in verbs:
            other.rollback()
            other.execute(f"BEGIN ISOLATION LEVEL {level}".encode())
            with pytest.raises(WrongIsolation):
                verb(other)


@pytest.mark.parametrize("weight", [0.0, -1.0, 1e308, float("inf"), float("nan")])
def test_a_weight_that_breaks_the_sums_of_others_is_refused(
    connection: Connection, weight: float
) -> None:
    """Guard: the bounds of a weight; beyond them every check-in of the subscription overflows."""
    filled(connection)
    with pytest.raises(InvalidArgument):
        stream.join(connection, SUBSCRIPTION, "heavy", weight)


def test_a_poll_answers_in_the_order_it_was_asked(connection: Connection) -> None:
    """Guard: ORDER BY place; a busy partition would starve the others."""
    filled(connection, partitions=4)
    member = stream.join(connection, SUBSCRIPTION, "a")
    leases = stream.check_in(connection, member)
    for turn in range(4):
        turned = leases[turn:] + leases[:turn]
        ((lease, events),) = stream.poll(connection, member, turned, max_events=10)
        assert lease == turned[0]
        assert len(events) == 10
    answered = stream.poll(connection, member, leases[::-1], max_events=25)
    assert [(lease.partition, len(events)) for lease, events in answered] == [
        (3, 10),
        (2, 10),
        (1, 5),
    ]
