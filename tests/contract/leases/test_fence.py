"""The fence, on every engine: a consumer without the lease changes nothing; its holder keeps it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock import database, subscriptions
from penstock.errors import (
    BackwardCommit,
    BeyondHighWatermark,
    DuplicateSession,
    InvalidArgument,
    PenstockError,
    StaleLease,
    UnknownConsumer,
)
from penstock.subscriptions import stream
from penstock.subscriptions.stream import Membership
from tests.contract.databases import ContractDatabase
from tests.contract.kit import open_transaction
from tests.contract.stream_guards import (
    JOIN_DOES_NOT_WAIT,
    LEAVE_FORGETS,
    NAMED_TWICE,
    NO_EPOCH,
    NO_FENCE,
    NO_LIMIT,
    NO_LOCK,
    NOT_FORWARD,
    READ_BEHIND,
    SEEK_LEAVES_THE_LEASE,
)
from tests.contract.stream_kit import dialect, end_lease, taken_over, without
from tests.kit.log import wait_until
from tests.kit.proof import proves
from tests.kit.stream import (
    STREAM,
    SUBSCRIPTION,
    filled,
    holders,
    member_with_lease,
    short_leases,
    stored,
)

pytestmark = pytest.mark.mariadb_differs("limits of transactions are each server's own")


def _old_epoch(db: ContractDatabase) -> int:
    """Commits under the epoch before a seek, after the same consumer got the lease again."""
    own = db.connect()
    filled(own)
    member, old = member_with_lease(own, "a")
    stream.seek(own, SUBSCRIPTION, STREAM, 0, "earliest")
    (new,) = stream.check_in(own, member)
    assert new.lease_epoch > old.lease_epoch
    stream.commit(own, member, [(old, 5)])
    return stored(own)


def test_a_stale_lease_epoch_is_rejected(db: ContractDatabase) -> None:
    """Guard: lease_epoch in the fence's condition."""
    with pytest.raises(StaleLease):
        _old_epoch(db)
    assert stored(db.connect()) == 0


def test_without_the_epoch_the_stale_commit_is_accepted(db: ContractDatabase) -> None:
    """Mutant: the fence compares the holder only."""
    without(db, NO_EPOCH)
    assert _old_epoch(db) == 5


@proves("F3")
def test_a_commit_after_the_take_over_is_rejected(db: ContractDatabase) -> None:
    """Guard: the fence. The database counts the refusal although it rolls back."""
    own = db.connect()
    member, lease = taken_over(db, own)
    before = subscriptions.rejected_commits(own)
    with open_transaction(db) as app:
        with pytest.raises(StaleLease):
            stream.commit(app, member, [(lease, 5)])
        app.rollback()
    assert stored(own) == 0
    assert subscriptions.rejected_commits(own) == (before or 0) + 1
    assert subscriptions.take_overs(own, SUBSCRIPTION) == 1
    with pytest.raises(UnknownConsumer):
        stream.check_in(own, member)
    assert stream.poll(own, member, [lease]) == []


def test_without_the_fence_the_paused_consumer_commits(db: ContractDatabase) -> None:
    """Mutant: commit does not look at what it locked."""
    own = db.connect()
    member, lease = taken_over(db, own)
    without(db, NO_FENCE)
    without(db, NO_LIMIT)
    stream.commit(own, member, [(lease, 5)])
    assert stored(own) == 5


def test_a_commit_after_the_deadline_is_rejected_before_anybody_took_over(
    db: ContractDatabase,
) -> None:
    """Guard: the deadline in the fence; its limit would lie in the past."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    end_lease(db, "a")
    with pytest.raises(StaleLease):
        stream.commit(own, member, [(lease, 5)])
    stream.heartbeat(own, member)
    stream.commit(own, member, [(lease, 5)])
    assert stored(own) == 5


def _interleaved(db: ContractDatabase) -> tuple[dict[int, str], int]:
    """Who holds the lease while the zombie's transaction is open, and what is stored in the end."""
    own = db.connect()
    filled(own)
    zombie, lease = member_with_lease(own, "zombie")
    successor = stream.join(own, SUBSCRIPTION, "successor")
    with open_transaction(db) as paused:
        stream.commit(paused, zombie, [(lease, 5)])
        end_lease(db, "zombie")
        stream.check_in(own, successor)
        held = holders(own)
        paused.commit()
    return held, stored(own)


