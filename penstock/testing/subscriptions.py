"""Subscriptions of a log in memory, and their positions."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from penstock.database.dialect import Row
from penstock.errors import BeyondHighWatermark, InvalidArgument, WrongMode
from penstock.subscriptions import policies
from penstock.testing.log import sequenced_at
from penstock.testing.statements import NotInMemory, one, refused, statement
from penstock.testing.store import MemoryTransaction
from penstock.testing.tables import (
    HISTORY,
    LeaseRow,
    Place,
    SubscriptionRow,
    find_partition,
    find_stream,
    find_subscription,
    find_topic,
    high_watermark,
    leases_of,
    lock_lease,
    put_lease,
    require_reads,
    topics_by_id,
)
from penstock.topics.partition_ids import number_of, topic_of

_SEQUENCE = re.compile(r"[1-9][0-9]{0,17}")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:?\d\d)", re.ASCII)


@statement
def subscribe(
    tx: MemoryTransaction, subscription: str, topics: Sequence[str], start: str
) -> list[Row]:
    """Creates a subscription, or adds topics to it.  Returns how many topics were new."""
    return one(subscribed(tx, subscription, topics, start, "stream"))


def subscribed(
    tx: MemoryTransaction, subscription: str, topics: Sequence[str], start: str, mode: str
) -> int:
    """The same in a mode, which a subscription keeps."""
    if not topics:
        raise refused(InvalidArgument, "the subscription names no topic")
    for address in sorted(set(topics)):
        tx.lock(("topic", address))
        find_topic(tx, address)
    tx.lock(("subscription", subscription))
    owner = tx.get("subscriptions", subscription) or _created(tx, subscription, mode)
    if owner.mode != mode:
        raise refused(WrongMode, f'subscription "{subscription}" is in mode {owner.mode}')
    added = 0
    for address in sorted(set(topics)):
        topic = find_topic(tx, address)
        place = owner.subscription_id, topic.topic_id
        if tx.get("subscription_topics", place) is not None:
            continue
        added += 1
        tx.put("subscription_topics", place, True)
        for partition_id in topic.partition_ids():
            position = _start_position(tx, partition_id, start)
            put_lease(tx, LeaseRow(owner.subscription_id, partition_id, position))
    return added


@statement
def configure_subscription(
    tx: MemoryTransaction,
    subscription: str,
    heartbeat_seconds: float,
    lease_seconds: float,
    release_seconds: float,
) -> list[Row]:
    """Sets the times of a subscription."""
    wanted = {
        "heartbeat_seconds": heartbeat_seconds,
        "lease_seconds": lease_seconds,
        "release_seconds": release_seconds,
    }
    _configure(tx, subscription, policies.check("heartbeat", wanted))
    return one(None)


@statement
def set_policy(
    tx: MemoryTransaction, *, kind: str, scope: str, name: str, settings: str, origin: str
) -> list[Row]:
    """Sets a whole policy of a subscription.  Here it inherits no policy."""
    if scope != "subscription":
        raise NotInMemory(
            f"the log in memory has no policies of a {scope}", hint="set it for each subscription"
        )
    wanted = policies.check(kind, json.loads(settings))
    return one(_configure(tx, name, _presets(kind) | wanted).policy_version)


@statement
def subscription_policy(tx: MemoryTransaction, subscription: str) -> list[Row]:
    """The policies in force for a subscription."""
    owner = find_subscription(tx, subscription)
    return [(owner.policy_version, *(owner.settings[name] for name in _presets(*_OF_CONSUMERS)))]


@statement
def unsubscribe(tx: MemoryTransaction, subscription: str) -> list[Row]:
    """Removes a subscription with its leases."""
    tx.lock(("subscription", subscription))
    owner = find_subscription(tx, subscription)
    for lease in leases_of(tx, owner.subscription_id):
        lock_lease(tx, lease.place)
    for table in _OF_SUBSCRIPTIONS:
        for place in tx.rows(table):
            if place[0] == owner.subscription_id:
                tx.delete(table, place)
    tx.delete("queues", owner.subscription_id)
    tx.delete("subscriptions", subscription)
    return one(None)


@statement
def position(tx: MemoryTransaction, subscription: str, topic: str) -> list[Row]:
    """The positions of a subscription on a topic."""
    owner = find_subscription(tx, subscription)
    leases = {each.partition_id: each for each in leases_of(tx, owner.subscription_id)}
    return [
        (number_of(each), leases[each].position if each in leases else None, HISTORY)
        for each in find_topic(tx, topic).partition_ids()
    ]


@statement
def seek(
    tx: MemoryTransaction, subscription: str, topic: str, partition: int, start: str
) -> list[Row]:
    """Sets the position of one partition and takes the lease from its holder."""
    owner = find_stream(tx, subscription)
    partition_id = find_partition(tx, topic, partition)
    tx.lock(("topic", topic))
    require_reads(tx, owner, topic)
    return one(_move(tx, (owner.subscription_id, partition_id), start))


@statement
def reset_subscription(
    tx: MemoryTransaction, subscription: str, start: str, topic: str | None
) -> list[Row]:
    """Sets the positions of a subscription, or of its partitions of one topic."""
    owner = find_stream(tx, subscription)
    only = None if topic is None else require_reads(tx, owner, topic)
    topics = topics_by_id(tx)
    return [
        (
            topics[topic_of(lease.partition_id)].address,
            number_of(lease.partition_id),
            _move(tx, lease.place, start),
        )
        for lease in leases_of(tx, owner.subscription_id)
        if only in {None, topic_of(lease.partition_id)}
    ]


@statement
def pause_subscription(tx: MemoryTransaction, subscription: str, reason: str) -> list[Row]:
    """Hands out no leases from now on.  Returns whether it was running."""
    return one(not _pause(tx, subscription, paused=True))


@statement
def resume_subscription(tx: MemoryTransaction, subscription: str) -> list[Row]:
    """Hands out leases again.  Returns whether it was paused."""
    return one(_pause(tx, subscription, paused=False))


@statement
def subscription_lag(tx: MemoryTransaction, subscription: str | None) -> list[Row]:
    """Positions, lag and holders, of one subscription or of all."""
    topics = topics_by_id(tx)
    found = [
        (owner.name, topics[topic_of(lease.partition_id)].address, *_lag(tx, lease))
        for owner in tx.rows("subscriptions").values()
        if subscription in {None, owner.name}
        for lease in leases_of(tx, owner.subscription_id)
    ]
    return sorted(found, key=lambda row: row[:3])


@statement
def rejected_commits(tx: MemoryTransaction) -> list[Row]:
    """How many commits the fence has refused."""
    return one(tx.store.counters["rejected_commits"])


@statement
def take_overs(tx: MemoryTransaction, subscription: str) -> list[Row]:
    """How often a lease changed its holder because the holder's lease time was over."""
    owner: SubscriptionRow | None = tx.get("subscriptions", subscription)
    changes = tx.rows("lease_history").values()
    lost = {
        (*each.place, each.lease_epoch + 1): each.holder
        for each in changes
        if each.change == "expired" and owner and each.place[0] == owner.subscription_id
    }
    return one(
        sum(
            lost.get((*each.place, each.lease_epoch), each.holder) != each.holder
            for each in changes
            if each.change == "acquired"
        )
    )


