"""What becomes of an event that cannot be handled: attempts, dead letters, parked keys, redrive.

How a consumer puts the calls together.  "Commits by itself" means: call it on a connection outside
of any transaction, because its effect must be committed before the handler gets the event.  All
other calls may be inside the handler's own transaction.  All calls are fenced by the lease.
StaleLease means the same as everywhere: roll back and forget the lease.

1. For a new lease, call ``suspects`` (once).  When it returns nothing for the lease, poll, handle
   and commit as always; no attempts are recorded.  When it returns a suspect, be *careful*.  If
   ``died``, be careful for as many events as one consumer has in flight at most.  If ``sequence``
   is not None, be careful at least for that event.

   Where a partition is handled in order, groups of at most 50 suspects cost fewer calls.  Commit
   what is done, then call ``begin_attempt`` for the first of them with ``uncounted=GROUP`` (commits
   by itself); it counts an attempt for none of them.  A consumer that finds that record
   (``attempts`` is 0) and ``died`` hands out the next 50 sequences one at a time, as 3 says.  A
   consumer that finds any other record does so with that event only.
2. When a handler fails in this process, commit what is done before the event, so that the event is
   the first one after the position.  Be careful from that event on; after a failed batch, for all
   events of the batch.
3. Careful means one event at a time, and each is committed alone.  First call ``begin_attempt``
   (commits by itself), with ``uncounted=1`` if the event failed here before it was suspected.  Do
   not hand the event out again if the returned number exceeds ``max_attempts`` of the
   subscription's policy, or if the handler fails for the ``max_attempts``-th time.  Call
   ``give_up`` instead (commits by itself, and moves the position), with
   ``park=policy.exhausted == "park_key"``.  Otherwise hand the event out.  After a failure wait for
   the policy's backoff, then repeat from ``begin_attempt`` on.  A handler that ends the process by
   an exception (SystemExit) is a failure too: a consumer that only left in good order would give
   its lease back, and there would be no record of the failure.
4. Call ``parked_keys`` for the keys that wait: with each new lease, after each ``give_up`` that
   returned True, and after each ``finish_redriven``.  Nothing else adds a key.  While there are
   such keys, do not hand their events to the handler.  Commit the batch by ``commit_parking`` with
   their sequences, in place of ``stream.commit`` and in the same transaction.  When all events are
   parked, no handler is called.  TooManyParked: nothing was committed and the partition has to
   wait; try again later.
5. For redriven letters, call ``poll_redriven`` (commits by itself) for all held leases: with each
   check-in, and again while it returns letters.  Without redriven letters it costs little.  Handle
   each letter's ``event`` in order, alone.  In its transaction call ``finish_redriven`` first, in
   place of ``stream.commit``.  NotRedriven: roll back, the letter is no longer yours.  When the
   handler fails, call ``fail_redriven``; the letter is dead again.  Partitions with redriven
   letters are leased like those with unread events.

A member whose leases another store keeps (``Membership.elsewhere``) makes the same calls.  Before
it works on a lease, and before each call that moves the position, it tells the database where the
store stands: :func:`penstock.leases.coordination.marks.tell`.  After a call that moves the position
the store's has to follow.

On an asynchronous connection the two calls of a handler's transaction are
:func:`penstock.aio.commit_parking` and :func:`penstock.aio.finish_redriven`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock import database
from penstock.database import sessions, steps
from penstock.database.steps import Steps, asked
from penstock.errors import InvalidArgument, storable
from penstock.records import (
    DeadLetterCounts as DeadLetterCounts,
    Event,
    Lease,
    as_headers,
    as_time,
    as_uuid,
    headers_text,
)
from penstock.subscriptions.stream import Membership, lease_binds

#: What a dead letter waits for: dead, an operator; parked, the same, and later events of its key
#: wait with it; redriven, the holder of its partition.
STATES = ("dead", "parked", "redriven")

#: A value for ``uncounted``: a group of events begins, and it is not known which one may be bad.
GROUP = -1


@dataclass(frozen=True, slots=True)
class Suspect:
    """A partition whose next events may break their consumer.

    ``died``: a holder died since the position moved.  ``sequence`` is the first event after the
    position, when a record says that it was handed out ``attempts`` times; ``reason`` says why.
    With 0 attempts, a group began there.
    """

    partition_id: int
    died: bool
    sequence: int | None
    attempts: int
    reason: str


@dataclass(frozen=True, slots=True)
class Redriven:
    """A dead letter that was handed out again, for the ``attempts``-th time."""

    letter_id: int
    lease: Lease
    event: Event
    attempts: int
    parked: bool


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that a subscription has given up, and why; see :data:`STATES`.

    ``forwarded_to`` and ``forwarded_as``: topic and id of its copy, where the subscription names a
    topic for its dead letters (the topic is None for a login that may not see it).
    ``not_forwarded`` says why there is none.
    """

    id: int
    topic: str
    partition: int
    sequence: int
    history: int
    event_id: UUID
    key: str | None
    type: str
    content_type: str
    payload_bytes: int
    state: str
    attempts: int
    reason: str
    created_at: datetime
    died_at: datetime
    forwarded_to: str | None = None
    forwarded_as: UUID | None = None
    not_forwarded: str | None = None


