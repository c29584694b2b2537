"""Queue mode: single events are received, acknowledged, extended, rejected and released.

A queue is a subscription over the same log that streams read.  ``receive`` hands events out, each
with a receipt, and hides them from others for a while.  A receipt is good until its event is handed
out again, so an event is never lost; ``acknowledge`` finishes it, in the caller's transaction.

    for delivery in queue.receive(connection, "mails", 10):
        with connection.transaction():
            ...  # the handler's own writes
            queue.acknowledge(connection, "mails", [delivery.receipt])
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import partial
from itertools import groupby, repeat
from operator import itemgetter
from time import monotonic, sleep
from typing import Any, NamedTuple

from penstock import database
from penstock.accounts.acting import Acting, call_for
from penstock.database import sessions
from penstock.database.steps import Steps, asked
from penstock.errors import InvalidArgument
from penstock.records import Event, as_time, as_uuid
from penstock.subscriptions.dead_letters import reason_text, redrive as redrive
from penstock.subscriptions.receipts import Entry, Receipt as Receipt, columns_of, entries_of
from penstock.subscriptions.verdicts import (
    AGAIN as AGAIN,
    DISCARD as DISCARD,
    DONE as DONE,
    Verdict as Verdict,
    again as again,
)
from penstock.topics import validation
from penstock.topics.validation import Range

#: What a call may ask for.  The database checks it too, where a number can reach it.
_EVENTS = Range(1, 1_000, is_whole=True)
_CLAIM = Range(0, 43_200)
_DELAY = Range(0, 31_536_000)
_WAIT = Range(0, 60)

#: Between two looks of a receive that waits: the first pause, each one is twice as long.
FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.2


class Delivery(NamedTuple):
    """An event that was handed out.

    ``deliveries`` counts its hand-outs with this one, ``failures`` how often it was rejected.
    Others may get it from ``deadline`` on.
    """

    event: Event
    receipt: Receipt
    deliveries: int
    failures: int
    deadline: datetime

    @property
    def tag(self) -> str:
        """A short random text that stays the same over all deliveries of the event."""
        return self.event.event_id.hex[-8:]


@dataclass(frozen=True, slots=True)
class Peeked:
    """An event of a queue that was looked at.

    ``state``: ready, in_flight or delayed until ``visible_at``, or behind an earlier event of its
    key.
    """

    event: Event
    state: str
    visible_at: datetime | None
    deliveries: int
    failures: int


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The settings of a queue; times in seconds.

    ``order``: none, or key: an event waits until the earlier ones of its key, in its partition, are
    finished.  It is kept.  ``retention_seconds``: what is older ends with the sweep; 0: nothing.
    """

    visibility_seconds: float
    max_deliveries: int
    max_failures: int
    max_in_flight: int
    first_backoff_seconds: float
    longest_backoff_seconds: float
    jitter: float
    order: str = "none"
    retention_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """How many events a queue has; ``size`` is the sum without the dead ones.

    ``ready`` counts what waits behind an earlier event of its key too.
    """

    size: int
    ready: int
    in_flight: int
    delayed: int
    dead: int


@dataclass(frozen=True, slots=True)
class QueuePointers:
    """Where a queue stands in a partition.

    ``reader``: the sequence that comes next.  ``repair``: the lowest unfinished one; retention
    waits for it.  ``invisibility``: the lowest one that is handed out or waits for a retry.
    ``behind``: how many wait behind an earlier event of their key.
    """

    topic: str
    partition: int
    reader: int
    repair: int
    invisibility: int | None
    behind: int


def subscribe(
    connection: Any, subscription: str, topics: Sequence[str], *, start: str = "earliest"
) -> int:
    """Create a queue, or add topics to it.  Returns how many were new.

    WrongMode when a stream has the name: a subscription keeps its mode.
    """
    rows = database.call(
        connection, "subscribe_queue", subscription=subscription, topics=list(topics), start=start
    )
    return int(rows[0][0])


def configure(connection: Any, subscription: str, **settings: float | str) -> None:
    """Set some of the settings of a queue: the fields of :class:`QueueSettings`."""
    validation.known(settings, [each.name for each in fields(QueueSettings)], "a queue")
    try:
        given = json.dumps(settings, allow_nan=False)
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"a queue cannot have the settings {settings}", hint="use numbers, and order=key"
        ) from None
    database.call(connection, "configure_queue", subscription=subscription, settings=given)


def describe(connection: Any, subscription: str) -> QueueSettings:
    """The settings of a queue."""
    (row,) = database.call(connection, "describe_queue", subscription=subscription)
    return QueueSettings(*row)


