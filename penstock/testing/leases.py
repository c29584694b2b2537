"""The members of a subscription, and which partitions each holds, in a log in memory."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from penstock.database.dialect import Row
from penstock.errors import DuplicateSession, InvalidArgument, UnknownConsumer
from penstock.leases import shares as fair_share
from penstock.testing.dead_letters import redriven_in
from penstock.testing.statements import one, refused, statement
from penstock.testing.store import MemoryTransaction
from penstock.testing.tables import (
    HISTORY,
    ConsumerRow,
    LeaseRow,
    Place,
    SubscriptionRow,
    find_stream,
    find_subscription,
    high_watermark,
    leases_of,
    lock_lease,
    put_lease,
    require_reads,
    topics_by_id,
)
from penstock.topics import validation
from penstock.topics.partition_ids import number_of, topic_of

LOWEST_WEIGHT, HIGHEST_WEIGHT = 0.001, 1000.0
#: A partition without events keeps its lease for so long.
STAYS_ACTIVE = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class LeaseChange:
    """Table lease_history."""

    place: Place
    lease_epoch: int
    holder: str
    change: str


@statement
def join(
    tx: MemoryTransaction,
    *,
    subscription: str,
    consumer: str,
    session: uuid.UUID,
    weight: float,
    topics: Sequence[str] | None,
) -> list[Row]:
    """Makes a consumer a member of a subscription."""
    owner = find_stream(tx, subscription)
    if topics is not None and not topics:
        raise refused(InvalidArgument, "the list of topics of the consumer is empty")
    listed = (
        None
        if topics is None
        else frozenset(require_reads(tx, owner, validation.topic(each)) for each in topics)
    )
    if not 1 <= len(consumer) <= validation.MAX_CONSUMER_ID:
        raise refused(InvalidArgument, "the id of the consumer is empty or too long")
    if not LOWEST_WEIGHT <= weight <= HIGHEST_WEIGHT:
        raise refused(InvalidArgument, f"weight cannot be {weight}")
    tx.lock(("subscription", subscription))
    owner = find_subscription(tx, subscription)
    tx.lock(("consumer", (owner.subscription_id, consumer)))
    now = tx.store.clock.now()
    members = consumers_of(tx, owner)
    present = members.get(consumer)
    if present is not None and present.session != session and present.deadline > now:
        raise refused(DuplicateSession, f'consumer "{consumer}" is already running')
    most = owner.settings["max_consumers"]
    if present is None and len(members) >= most:
        raise refused(
            InvalidArgument,
            f'subscription "{subscription}" has {most} consumers already, its limit',
        )
    if _give_up(tx, owner, consumer, "expired") > 0:
        raise refused(
            DuplicateSession, f'an earlier run of "{consumer}" has not ended its transaction'
        )
    row = ConsumerRow(consumer, session, float(weight), now + owner.lease_time, listed)
    tx.put("consumers", (owner.subscription_id, consumer), row)
    return [(owner.settings["heartbeat_seconds"], owner.settings["lease_seconds"], HISTORY)]


@statement
def heartbeat(
    tx: MemoryTransaction, subscription: str, consumer: str, session: uuid.UUID
) -> list[Row]:
    """Keeps a consumer a member."""
    _extend(tx, find_subscription(tx, subscription), consumer, session)
    return one(None)


@statement
def heartbeats(
    tx: MemoryTransaction,
    subscriptions: Sequence[str],
    consumers: Sequence[str],
    sessions: Sequence[uuid.UUID],
) -> list[Row]:
    """The same for all consumers of a process.  It tells each to check in, which is cheap here."""
    given = zip(subscriptions, consumers, sessions, strict=True)
    return [(place, _beat(tx, *each), 0.0, 0.0) for place, each in enumerate(given, 1)]


@statement
def heartbeats_alone(
    tx: MemoryTransaction,
    subscriptions: Sequence[str],
    consumers: Sequence[str],
    sessions: Sequence[uuid.UUID],
) -> list[Row]:
    """The same as heartbeats: there is no disk to wait for."""
    return heartbeats(tx, subscriptions, consumers, sessions)


@statement
def check_in(
    tx: MemoryTransaction, subscription: str, consumer: str, session: uuid.UUID, fresh: bool
) -> list[Row]:
    """Keeps a consumer a member, and gives and takes leases.  It always looks for new events."""
    tx.lock(("subscription", subscription))
    owner = find_subscription(tx, subscription)
    _extend(tx, owner, consumer, session)
    _collect_dead(tx, owner)
    if owner.paused:
        for lease in leases_of(tx, owner.subscription_id):
            if lease.holder == consumer:
                _ask_back(tx, owner, lease, tx.store.clock.now())
    else:
        _share_out(tx, owner, consumer)
    return held_leases(tx, subscription, consumer)


@statement
def held_leases(tx: MemoryTransaction, subscription: str, consumer: str) -> list[Row]:
    """The leases that a consumer holds."""
    owner, topics = find_subscription(tx, subscription), topics_by_id(tx)
    return [
        (
            topics[topic_of(lease.partition_id)].address, number_of(lease.partition_id),
            lease.partition_id, lease.lease_epoch, lease.state, lease.position, HISTORY,
        )
        for lease in leases_of(tx, owner.subscription_id)
        if lease.holder == consumer
    ]  # fmt: skip


@statement
def release(
    tx: MemoryTransaction,
    subscription: str,
    consumer: str,
    partition_ids: Sequence[int],
    lease_epochs: Sequence[int],
) -> list[Row]:
    """Gives leases back.  Returns how many were still held."""
    owner = find_subscription(tx, subscription)
    freed = 0
    for partition_id, lease_epoch in sorted(zip(partition_ids, lease_epochs, strict=True)):
        lease = lock_lease(tx, (owner.subscription_id, partition_id))
        if lease is not None and (lease.holder, lease.lease_epoch) == (consumer, lease_epoch):
            _free(tx, lease, "released")
            freed += 1
    return one(freed)


@statement
def leave(tx: MemoryTransaction, subscription: str, consumer: str, session: uuid.UUID) -> list[Row]:
    """Ends a membership.  A later check-in frees the leases that a transaction still locks."""
    owner = find_subscription(tx, subscription)
    place = owner.subscription_id, consumer
    tx.lock(("consumer", place))
    present: ConsumerRow | None = tx.get("consumers", place)
    if present is None or present.session != session:
        return one(None)
    if _give_up(tx, owner, consumer, "released") == 0:
        tx.delete("consumers", place)
    else:
        now = tx.store.clock.now()
        tx.put("consumers", place, replace(present, deadline=min(present.deadline, now)))
    return one(None)


@statement
def report_error(
    tx: MemoryTransaction, subscription: str, consumer: str, session: uuid.UUID, error: str
) -> list[Row]:
    """Does nothing: here nothing reads the last error of a consumer."""
    owner = find_subscription(tx, subscription)
    member = consumers_of(tx, owner).get(consumer)
    if member is None or member.session != session:
        raise refused(UnknownConsumer, f'consumer "{consumer}" is not a member of "{subscription}"')
    return one(None)


@statement
def sweep(tx: MemoryTransaction, max_rows: int) -> list[Row]:
    """Collects consumers whose lease time is over, where no consumer checks in any more."""
    expired = locked = 0
    for owner in list(tx.rows("subscriptions").values())[:max_rows]:
        if tx.lock(("subscription", owner.name), wait=False):
            here = _collect_dead(tx, owner)
            expired, locked = expired + here[0], locked + here[1]
    return [(expired, locked)]


@statement
def sweep_staged(tx: MemoryTransaction, max_age_seconds: float, max_rows: int) -> list[Row]:
    """Does nothing: here nobody stages events."""
    return one(0)


def consumers_of(tx: MemoryTransaction, owner: SubscriptionRow) -> dict[str, ConsumerRow]:
    """The members of a subscription, including dead ones that are not collected yet."""
    return {
        each.name: each
        for place, each in sorted(tx.rows("consumers").items())
        if place[0] == owner.subscription_id
    }


def _extend(
    tx: MemoryTransaction, owner: SubscriptionRow, consumer: str, session: uuid.UUID
) -> None:
    place = owner.subscription_id, consumer
    tx.lock(("consumer", place))
    present: ConsumerRow | None = tx.get("consumers", place)
    if present is None or present.session != session:
        raise refused(UnknownConsumer, f'consumer "{consumer}" is not a member of "{owner.name}"')
    deadline = tx.store.clock.now() + owner.lease_time
    tx.put("consumers", place, replace(present, deadline=deadline))


def _beat(tx: MemoryTransaction, subscription: str, consumer: str, session: uuid.UUID) -> str:
    """Whether it is still a member, is gone, or a transaction has locked its row."""
    owner: SubscriptionRow | None = tx.get("subscriptions", subscription)
    member = consumers_of(tx, owner).get(consumer) if owner else None
    if owner is None or member is None or member.session != session:
        return "gone"
    if not tx.lock(("consumer", (owner.subscription_id, consumer)), wait=False):
        return "locked"
    _extend(tx, owner, consumer, session)
    return "member"


def _collect_dead(tx: MemoryTransaction, owner: SubscriptionRow) -> tuple[int, int]:
    """Returns the consumers that were removed, and the leases that stay because they are locked."""
    now = tx.store.clock.now()
    expired = locked = 0
    for name, member in consumers_of(tx, owner).items():
        place = owner.subscription_id, name
        if member.deadline <= now and tx.lock(("consumer", place), wait=False):
            blocked = _give_up(tx, owner, name, "expired")
            locked += blocked
            if blocked == 0:
                tx.delete("consumers", place)
                expired += 1
    for lease in leases_of(tx, owner.subscription_id):
        if lease.release_deadline is not None and lease.release_deadline <= now:
            held = lock_lease(tx, lease.place, wait=False)
            if held is not None and held.state == "RELEASING":
                _free(tx, held, "expired")
    return expired, locked


def _give_up(tx: MemoryTransaction, owner: SubscriptionRow, consumer: str, change: str) -> int:
    """Frees the leases of a consumer.  Returns how many of them a transaction has locked."""
    blocked = 0
    for lease in leases_of(tx, owner.subscription_id):
        if lease.holder == consumer:
            if lock_lease(tx, lease.place, wait=False) is None:
                blocked += 1
            else:
                _free(tx, lease, change)
    return blocked


def _free(tx: MemoryTransaction, lease: LeaseRow, change: str) -> None:
    _note(tx, lease, change)
    put_lease(
        tx, replace(lease, state="AVAILABLE", holder=None, acquired_at=None, release_deadline=None)
    )


def _note(tx: MemoryTransaction, lease: LeaseRow, change: str) -> None:
    row = LeaseChange(lease.place, lease.lease_epoch, lease.holder or "", change)
    tx.put("lease_history", tx.store.next("lease_history"), row)


def _share_out(tx: MemoryTransaction, owner: SubscriptionRow, consumer: str) -> None:
    """Shares the partitions out.  Topics that the same consumers take are shared out together."""
    members = consumers_of(tx, owner)
    leases = leases_of(tx, owner.subscription_id)
    groups: dict[frozenset[str], list[LeaseRow]] = {}
    for lease in leases:
        topic_id = topic_of(lease.partition_id)
        takers = frozenset(name for name, each in members.items() if each.takes(topic_id))
        groups.setdefault(takers, []).append(lease)
    for takers, board in groups.items():
        if consumer in takers:
            weights = {name: members[name].weight for name in sorted(takers)}
            _share_group(tx, owner, consumer, weights, {each.partition_id: each for each in board})


def _share_group(
    tx: MemoryTransaction,
    owner: SubscriptionRow,
    consumer: str,
    weights: dict[str, float],
    board: dict[int, LeaseRow],
) -> None:
    """Asks back leases that are too many or have no events, and takes the missing ones."""
    now = tx.store.clock.now()
    redriven = redriven_in(tx)
    backlogs = {
        each: high_watermark(tx, each) - lease.position + redriven.get(lease.place, 0)
        for each, lease in board.items()
    }
    active = {each for each in board if backlogs[each] > 0 or _is_warm(board[each], now)}
    shares = fair_share.quotas(weights, len(active))
    holders = {
        each: board[each].holder if board[each].state == "ACTIVE" else None for each in active
    }
    cold = [
        each for each, lease in board.items()
        if each not in active and lease.state == "ACTIVE" and lease.holder == consumer
    ]  # fmt: skip
    for partition_id in cold + fair_share.to_release(consumer, holders, shares, backlogs):
        _ask_back(tx, owner, board[partition_id], now)
    takable = {each: holder for each, holder in holders.items() if board[each].state != "RELEASING"}
    for partition_id in fair_share.to_acquire(consumer, takable, shares, tx.store.random.random()):
        _acquire(tx, board[partition_id], consumer, now)


def _is_warm(lease: LeaseRow, now: datetime) -> bool:
    """Whether a lease is held, and was taken or read from a short time ago."""
    if lease.holder is None or lease.acquired_at is None:
        return False
    return max(lease.acquired_at, lease.moved_at or lease.acquired_at) > now - STAYS_ACTIVE


def _ask_back(tx: MemoryTransaction, owner: SubscriptionRow, seen: LeaseRow, now: datetime) -> None:
    lease = lock_lease(tx, seen.place, wait=False)
    if lease is not None and lease.state == "ACTIVE" and lease.holder == seen.holder:
        until = now + timedelta(seconds=owner.settings["release_seconds"])
        _note(tx, lease, "releasing")
        put_lease(tx, replace(lease, state="RELEASING", release_deadline=until))


def _acquire(tx: MemoryTransaction, seen: LeaseRow, consumer: str, now: datetime) -> None:
    lease = lock_lease(tx, seen.place, wait=False)
    if lease is not None and lease.state == "AVAILABLE":
        taken = replace(
            lease, state="ACTIVE", holder=consumer, lease_epoch=lease.lease_epoch + 1,
            acquired_at=now, release_deadline=None,
        )  # fmt: skip
        put_lease(tx, taken)
        _note(tx, taken, "acquired")