@statement
def report_positions(
    tx: MemoryTransaction,
    *,
    partition_ids: Sequence[int],
    sequences: Sequence[int],
    histories: Sequence[int],
    source: str,
    subscription: str | None,
) -> list[Row]:
    """Takes what others have seen of some partitions.  A log in memory never loses any of it."""
    topics = topics_by_id(tx)
    return [
        (each, seen > high_watermark(tx, each), high_watermark(tx, each), HISTORY)
        for each, seen in zip(partition_ids, sequences, strict=True)
        if topic_of(each) in topics
    ]


#: Tables whose keys begin with the id of a subscription.
_OF_SUBSCRIPTIONS = (
    *("leases", "consumers", "subscription_topics", "attempts", "dead_letters", "queue_events"),
)
#: The kinds of policies that consumers go by. Nothing is removed here, so nobody goes by `keep`.
_OF_CONSUMERS = ("heartbeat", "lease", "metrics", "retry")


def _created(tx: MemoryTransaction, name: str, mode: str) -> SubscriptionRow:
    row = SubscriptionRow(tx.store.next("subscriptions"), name, _presets(), mode=mode)
    tx.put("subscriptions", name, row)
    return row


def _presets(*kinds: str) -> dict[str, float | str]:
    """The settings of some kinds of policies, or of all."""
    return {
        name: setting.preset
        for kind in kinds or policies.SETTINGS
        for name, setting in policies.SETTINGS[kind].items()
    }


def _configure(
    tx: MemoryTransaction, name: str, wanted: Mapping[str, float | str]
) -> SubscriptionRow:
    tx.lock(("subscription", name))
    owner = find_subscription(tx, name)
    row = replace(
        owner, settings={**owner.settings, **wanted}, policy_version=owner.policy_version + 1
    )
    tx.put("subscriptions", name, row)
    return row


def _start_position(tx: MemoryTransaction, partition_id: int, start: str) -> int:
    high = high_watermark(tx, partition_id)
    if start == "earliest":
        return 0
    if start == "latest":
        return high
    if not _SEQUENCE.fullmatch(start):
        return _before(tx, partition_id, _time(tx, start))
    if int(start) > high + 1:
        raise refused(BeyondHighWatermark, f"sequence {start} is beyond the high watermark {high}")
    return int(start) - 1


def _time(tx: MemoryTransaction, start: str) -> datetime:
    if _TIME.fullmatch(start):
        with contextlib.suppress(ValueError):  # there is no such day, or hour
            found = datetime.fromisoformat(start)
            if found <= tx.store.clock.now():
                return found
    raise refused(InvalidArgument, f'a subscription cannot start at "{start[:100]}"')


def _before(tx: MemoryTransaction, partition_id: int, since: datetime) -> int:
    """The position before the first event that was sequenced at a time or later."""
    high = high_watermark(tx, partition_id)
    for number in range(1, high + 1):
        at = sequenced_at(tx, partition_id, number)
        if at is not None and at >= since:
            return number - 1
    return high


def _move(tx: MemoryTransaction, place: Place, start: str) -> int:
    """Sets a position and takes the lease from its holder."""
    lease = lock_lease(tx, place)
    assert lease is not None
    position, epoch = _start_position(tx, lease.partition_id, start), lease.lease_epoch + 1
    put_lease(tx, LeaseRow(*place, position, epoch, moved_epoch=epoch))
    tx.delete("attempts", place)
    return position


def _pause(tx: MemoryTransaction, subscription: str, *, paused: bool) -> bool:
    """Sets the pause.  Returns whether it was paused before."""
    tx.lock(("subscription", subscription))
    owner = find_subscription(tx, subscription)
    tx.put("subscriptions", subscription, replace(owner, paused=paused))
    return owner.paused


def _lag(tx: MemoryTransaction, lease: LeaseRow) -> Row:
    high = high_watermark(tx, lease.partition_id)
    since = sequenced_at(tx, lease.partition_id, lease.position + 1)
    seconds = (tx.store.clock.now() - since).total_seconds() if since else 0.0
    return (
        number_of(lease.partition_id), lease.position, high, high - lease.position, seconds,
        lease.state, lease.holder, lease.lease_epoch,
    )  # fmt: skip