def receive(
    connection: Any,
    subscription: str,
    max_events: int = 1,
    *,
    visibility_seconds: float | None = None,
    wait_seconds: float = 0.0,
) -> list[Delivery]:
    """Hand out at most so many events, hidden from others for ``visibility_seconds``.

    Commits by itself: InvalidArgument inside a transaction, with which the count of the delivery
    would be forgotten.  An event that was handed out twice and never finished comes alone.  When
    there is nothing, it looks again until something has come, for ``wait_seconds`` (0 to 60) at
    most.
    """
    if not sessions.of_connection(connection).commits_by_itself(connection):
        raise InvalidArgument(
            "receive inside a transaction would be forgotten with it",
            hint="call it on a connection that commits by itself, outside of any transaction",
        )
    _WAIT.require("wait_seconds", wait_seconds)
    look = partial(
        hand_out, connection, subscription, max_events, visibility_seconds=visibility_seconds
    )
    until, pause = monotonic() + wait_seconds, FIRST_PAUSE_SECONDS
    while not (found := look()) and (left := until - monotonic()) > 0:
        sleep(min(pause, left))
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
    return found


def hand_out(
    connection: Any,
    subscription: str,
    max_events: int = 1,
    *,
    visibility_seconds: float | None = None,
    by: Acting | None = None,
) -> list[Delivery]:
    """One look of :func:`receive`, in the transaction that the connection is in.

    For programs whose every call is a transaction that acts for somebody.  Commit it before anybody
    gets the events: with a rollback, the count of the delivery is forgotten.  With ``by`` it is a
    transaction of its own, for an account.
    """
    _EVENTS.require("max_events", max_events)
    if visibility_seconds is not None:
        _CLAIM.require("visibility_seconds", visibility_seconds)
    rows = call_for(
        connection,
        by,
        "receive",
        is_events=True,
        subscription=subscription,
        max_events=max_events,
        visibility_seconds=visibility_seconds,
    )
    return _deliveries(rows)


def acknowledge(
    connection: Any,
    subscription: str,
    receipts: Iterable[Receipt],
    *,
    partly: bool = False,
    by: Acting | None = None,
) -> list[bool]:
    """Finish events, in the caller's transaction.  Returns for each receipt whether it was good.

    Without ``partly``, one that is not good refuses all: StaleReceipt.  With ``by`` it is a
    transaction of its own, for an account.
    """
    return _settle(connection, "acknowledge", subscription, receipts, partly, by=by)


def acknowledge_steps(subscription: str, receipts: Sequence[Receipt]) -> Steps[None]:
    """The steps of an acknowledgement of all receipts, for synchronous and async connections."""
    binds = binds_of(receipts)
    yield from asked("acknowledge", subscription=subscription, partly=False, **binds)


def binds_of(receipts: Sequence[Receipt]) -> dict[str, Any]:
    """Receipts as a call takes them that takes all of them or none."""
    return columns_of(entries_of(receipts, whole=True)[0])


def release(
    connection: Any, subscription: str, receipts: Iterable[Receipt], *, partly: bool = False
) -> list[bool]:
    """Put back events that nobody has begun: at once, and the delivery does not count."""
    return _settle(connection, "release_claims", subscription, receipts, partly)


def reject(
    connection: Any,
    subscription: str,
    receipts: Iterable[Receipt],
    *,
    reason: str = "",
    delay_seconds: float | None = None,
    partly: bool = False,
) -> list[bool]:
    """Record that events have failed: each comes again after a pause, or becomes a dead letter.

    Without ``delay_seconds`` the pause is the queue's backoff, longer with each failure.
    """
    if delay_seconds is not None:
        _DELAY.require("delay_seconds", delay_seconds)
    more: dict[str, Any] = {"reason": reason_text(reason), "delay_seconds": delay_seconds}
    return _settle(connection, "reject", subscription, receipts, partly, **more)


def extend(
    connection: Any,
    subscription: str,
    receipts: Iterable[Receipt],
    visibility_seconds: float,
    *,
    body: bytes | None = None,
    apart: bool = False,
    keeps_receipts: bool = False,
) -> list[Receipt]:
    """Give events more time from now on.  Returns their new receipts; the old ones are spent.

    0 seconds put them back, and the delivery counts; then there are no new receipts.  ``body``, for
    one event, is what later deliveries have as payload.  The log keeps what was published.
    ``apart`` gives each event a claim of its own: transactions that finish events of one claim wait
    for each other.  With ``keeps_receipts`` the same receipts stay good, and are returned.
    """
    _CLAIM.require("visibility_seconds", visibility_seconds)
    if body is not None and not isinstance(body, bytes | bytearray | memoryview):
        raise InvalidArgument(f"the body is a {type(body).__name__}", hint="encode it to bytes")
    given = list(receipts)
    if not given:
        return []
    entries, _ = entries_of(given, whole=body is None and not apart)
    rows = database.call(
        connection,
        "extend",
        subscription=subscription,
        **columns_of(entries),
        visibility_seconds=visibility_seconds,
        body=body,
        keeps_receipts=keeps_receipts,
    )
    return given if keeps_receipts and visibility_seconds else _extended(given, entries, rows)