def test_while_the_zombies_transaction_is_open_nobody_takes_over(db: ContractDatabase) -> None:
    """Guard: the fence locks the lease row to the end of the caller's transaction."""
    held, position = _interleaved(db)
    assert held == {0: "zombie"}
    assert position == 5
    own = db.connect()
    (lease,) = stream.check_in(own, stream.join(own, SUBSCRIPTION, "another"))
    assert lease.position == 5


def test_without_the_lock_the_zombies_commit_is_accepted_after_the_take_over(
    db: ContractDatabase,
) -> None:
    """Mutant: the fence only looks. Both consumers do events 1 to 5: the violation."""
    without(db, NO_LOCK)
    held, position = _interleaved(db)
    assert held == {0: "successor"}
    assert position == 5


def test_a_commit_that_waits_for_a_take_over_is_rejected_by_it(db: ContractDatabase) -> None:
    """Guard: the fence reads the lease as it is when its lock is had."""
    own, taker = db.connect(), db.connect(autocommit=False)
    filled(own)
    zombie, lease = member_with_lease(own, "zombie")
    successor = stream.join(own, SUBSCRIPTION, "successor")
    end_lease(db, "zombie")
    stream.check_in(taker, successor)
    refused: list[PenstockError] = []

    def commit() -> None:
        try:
            stream.commit(own, zombie, [(lease, 5)])
        except PenstockError as error:
            refused.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    db.wait_until_blocked(own)
    taker.commit()
    thread.join(30)
    assert [type(error) for error in refused] == [StaleLease]
    assert stored(db.connect()) == 0


def _paused_past_its_lease(db: ContractDatabase, paused: object) -> Membership:
    """A consumer stops between its commit call and COMMIT, and never goes on in time."""
    own = db.connect()
    filled(own)
    short_leases(own, 1.5)
    zombie, lease = member_with_lease(own, "zombie")
    stream.commit(paused, zombie, [(lease, 5)])
    return stream.join(own, SUBSCRIPTION, "successor")


@proves("L1, D8")
def test_the_server_ends_a_transaction_that_outlives_its_lease(db: ContractDatabase) -> None:
    """Guard: the time limit that the fence sets, shorter than what is left of the lease."""
    own = db.connect()
    with open_transaction(db) as paused:
        successor = _paused_past_its_lease(db, paused)
        wait_until(lambda: stream.check_in(own, successor), "the successor takes over")
        with pytest.raises(Exception, match=r"(?i)timeout|closed|terminat|lost|gone|inactivity"):
            paused.commit()
    assert stored(own) == 0
    assert holders(own) == {0: "successor"}


@proves("L1, D8", guard="time limits of the server")
@pytest.mark.long_on("mariadb")
def test_without_the_limit_it_blocks_its_successor(db: ContractDatabase) -> None:
    """Mutant: no limit. More than the lease time later the lease is still held."""
    without(db, NO_LIMIT)
    own = db.connect()
    with open_transaction(db) as paused:
        successor = _paused_past_its_lease(db, paused)
        late = threading.Event()
        assert not late.wait(2.0)
        assert stream.check_in(own, successor) == []
        paused.commit()
    assert stored(own) == 5


@pytest.mark.parametrize(
    ("position", "error"),
    [
        (0, BackwardCommit), (4, BackwardCommit), (5, BackwardCommit), (11, BeyondHighWatermark),
        (6.5, InvalidArgument), ("7", InvalidArgument), (True, InvalidArgument),
    ],
)  # fmt: skip
def test_positions_move_forward_up_to_the_high_watermark(
    db: ContractDatabase, position: Any, error: type[PenstockError]
) -> None:
    """Guard: the comparison with position and high watermark, under the lock."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    stream.commit(own, member, [(lease, 5)])
    with pytest.raises(error):
        stream.commit(own, member, [(lease, position)])
    assert stored(own) == 5
    stream.commit(own, member, [(lease, 10)])


@pytest.mark.parametrize("position", [4, 11])
def test_without_the_comparison_any_position_is_taken(db: ContractDatabase, position: int) -> None:
    """Mutant: no comparison."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    stream.commit(own, member, [(lease, 5)])
    for guard in NOT_FORWARD[dialect(db)]:
        db.without_guard(*guard)
    stream.commit(own, member, [(lease, position)])
    assert stored(own) == position