@dataclass(frozen=True, slots=True)
class WholeLetter:
    """A dead letter with its headers and payload."""

    letter: DeadLetter
    headers: dict[str, Any]
    payload: bytes


def suspects(connection: Any, member: Membership, leases: Sequence[Lease]) -> dict[int, Suspect]:
    """The held leases whose next events may break their consumer, by partition id."""
    rows = database.call(connection, "suspects", **lease_binds(member, leases))
    return {
        partition_id: Suspect(partition_id, bool(died), sequence, attempts or 0, reason or "")
        for partition_id, died, sequence, attempts, reason in rows
    }


def begin_attempt(
    connection: Any,
    member: Membership,
    lease: Lease,
    sequence: int,
    *,
    uncounted: int = 0,
    reason: str = "",
) -> int:
    """Count that the first event after the position is handed out.  Returns the attempt's number.

    Commits by itself: InvalidArgument inside a transaction.  ``uncounted`` is how often it was
    handed out before it was suspected.  With :data:`GROUP` this records that a group begins there,
    and counts nothing.  BackwardCommit when another event is the first one after the position.
    """
    _require_own_commit(connection, "begin_attempt")
    rows = database.call(
        connection,
        "begin_attempt",
        **_lease(member, lease),
        sequence=sequence,
        uncounted=uncounted,
        reason=reason_text(reason),
    )
    return int(rows[0][0])


def give_up(
    connection: Any,
    member: Membership,
    lease: Lease,
    sequence: int,
    reason: str,
    *,
    attempts: int,
    park: bool = False,
    brought: Iterable[Event] = (),
) -> bool:
    """Make the first event after the position a dead letter and move the position past it, in one.

    With ``park``, later events of its key wait for it; then this returns True.  An event without a
    key becomes an ordinary dead letter.  TooManyParked when no more events may be parked.  An event
    that was read from the archive has to be ``brought``, and then the caller needs a transaction.
    """
    steps.run(connection, bringing_steps(member, lease, brought))
    rows = database.call(
        connection,
        "give_up",
        **_lease(member, lease),
        sequence=sequence,
        reason=reason_text(reason),
        attempts=attempts,
        park=park,
    )
    return bool(rows[0][0] == "parked")


def parked_keys(
    connection: Any, subscription: str, leases: Iterable[Lease]
) -> dict[int, frozenset[str]]:
    """The keys whose events wait, by partition id."""
    rows = database.call(
        connection,
        "parked_keys",
        subscription=subscription,
        partition_ids=[lease.partition_id for lease in leases],
    )
    found: dict[int, set[str]] = {}
    for partition_id, key in rows:
        found.setdefault(partition_id, set()).add(key)
    return {partition_id: frozenset(keys) for partition_id, keys in found.items()}


