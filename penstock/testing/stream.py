"""Reading leased partitions of a log in memory, and the fence around their positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter

from penstock.database.dialect import Row
from penstock.errors import (
    BackwardCommit,
    BeyondHighWatermark,
    InvalidArgument,
    LogBehind,
    PenstockError,
    StaleLease,
)
from penstock.testing.log import read
from penstock.testing.statements import one, refused, statement
from penstock.testing.store import MemoryTransaction
from penstock.testing.tables import (
    MAX_SEQUENCE,
    ConsumerRow,
    LeaseRow,
    SubscriptionRow,
    find_subscription,
    high_watermark,
    lock_lease,
    put_lease,
)
from penstock.topics.partition_ids import number_of

_MOST_POLLED = 100_000


@statement
def poll(
    tx: MemoryTransaction,
    *,
    subscription: str,
    consumer: str,
    partition_ids: Sequence[int],
    lease_epochs: Sequence[int],
    after: Sequence[int],
    max_events: int,
    max_each: int | None,
) -> list[Row]:
    """Events of held leases, each after its own position."""
    owner = find_subscription(tx, subscription)
    member: ConsumerRow | None = tx.get("consumers", (owner.subscription_id, consumer))
    if owner.paused or member is None or member.deadline <= tx.store.clock.now():
        return []
    found: list[Row] = []
    wanted = min(max(max_events, 1), _MOST_POLLED)
    most = wanted if max_each is None else max(max_each, 1)
    for partition_id, epoch, behind in zip(partition_ids, lease_epochs, after, strict=True):
        lease = tx.get("leases", (owner.subscription_id, partition_id))
        if lease is None or (lease.holder, lease.lease_epoch) != (consumer, epoch):
            continue
        high = high_watermark(tx, partition_id)
        if high < behind:
            raise refused(
                LogBehind,
                f"sequence {behind} of partition {number_of(partition_id)} was read, "
                f"but the log ends at {high}",
            )
        wanted_here = min(wanted - len(found), most)
        rows = read(tx, partition_id, min(behind, MAX_SEQUENCE) + 1, wanted_here)
        found.extend((partition_id, *row) for row in rows)
    return found


@statement
def commit(
    tx: MemoryTransaction,
    *,
    subscription: str,
    consumer: str,
    partition_ids: Sequence[int],
    lease_epochs: Sequence[int],
    positions: Sequence[int],
    after: Sequence[int] | None,
) -> list[Row]:
    """Moves positions forward, all or none, fenced by the leases, in the caller's transaction."""
    owner = find_subscription(tx, subscription)
    read_behind: Sequence[int | None] = [None] * len(partition_ids) if after is None else after
    lengths = {len(each) for each in (partition_ids, lease_epochs, positions, read_behind)}
    if len(lengths) != 1 or not partition_ids:
        raise refused(
            InvalidArgument, "a commit needs a lease_epoch and a position for each partition"
        )
    if len(set(partition_ids)) != len(partition_ids):
        raise refused(InvalidArgument, "a commit names a partition twice")
    given = zip(partition_ids, lease_epochs, positions, read_behind, strict=True)
    wanted = sorted(given, key=itemgetter(0))
    leases = held(tx, owner, consumer, [(each[0], each[1]) for each in wanted])
    for lease, (_, _, position, behind) in zip(leases, wanted, strict=True):
        move(tx, lease, position, behind)
    return one(None)


def held(
    tx: MemoryTransaction, owner: SubscriptionRow, consumer: str, wanted: Sequence[tuple[int, int]]
) -> list[LeaseRow]:
    """The fence: locks the leases until the transaction ends.  Raises StaleLease if one is lost."""
    places = [(owner.subscription_id, partition_id) for partition_id, _ in wanted]
    leases = [lease for place in places if (lease := lock_lease(tx, place)) is not None]
    present = [each.lease_epoch for each in leases if each.holder == consumer]
    member: ConsumerRow | None = tx.get("consumers", (owner.subscription_id, consumer))
    now = tx.store.clock.now()
    if present != [epoch for _, epoch in wanted] or member is None or member.deadline <= now:
        tx.store.next("rejected_commits")
        raise refused(
            StaleLease, f'consumer "{consumer}" no longer holds these leases of "{owner.name}"'
        )
    tx.limit(member.deadline - now)
    return leases


def move(tx: MemoryTransaction, lease: LeaseRow, position: int, behind: int | None) -> None:
    """Set the position of a lease that is held.  Refuses one that is not ahead."""
    problem = _problem(tx, lease, position, behind)
    if problem is not None:
        raise problem
    now, epoch = tx.store.clock.now(), lease.lease_epoch
    put_lease(tx, replace(lease, position=position, moved_at=now, moved_epoch=epoch))


def _problem(
    tx: MemoryTransaction, lease: LeaseRow, position: int, behind: int | None
) -> PenstockError | None:
    where = f"partition {number_of(lease.partition_id)}"
    high = high_watermark(tx, lease.partition_id)
    if position <= lease.position:
        return refused(
            BackwardCommit, f"position {position} of {where} is not after {lease.position}"
        )
    if behind is not None and behind != lease.position:
        return refused(
            BackwardCommit,
            f"{where} stands at {lease.position}, but the events were read after {behind}",
        )
    if position > high:
        return refused(BeyondHighWatermark, f"position {position} of {where} is beyond {high}")
    return None