def _read_twice(db: ContractDatabase) -> None:
    """Events 1 to 5 are done, but their reader believes that they are not and does 1 to 10."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    stream.commit(own, member, [(lease, 5)], after=[0])
    stream.commit(own, member, [(lease, 10)], after=[0])


def test_a_commit_of_events_that_are_done_already_is_rejected(db: ContractDatabase) -> None:
    """Guard: the position after which the events were read."""
    with pytest.raises(BackwardCommit):
        _read_twice(db)
    assert stored(db.connect()) == 5


def test_without_it_they_would_be_done_twice(db: ContractDatabase) -> None:
    """Mutant: a commit only has to lie ahead."""
    without(db, READ_BEHIND)
    _read_twice(db)
    assert stored(db.connect()) == 10


def _one_partition_twice(db: ContractDatabase) -> None:
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    stream.commit(own, member, [(lease, 7), (lease, 3)])


def test_a_commit_names_a_partition_once(db: ContractDatabase) -> None:
    """Guard: the arrays hold each partition once."""
    with pytest.raises(InvalidArgument):
        _one_partition_twice(db)
    assert stored(db.connect()) == 0


def test_named_twice_a_position_moves_back(db: ContractDatabase) -> None:
    """Mutant: duplicates are let through."""
    without(db, NAMED_TWICE)
    _one_partition_twice(db)
    assert stored(db.connect()) == 3


def test_several_partitions_are_committed_all_or_none(db: ContractDatabase) -> None:
    """Guard: one statement for all; the second is wrong, the first does not move."""
    own = db.connect()
    filled(own, partitions=2)
    member = stream.join(own, SUBSCRIPTION, "a")
    first, second = stream.check_in(own, member)
    with pytest.raises(BeyondHighWatermark):
        stream.commit(own, member, [(first, 5), (second, 99)])
    assert stream.position(own, SUBSCRIPTION, STREAM) == {0: 0, 1: 0}
    stream.commit(own, member, [(second, 6), (first, 5)])
    assert stream.position(own, SUBSCRIPTION, STREAM) == {0: 5, 1: 6}


def test_what_a_commit_names_has_one_length(db: ContractDatabase) -> None:
    """Typed, and no partition moves."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    with pytest.raises(InvalidArgument):
        stream.commit(own, member, [])
    with pytest.raises(InvalidArgument):
        stream.commit(own, member, [(lease, 5)], after=[0, 0])
    assert stored(own) == 0


def test_a_refused_commit_leaves_the_transaction_as_it_was(db: ContractDatabase) -> None:
    """What the caller wrote before it is there, and is the caller's to commit or to roll back."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    database.execute(own, "CREATE TABLE effects (number INT)")
    with open_transaction(db) as app:
        database.execute(app, "INSERT INTO effects VALUES (1)")
        database.execute(app, "SAVEPOINT before_it")
        with pytest.raises(BeyondHighWatermark):
            stream.commit(app, member, [(lease, 99)])
        database.execute(app, "ROLLBACK TO SAVEPOINT before_it")
        stream.commit(app, member, [(lease, 5)])
        app.commit()
    assert database.execute(own, "SELECT number FROM effects") == [(1,)]
    assert stored(own) == 5


def test_rolled_back_the_position_is_gone(db: ContractDatabase) -> None:
    """Guard: the position is a row of the caller's transaction and nothing else."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    with open_transaction(db) as app:
        database.execute(app, "SAVEPOINT before_it")
        stream.commit(app, member, [(lease, 8)])
        database.execute(app, "ROLLBACK TO SAVEPOINT before_it")
        stream.commit(app, member, [(lease, 3)])
        app.rollback()
    assert stored(own) == 0
    stream.commit(own, member, [(lease, 2)])
    assert stored(own) == 2


