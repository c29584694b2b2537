"""Stream subscriptions: the calls of the lease protocol, one function each.

:class:`penstock.Consumer` puts them together; use these to build a consumer of another kind.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from penstock import database
from penstock.database.steps import Call, Steps
from penstock.database.transactions import transaction_on
from penstock.errors import InvalidArgument
from penstock.log import restores
from penstock.log.starts import Start as Start, start_text
from penstock.records import Event, Lease
from penstock.topics import names, validation


@dataclass(frozen=True, slots=True)
class Membership:
    """A consumer's place in a subscription; the times are the subscription's, in seconds."""

    subscription: str
    consumer: str
    session: uuid.UUID
    heartbeat_seconds: float
    lease_seconds: float
    #: Another store keeps the leases: the database knows their holders by lease_epoch alone.
    elsewhere: bool = False

    @property
    def holder(self) -> str | None:
        """The holder of its leases, as the calls that are fenced by a lease name it."""
        return None if self.elsewhere else self.consumer


@dataclass(frozen=True, slots=True)
class Beat:
    """What a heartbeat returned for one consumer, in seconds.

    ``standing`` is "member", "gone" or "locked" (another transaction holds its row: beat again in a
    moment).  ``check_in_seconds`` says when to check in.  ``pace_seconds`` is the time between two
    check-ins of one consumer at which all of them together keep to the subscription's target_qps.
    """

    standing: str
    check_in_seconds: float
    pace_seconds: float


#: The columns of a poll's row that describe the event.
_behind_partition = itemgetter(slice(1, None))


def subscribe(
    connection: Any, subscription: str, topics: Iterable[str], start: Start = "earliest"
) -> int:
    """Create the subscription, or add topics to it.  Returns how many topics were new.

    ``start`` applies to new topics only.
    """
    validation.name(subscription, "subscription")
    rows = database.call(
        connection,
        "subscribe",
        subscription=subscription,
        topics=_addresses(topics),
        start=start_text(start),
    )
    return int(rows[0][0])


def configure_subscription(
    connection: Any,
    subscription: str,
    *,
    heartbeat_seconds: float = 3,
    lease_seconds: float = 10,
    release_seconds: float = 10,
) -> None:
    """Set the times of a subscription; a lease lasts at least three heartbeats."""
    database.call(
        connection,
        "configure_subscription",
        subscription=subscription,
        heartbeat_seconds=validation.number(heartbeat_seconds, "heartbeat"),
        lease_seconds=validation.number(lease_seconds, "lease time"),
        release_seconds=validation.number(release_seconds, "release time"),
    )


def unsubscribe(connection: Any, subscription: str) -> None:
    """Remove a subscription with its positions; events are no longer kept for it."""
    validation.name(subscription, "subscription")
    database.call(connection, "unsubscribe", subscription=subscription)


def join(
    connection: Any,
    subscription: str,
    consumer: str,
    weight: float = 1.0,
    *,
    topics: Iterable[str] | None = None,
    known: Iterable[Lease] = (),
) -> Membership:
    """Become a member.  DuplicateSession when the id is already running.

    With ``topics``, which the subscription reads, it is given only partitions of these.
    ``known`` are leases of an earlier membership, with the positions that were reached.  When the
    log was restored to a point before one of them, the partition is stopped and this raises
    LogBehind.  Leases of topics that are gone are ignored.
    """
    validation.name(subscription, "subscription")
    validation.name(consumer, "consumer")
    validation.number(weight, "weight")
    listed = None if topics is None else _addresses(topics)
    restores.require_leases(connection, known, f'consumer "{consumer}"', subscription)
    session = uuid.uuid4()
    heartbeat, lease, _ = database.call(
        connection,
        "join",
        subscription=subscription,
        consumer=consumer,
        session=session,
        weight=weight,
        topics=listed,
    )[0]
    return Membership(subscription, consumer, session, heartbeat, lease)


def heartbeat(connection: Any, member: Membership) -> None:
    """Keep a member and its leases alive.  UnknownConsumer when it has to join again."""
    database.call(connection, "heartbeat", **_identity(member))


def heartbeats(
    connection: Any, members: Sequence[Membership], *, alone: bool = False
) -> list[Beat]:
    """Keep many members alive by one statement.  A member that is gone raises no error.

    ``alone`` says that the connection commits by itself: on PostgreSQL that commit does not wait
    for the disk.  If a crash loses a heartbeat, a lease only ends early.
    """
    rows = database.call(
        connection,
        "heartbeats_alone" if alone else "heartbeats",
        subscriptions=[member.subscription for member in members],
        consumers=[member.consumer for member in members],
        sessions=[member.session for member in members],
    )
    return [Beat(standing, float(due), float(pace)) for _, standing, due, pace in sorted(rows)]


def check_in(connection: Any, member: Membership, *, fresh: bool = True) -> list[Lease]:
    """A heartbeat that also shares out the partitions.  Returns the leases that are now held.

    Unless ``fresh``, events that were sequenced in the last second may not count yet.
    """
    rows = database.call(connection, "check_in", **_identity(member), fresh=fresh)
    return [Lease(*row) for row in rows]


def held_leases(connection: Any, member: Membership) -> list[Lease]:
    """The leases that a consumer holds now, with the positions to read after; changes nothing."""
    rows = database.call(
        connection, "held_leases", subscription=member.subscription, consumer=member.consumer
    )
    return [Lease(*row) for row in rows]


def poll(
    connection: Any,
    member: Membership,
    leases: Sequence[Lease],
    max_events: int = 500,
    max_each: int | None = None,
) -> list[tuple[Lease, list[Event]]]:
    """Unread events after the position of each lease; a lease that was lost gives none.

    ``max_events`` limits all of them together, ``max_each`` each partition.
    """
    rows = database.call_events(
        connection,
        "poll",
        **lease_binds(member, leases),
        after=[lease.position for lease in leases],
        max_events=max_events,
        max_each=max_each,
    )
    by_id = {lease.partition_id: lease for lease in leases}
    polled = []
    for partition_id, found in groupby(rows, key=itemgetter(0)):
        lease = by_id[partition_id]
        events = map(_behind_partition, found)
        polled.append((lease, Event.from_rows(lease.topic, lease.partition, lease.history, events)))
    return polled


def commit(
    connection: Any,
    member: Membership,
    positions: Iterable[tuple[Lease, int]],
    *,
    after: Sequence[int] | None = None,
) -> None:
    """Move positions forward, all or none, in the transaction that the connection is in.

    Each position is the last sequence that is done.  ``after`` are the positions after which the
    events were read; the commit is refused when one of them has moved.  After StaleLease,
    BackwardCommit or BeyondHighWatermark nothing has moved: roll back what the same transaction
    wrote.
    """
    database.call(connection, "commit", **_commit_binds(member, list(positions), after))


def commit_steps(
    member: Membership, wanted: Sequence[tuple[Lease, int]], after: Sequence[int] | None
) -> Steps[None]:
    """The steps of :func:`commit`, for each kind of connection."""
    yield Call("commit", _commit_binds(member, wanted, after))


def _commit_binds(
    member: Membership, wanted: Sequence[tuple[Lease, int]], after: Sequence[int] | None
) -> dict[str, Any]:
    positions = [position for _, position in wanted]
    if not all(type(each) is int for each in positions):
        for each in positions:
            validation.position(each)
    binds = lease_binds(member, [lease for lease, _ in wanted])
    return binds | {"positions": positions, "after": after and list(after)}


def release(connection: Any, member: Membership, leases: Sequence[Lease]) -> int:
    """Give leases back.  Returns how many were still held."""
    rows = database.call(
        connection,
        "release",
        **lease_binds(member, leases),
    )
    return int(rows[0][0])


def leave(connection: Any, member: Membership) -> None:
    """End the membership; its leases are free at once."""
    database.call(connection, "leave", **_identity(member))


def position(connection: Any, subscription: str, topic: str) -> dict[int, int]:
    """The last sequence that is done, for every partition of a topic."""
    rows = database.call(connection, "position", subscription=subscription, topic=topic)
    return {partition: done for partition, done, _ in rows}


def note_archive_reads(connection: Any, subscription: str, leases: Sequence[Lease]) -> None:
    """Tell retention that the holder of these leases reads the archive.

    Below the low sequence retention waits for a subscription until its holder says so: what it
    removes then stays readable.  The next holder of a lease has to say so again.  A
    :class:`penstock.Consumer` with ``archive`` and a relay with targets do it by themselves.
    """
    database.call(
        connection,
        "note_archive_reads",
        subscription=subscription,
        partition_ids=[lease.partition_id for lease in leases],
        lease_epochs=[lease.lease_epoch for lease in leases],
    )


def report_error(connection: Any, member: Membership, text: str) -> None:
    """Record the member's last error, for `penstock status`; the next one replaces it.

    It is cut at 2,000 characters.  People read it, so it must hold no payloads and no secrets.
    """
    database.call(connection, "report_error", error=text, **_identity(member))


def seek(connection: Any, subscription: str, topic: str, partition: int, start: Start) -> int:
    """Move the position to another place.  Returns the new position.

    The present holder loses its lease: its later commits are refused as stale.
    """
    rows = database.call(
        connection,
        "seek",
        subscription=subscription,
        topic=topic,
        partition=partition,
        start=start_text(start),
    )
    return int(rows[0][0])


def reset(
    connection: Any, subscription: str, start: Start, *, topic: str | None = None
) -> dict[tuple[str, int], int]:
    """The same for all partitions, or those of one topic: all or none.  Returns their positions."""
    rows = database.call(
        connection,
        "reset_subscription",
        subscription=subscription,
        start=start_text(start),
        topic=topic,
    )
    return {(address, partition): done for address, partition, done in rows}


def replay_count(
    connection: Any, subscription: str, start: Start, *, topic: str | None = None
) -> dict[tuple[str, int], int]:
    """How many events each partition would have to read after :func:`reset`; changes nothing.

    The reset is made and rolled back, so it has the same errors.  Needs a connection outside of a
    transaction.
    """
    try:
        with transaction_on(connection):
            raise _Undone(reset(connection, subscription, start, topic=topic))
    except _Undone as undone:
        positions = undone.positions
    ends = {
        (address, each.partition): each.high_watermark
        for address in {address for address, _ in positions}
        for each in names.partition_ranges(connection, address)
    }
    return {place: ends[place] - position for place, position in positions.items()}


class _Undone(Exception):
    """Takes back a reset that was made to see where it leads."""

    def __init__(self, positions: dict[tuple[str, int], int]) -> None:
        super().__init__()
        self.positions = positions


def _addresses(topics: Iterable[str]) -> list[str]:
    if isinstance(topics, str) or not isinstance(topics, Iterable):
        raise InvalidArgument(f"topics is a {type(topics).__name__}", hint="give a list of topics")
    return [validation.topic(each) for each in topics]


def lease_binds(member: Membership, leases: Sequence[Lease]) -> dict[str, Any]:
    """The binds that say whose leases these are: the fence of a call."""
    return {
        "subscription": member.subscription,
        "consumer": member.holder,
        "partition_ids": [lease.partition_id for lease in leases],
        "lease_epochs": [lease.lease_epoch for lease in leases],
    }


def _identity(member: Membership) -> dict[str, Any]:
    return {
        "subscription": member.subscription,
        "consumer": member.consumer,
        "session": member.session,
    }