def commit_parking(
    connection: Any,
    member: Membership,
    lease: Lease,
    position: int,
    *,
    after: int,
    sequences: Iterable[int],
    brought: Iterable[Event] = (),
) -> None:
    """A commit that parks some of the events that it moves past, because their keys wait.

    ``after`` is the position after which the events were read.  Those of the events to park that
    were read from the archive are to be ``brought``.  The errors are those of
    :func:`penstock.stream.commit`, and TooManyParked.
    """
    made = parking_steps(member, lease, position, after, sequences, brought=brought)
    steps.run(connection, made)


def bring_letters(
    connection: Any, member: Membership, lease: Lease, events: Iterable[Event]
) -> None:
    """Store events that only the archive has, for the call that makes them dead letters."""
    steps.run(connection, bringing_steps(member, lease, events))


def bringing_steps(member: Membership, lease: Lease, events: Iterable[Event]) -> Steps[None]:
    """The steps of :func:`bring_letters`."""
    for event in events:
        yield from asked(
            "bring_letter",
            **_lease(member, lease),
            sequence=event.sequence,
            event_id=event.event_id,
            key=event.key,
            type=event.type,
            content_type=event.content_type,
            headers=headers_text(event),
            payload=event.payload,
            created_at=event.created_at,
        )


def parking_steps(
    member: Membership,
    lease: Lease,
    position: int,
    after: int,
    sequences: Iterable[int],
    *,
    brought: Iterable[Event] = (),
) -> Steps[None]:
    """The steps of :func:`commit_parking`, for each kind of connection."""
    yield from bringing_steps(member, lease, brought)
    place = {"position": position, "after": after, "sequences": list(sequences)}
    yield from asked("commit_parking", **_lease(member, lease), **place)


def poll_redriven(
    connection: Any, member: Membership, leases: Sequence[Lease], max_events: int = 100
) -> list[Redriven]:
    """Redriven dead letters of held leases, in order, each counted as handed out.

    Commits by itself: InvalidArgument inside a transaction.  Of a parked key only the first event
    is returned, and the next one after that is finished.  The event's ``sequenced_at`` is its
    ``created_at``.
    """
    _require_own_commit(connection, "poll_redriven")
    rows = database.call(
        connection, "poll_redriven", **lease_binds(member, leases), max_events=max_events
    )
    by_id = {lease.partition_id: lease for lease in leases}
    return [_redriven(by_id, row) for row in rows]


def finish_redriven(connection: Any, member: Membership, letter: Redriven) -> None:
    """Remove a redriven letter, in the transaction in which its handler writes.

    NotRedriven when the letter waits no longer: then roll back.
    """
    steps.run(connection, finish_steps(member, letter))


def finish_steps(member: Membership, letter: Redriven) -> Steps[None]:
    """The steps of :func:`finish_redriven`, for each kind of connection."""
    lease = _lease(member, letter.lease)
    yield from asked("finish_redriven", **lease, letter_ids=[letter.letter_id])


def fail_redriven(connection: Any, member: Membership, letter: Redriven, reason: str) -> None:
    """Make a redriven letter dead again.  If it was parked, its whole key waits again."""
    database.call(
        connection,
        "fail_redriven",
        **_lease(member, letter.lease),
        letter_id=letter.letter_id,
        reason=reason_text(reason),
    )


def redrive(
    connection: Any,
    subscription: str,
    letter_ids: Iterable[int] | None = None,
    *,
    keep_deliveries: bool = False,
) -> int:
    """Make these dead letters deliverable again, or all.  Returns how many were not so already.

    The holder of their partition gets them.  Of a parked key it gets all events, in order.  With
    ``keep_deliveries`` a queue goes on counting how often it has handed them out; that counts for
    none of its limits.
    """
    ids = None if letter_ids is None else _ids(letter_ids)
    binds = {"letter_ids": ids, "keep_deliveries": keep_deliveries}
    return int(database.call(connection, "redrive", subscription=subscription, **binds)[0][0])


