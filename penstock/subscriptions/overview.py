"""Subscriptions for an operator: list, describe and pause them, and see who works on what."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock import database
from penstock.records import as_time
from penstock.topics import validation


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription's topics and times, in seconds; ``paused_at`` is None while it runs.

    ``dead_letters_to``: the topic that its dead letters are published to; ``dead_letters_origin``:
    who has set that, ``hand``, or ``file`` and the name of the policy file.  Nothing goes there
    while ``dead_letters_problem`` says why: who has set it lost a right.
    """

    name: str
    mode: str
    topics: tuple[str, ...]
    heartbeat_seconds: float
    lease_seconds: float
    release_seconds: float
    max_consumers: int
    created_at: datetime
    paused_at: datetime | None
    paused_by: str | None
    paused_reason: str | None
    dead_letters_to: str | None = None
    dead_letters_origin: str | None = None
    dead_letters_problem: str | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A consumer of a subscription; ``topics`` is None when it has named none."""

    subscription: str
    consumer: str
    weight: float
    topics: tuple[str, ...] | None
    joined_at: datetime
    heartbeat_at: datetime
    deadline: datetime
    live: bool
    leases: int
    last_error: str | None
    last_error_at: datetime | None


@dataclass(frozen=True, slots=True)
class Skip:
    """What retention removed before a subscription had read it; ``unread``: it stands there still.

    ``reason`` is ``max_lag``: its policy ``max_lag_seconds`` says that retention does not wait for
    longer; ``max_bytes``: the topic held ``size_bytes``, more than its limit of ``limit_bytes``; or
    ``passed``: it was gone when a queue came to it.
    """

    subscription: str
    topic: str
    partition: int
    log_epoch: int
    first_sequence: int
    last_sequence: int
    max_lag_seconds: float
    skipped_at: datetime
    unread: bool
    reason: str
    limit_bytes: int | None
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class Removal:
    """A removed subscription that has left rows, and for how long none of them was deleted.

    ``rows_left`` of 1,000 means that many or more.
    """

    subscription: str
    removed_at: datetime
    rows_left: int
    idle_seconds: float


@dataclass(frozen=True, slots=True)
class LeasedCursor:
    """A partition that is held; ``deadline`` is that of its holder."""

    subscription: str
    topic: str
    partition: int
    holder: str
    state: str
    lease_epoch: int
    position: int
    high_watermark: int
    lag_events: int
    acquired_at: datetime
    deadline: datetime | None
    release_deadline: datetime | None


@dataclass(frozen=True, slots=True)
class Statistics:
    """The figures of a subscription; ``moves`` and ``take_overs`` are those of the last hour."""

    subscription: str
    heartbeat_seconds: float
    active_partitions: int
    active_consumers: int
    active_weight: float
    moves: int
    take_overs: int
    changed_at: datetime | None
    paused_at: datetime | None


#: The index of the first time in the row of a leased cursor.
_TIMES_FROM = 9


def list_subscriptions(
    connection: Any,
    namespace: str = "",
    *,
    mode: str = "",
    after: str = "",
    max_rows: int | None = None,
) -> list[Subscription]:
    """Those that the login may see, by name; all below a namespace and of a mode, if one is given.

    In the order of their names: those that come ``after`` one, and at most ``max_rows``.
    """
    binds = {"of_mode": mode, "namespace": namespace, "after": after, "max_rows": max_rows}
    return [_subscription(row) for row in database.call(connection, "list_subscriptions", **binds)]


def describe_subscription(connection: Any, subscription: str) -> Subscription:
    """One of them.  SubscriptionNotFound when there is none of the name."""
    validation.name(subscription, "subscription")
    rows = database.call(connection, "describe_subscription", subscription=subscription)
    return _subscription(rows[0])


def pause(connection: Any, subscription: str, reason: str = "") -> bool:
    """Hand out no lease from now on; returns False when the subscription was paused already.

    In that case the reason replaces the earlier one.  Polls return no events.  A consumer may still
    commit the events that it has, until it gives the lease back.
    """
    validation.name(subscription, "subscription")
    rows = database.call(connection, "pause_subscription", subscription=subscription, reason=reason)
    return bool(rows[0][0])


def resume(connection: Any, subscription: str) -> bool:
    """Hand out leases again.  Returns False when the subscription was not paused."""
    validation.name(subscription, "subscription")
    rows = database.call(connection, "resume_subscription", subscription=subscription)
    return bool(rows[0][0])


def members(connection: Any, subscription: str | None = None) -> list[Member]:
    """The consumers of one subscription, or of all."""
    rows = database.call(connection, "subscription_consumers", subscription=subscription)
    return [
        Member(
            name, consumer, weight, None if topics is None else tuple(sorted(topics)),
            as_time(joined), as_time(heartbeat), as_time(deadline), bool(live), int(leases),
            error, _time(error_at),
        )
        for name, consumer, weight, topics, joined, heartbeat, deadline, live, leases, error,
            error_at in rows
    ]  # fmt: skip


def unleased_cursors(connection: Any, subscription: str | None = None) -> list[Lag]:
    """What can be leased: partitions with unread events that no consumer holds."""
    rows = database.call(connection, "unleased_cursors", subscription=subscription)
    return [Lag(*row) for row in rows]


def leased_cursors(connection: Any, subscription: str | None = None) -> list[LeasedCursor]:
    """The partitions that are held, and who holds each."""
    rows = database.call(connection, "leased_cursors", subscription=subscription)
    return [
        LeasedCursor(
            name, topic, partition, holder, state, epoch, position, watermark, lag,
            as_time(acquired), _time(deadline), _time(release),
        )
        for name, topic, partition, holder, state, epoch, position, watermark, lag, acquired,
            deadline, release in rows
    ]  # fmt: skip


def statistics(connection: Any, subscription: str | None = None) -> list[Statistics]:
    """The figures of one subscription, or of all."""
    rows = database.call(connection, "subscription_statistics", subscription=subscription)
    return [
        Statistics(name, beat, active, consumers, weight, int(moves), int(lost), _time(changed),
                   _time(paused))
        for name, beat, active, consumers, weight, moves, lost, changed, paused in rows
    ]  # fmt: skip


def _subscription(row: tuple[Any, ...]) -> Subscription:
    name, mode, topics, heartbeat, lease, release, max_consumers, created_at, paused_at, *rest = row
    return Subscription(
        name, mode, tuple(sorted(topics)), heartbeat, lease, release, max_consumers,
        as_time(created_at), _time(paused_at), *rest,
    )  # fmt: skip


def _time(value: Any) -> datetime | None:
    return None if value is None else as_time(value)


@dataclass(frozen=True, slots=True)
class Lag:
    """Where a subscription stands on one partition, and who holds it."""

    subscription: str
    topic: str
    partition: int
    position: int
    high_watermark: int
    lag_events: int
    lag_seconds: float
    state: str
    holder: str | None
    lease_epoch: int


def lag(connection: Any, subscription: str | None = None) -> list[Lag]:
    """Position, lag and holder of every partition, of one subscription or of all."""
    rows = database.call(connection, "subscription_lag", subscription=subscription)
    return [Lag(*row) for row in rows]


def rejected_commits(connection: Any) -> int | None:
    """How many commits the fence has refused, of all consumers.

    None for a login whose view is limited by rights in namespaces.
    """
    found = database.call(connection, "rejected_commits")[0][0]
    return None if found is None else int(found)


def take_overs(connection: Any, subscription: str) -> int:
    """How often a consumer got a lease because its holder's time had run out."""
    return int(database.call(connection, "take_overs", subscription=subscription)[0][0])


def removals(connection: Any) -> list[Removal]:
    """Removed subscriptions of which the sweep has something to delete still, the oldest first."""
    rows = database.call(connection, "list_removals")
    return [Removal(row[0], as_time(row[1]), int(row[2]), float(row[3])) for row in rows]


def skips(connection: Any, subscription: str | None = None) -> list[Skip]:
    """What retention removed before it was read: of one subscription, or of all."""
    rows = database.call(connection, "list_skips", subscription=subscription)
    return [Skip(*row) for row in rows]