def purge(connection: Any, subscription: str) -> int:
    """Throw away all that the queue has not finished; dead letters stay.  Returns how many."""
    return int(database.call(connection, "purge", subscription=subscription)[0][0])


def peek(connection: Any, subscription: str, max_events: int = 10) -> list[Peeked]:
    """The next events of a queue, without handing them out."""
    _EVENTS.require("max_events", max_events)
    rows = database.call(connection, "peek", subscription=subscription, max_events=max_events)
    return [
        Peeked(_event(row[4:]), row[0], None if row[1] is None else as_time(row[1]), *row[2:4])
        for row in rows
    ]


def statistics(connection: Any, subscription: str) -> QueueStatistics:
    """How many events a queue has, by state."""
    (row,) = database.call(connection, "queue_statistics", subscription=subscription)
    return QueueStatistics(*map(int, row))


def pointers(connection: Any, subscription: str) -> list[QueuePointers]:
    """Where the queue stands in each partition."""
    rows = database.call(connection, "queue_pointers", subscription=subscription)
    return [QueuePointers(*row) for row in rows]


def _settle(
    connection: Any,
    name: str,
    subscription: str,
    receipts: Iterable[Receipt],
    partly: bool,
    *,
    by: Acting | None = None,
    **binds: Any,
) -> list[bool]:
    given = list(receipts)
    if not given:
        return []

    def settled(entries: Sequence[Entry]) -> list[bool]:
        more = columns_of(entries) | {"partly": partly} | binds
        ((done,),) = call_for(connection, by, name, subscription=subscription, **more)
        return [bool(each) for each in done]

    # What was handed out together is one entry, and mostly all of it is good.  Where it is not,
    # nothing of it was done, and each of its receipts is an entry.
    entries, places = entries_of(given, whole=True)
    done = settled(entries)
    if all(done):
        return [True] * len(given)
    mixed = [not is_done and each[1] < each[2] for each, is_done in zip(entries, done, strict=True)]
    left = [each for each, place in zip(given, places, strict=True) if mixed[place]]
    again = dict(zip(left, _each(left, settled), strict=True))
    return [again.get(each, done[place]) for each, place in zip(given, places, strict=True)]


def _each(receipts: Sequence[Receipt], settled: Callable[[list[Entry]], list[bool]]) -> list[bool]:
    if not receipts:
        return []
    entries, places = entries_of(receipts, whole=False)
    done = settled(entries)
    return [done[place] for place in places]


def _extended(
    given: Sequence[Receipt], entries: Sequence[Entry], rows: Iterable[Sequence[Any]]
) -> list[Receipt]:
    found = {
        (entries[entry - 1][0], sequence): Receipt(claim, sequence, as_uuid(token))
        for entry, first, last, claim, token, _ in rows
        for sequence in range(first, last + 1)
    }
    return [found[each.claim, each.sequence] for each in given] if found else []


def _deliveries(rows: Iterable[Sequence[Any]]) -> list[Delivery]:
    """Rows of receive: what the events of a claim share is decoded once."""
    found: list[Delivery] = []
    for shared, handed_out in groupby(rows, key=_shared):
        claim, token, deadline, deliveries, failures, topic, partition, history = shared
        given = [*handed_out]
        events = Event.from_rows(topic, partition, history, map(_row_of_event, given))
        receipts = zip(repeat(claim), map(_sequence_of, given), repeat(as_uuid(token)))
        found += map(
            _new_delivery,
            zip(
                events,
                map(_new_receipt, receipts),
                repeat(deliveries),
                repeat(failures),
                repeat(as_time(deadline)),
            ),
        )
    return found


_shared = itemgetter(0, 1, 2, 3, 4, 5, 6, 16)
_sequence_of = itemgetter(7)
_row_of_event = itemgetter(slice(7, 16))
#: The named tuples' own constructors are written in Python.
_new_receipt = partial(tuple.__new__, Receipt)
_new_delivery = partial(tuple.__new__, Delivery)


def _event(row: Sequence[Any]) -> Event:
    topic, partition, *fields, history = row
    return Event.from_rows(topic, partition, history, [fields])[0]