def drop(connection: Any, subscription: str, letter_ids: Iterable[int]) -> int:
    """Delete dead letters; a record of each stays, without its payload.  Returns how many."""
    rows = database.call(
        connection, "drop_dead_letters", subscription=subscription, letter_ids=_ids(letter_ids)
    )
    return int(rows[0][0])


def dead_letters(
    connection: Any,
    subscription: str,
    max_rows: int = 100,
    *,
    topic: str | None = None,
    key: str | None = None,
    type: str | None = None,
    state: str | None = None,
    before_id: int | None = None,
) -> list[DeadLetter]:
    """What a subscription has given up, newest first; ``before_id`` asks for the next page."""
    if state is not None and state not in STATES:
        raise InvalidArgument(f"there is no state {state!r}", hint=f"use {', '.join(STATES)}")
    if max_rows < 1:
        raise InvalidArgument("max_rows is below 1")
    rows = database.call(
        connection,
        "dead_letters_of",
        subscription=subscription,
        max_rows=max_rows,
        of_topic=topic,
        of_key=key,
        of_type=type,
        of_state=state,
        before_id=before_id,
    )
    return [_letter(row) for row in rows]


def dead_letter(connection: Any, subscription: str, letter_id: int) -> WholeLetter | None:
    """One dead letter with headers and payload; None when no letter has that id."""
    rows = database.call(
        connection, "dead_letter_of", subscription=subscription, letter_id=letter_id
    )
    if not rows:
        return None
    *row, headers, payload = rows[0]
    return WholeLetter(_letter(row), as_headers(headers), bytes(payload))


def counts(connection: Any, subscription: str | None = None) -> list[DeadLetterCounts]:
    """How many dead letters one subscription or each one has; 10,000 means that many or more."""
    rows = database.call(connection, "dead_letter_counts", subscription=subscription)
    return [DeadLetterCounts(*row) for row in rows]


def _letter(row: Sequence[Any]) -> DeadLetter:
    fields = list(row)
    fields[5] = as_uuid(fields[5])
    fields[13:15] = map(as_time, fields[13:15])
    fields[16] = None if fields[16] is None else as_uuid(fields[16])
    return DeadLetter(*fields)


def _redriven(by_id: dict[int, Lease], row: Sequence[Any]) -> Redriven:
    letter_id, attempts, parked, history, partition_id, *fields = row
    lease = by_id[partition_id]
    fields.append(fields[-1])  # sequenced_at, which a letter does not keep
    (event,) = Event.from_rows(lease.topic, lease.partition, history, [fields])
    return Redriven(letter_id, lease, event, attempts, bool(parked))


def _lease(member: Membership, lease: Lease) -> dict[str, Any]:
    return {
        "subscription": member.subscription,
        "consumer": member.holder,
        "partition_id": lease.partition_id,
        "lease_epoch": lease.lease_epoch,
    }


def _ids(letter_ids: Iterable[int]) -> list[int]:
    ids = list(letter_ids)
    for each in ids:
        if isinstance(each, bool) or not isinstance(each, int):
            raise InvalidArgument(f"the id of a dead letter is a {type(each).__name__}")
    return ids


def reason_text(reason: str) -> str:
    """At most 2,000 characters of the reason, without zero bytes, which PostgreSQL cannot store."""
    return storable(reason)[:2_000]


def _require_own_commit(connection: Any, name: str) -> None:
    if not sessions.of_connection(connection).commits_by_itself(connection):
        raise InvalidArgument(
            f"{name} inside a transaction would be forgotten with it",
            hint="call it on a connection that commits by itself, outside of any transaction",
        )