@proves("F24")
def test_a_seek_raises_the_epoch_and_takes_the_lease(db: ContractDatabase) -> None:
    """Guard: seek moves the fence."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    stream.commit(own, member, [(lease, 7)])
    assert stream.seek(own, SUBSCRIPTION, STREAM, 0, 3) == 2
    with pytest.raises(StaleLease):
        stream.commit(own, member, [(lease, 8)])
    (again,) = stream.check_in(own, member)
    assert (again.lease_epoch, again.position) == (lease.lease_epoch + 2, 2)
    assert stream.seek(own, SUBSCRIPTION, STREAM, 0, "latest") == 10
    with pytest.raises(BeyondHighWatermark):
        stream.seek(own, SUBSCRIPTION, STREAM, 0, 12)


def test_without_raising_it_a_commit_from_before_the_seek_counts(db: ContractDatabase) -> None:
    """Mutant: seek leaves the lease to its holder."""
    without(db, SEEK_LEAVES_THE_LEASE)
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    stream.seek(own, SUBSCRIPTION, STREAM, 0, 3)
    stream.commit(own, member, [(lease, 8)])
    assert stored(own) == 8


def _joined_again(db: ContractDatabase) -> None:
    """A second run of the same consumer id, while the first is inside its transaction."""
    own = db.connect()
    filled(own)
    first, lease = member_with_lease(own, "a")
    with open_transaction(db) as paused:
        stream.commit(paused, first, [(lease, 5)])
        end_lease(db, "a")
        second = stream.join(own, SUBSCRIPTION, "a")
        (shared,) = stream.check_in(own, second)
        assert shared.lease_epoch == lease.lease_epoch
        paused.commit()


def test_a_second_run_of_an_id_waits_for_the_transaction_of_the_first(db: ContractDatabase) -> None:
    """Guard: join refuses while a lease row of the id is locked."""
    with pytest.raises(DuplicateSession):
        _joined_again(db)


def test_without_waiting_two_runs_share_a_lease_epoch(db: ContractDatabase) -> None:
    """Mutant: join does not look whether all leases were freed."""
    without(db, JOIN_DOES_NOT_WAIT)
    _joined_again(db)


def test_after_its_deadline_an_id_can_join_again_and_gets_a_new_epoch(db: ContractDatabase) -> None:
    """Guard: join gives up what an earlier run held."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    end_lease(db, "a")
    _, again = member_with_lease(own, "a")
    assert again.lease_epoch > lease.lease_epoch
    with pytest.raises(StaleLease):
        stream.commit(own, member, [(lease, 1)])


def _left_inside_a_transaction(db: ContractDatabase) -> dict[int, str]:
    """A consumer leaves while a transaction of it holds a lease; then another one checks in."""
    own = db.connect()
    filled(own)
    leaving, lease = member_with_lease(own, "a")
    with open_transaction(db) as working:
        stream.commit(working, leaving, [(lease, 5)])
        stream.leave(own, leaving)
        working.commit()
    stream.check_in(own, stream.join(own, SUBSCRIPTION, "b"))
    return holders(own)


def test_a_lease_is_not_orphaned_when_its_holder_leaves(db: ContractDatabase) -> None:
    """Guard: a consumer stays as a dead one until its last lease is free."""
    assert _left_inside_a_transaction(db) == {0: "b"}


def test_without_that_nobody_ever_gets_the_partition_again(db: ContractDatabase) -> None:
    """Mutant: leave removes the consumer whatever it still holds."""
    without(db, LEAVE_FORGETS)
    assert _left_inside_a_transaction(db) == {0: "a"}


def test_a_row_that_a_transaction_holds_is_reported_by_sweep(db: ContractDatabase) -> None:
    """Guard: SKIP LOCKED, and what was skipped is counted."""
    own = db.connect()
    filled(own, partitions=2)
    member = stream.join(own, SUBSCRIPTION, "a")
    first, _ = stream.check_in(own, member)
    with open_transaction(db) as paused:
        stream.commit(paused, member, [(first, 5)])
        end_lease(db, "a")
        assert database.call(own, "sweep", max_rows=10) == [(0, 1)]
        assert holders(own) == {0: "a"}
        paused.rollback()
    assert database.call(own, "sweep", max_rows=10) == [(1, 0)]
    assert holders(own) == {}
