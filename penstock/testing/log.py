"""Giving events their sequences, and reading them, in a log in memory."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from penstock.database.dialect import Row
from penstock.errors import InvalidArgument
from penstock.testing.statements import one, refused, statement
from penstock.testing.store import MemoryTransaction
from penstock.testing.tables import (
    HISTORY,
    MAX_SEQUENCE,
    EventRow,
    find_partition,
    find_topic,
    high_watermark,
    topics_by_id,
)
from penstock.topics.partition_ids import number_of, topic_of

_AT_ONCE = datetime.min.replace(tzinfo=UTC)
_MOST_PASSED = 1_000_000
_MOST_FETCHED = 100_000


@statement
def sequence(tx: MemoryTransaction, max_events: int) -> list[Row]:
    """One pass over the committed, due events, in the order of publishing; delayed ones by time."""
    if max_events not in range(1, _MOST_PASSED + 1):
        raise refused(InvalidArgument, f"a pass of {max_events} events")
    if not tx.lock("sequencer", wait=False):
        return [(0, False, True, [])]
    now = tx.store.clock.now()
    ready = sorted(
        (event.due_at or _AT_ONCE, number, event)
        for number, event in _committed(tx)
        if (event.due_at or _AT_ONCE) <= now
    )
    alive = topics_by_id(tx)
    grown: list[int] = []
    for _, number, event in ready[:max_events]:
        tx.delete("unsequenced", number)
        if topic_of(event.partition_id) in alive:  # else its topic was deleted
            _append(tx, event, now)
            grown.append(event.partition_id)
    tx.put("passes", "last", now)
    return [(len(grown), len(ready) > max_events, False, sorted(set(grown)))]


@statement
def sequence_and_announce(tx: MemoryTransaction, max_events: int) -> list[Row]:
    """The same as sequence: consumers look often, which is cheap here, and need no notice."""
    return sequence(tx, max_events)


@statement
def ensure_slices(tx: MemoryTransaction) -> list[Row]:
    """Does nothing: there is always room."""
    return one(0)


@statement
def log_status(tx: MemoryTransaction) -> list[Row]:
    """The state of the log in one row."""
    now = tx.store.clock.now()
    waiting = [event.created_at for _, event in _committed(tx) if event.due_at is None]
    passed_at = tx.get("passes", "last")
    return [
        (
            len(waiting),
            (now - min(waiting, default=now)).total_seconds(),
            (now - (passed_at or now)).total_seconds(),
            0.0,
            MAX_SEQUENCE,
            tx.store.counters["rejected_commits"],
            HISTORY,
            len(tx.rows("topics")),
            len(tx.rows("subscriptions")),
        )
    ]


@statement
def sequence_gaps(tx: MemoryTransaction, topic: str, known: list[int] | None) -> list[Row]:
    """Gaps in the log, from the known sequences on."""

    def lowest(partition_id: int) -> int:
        return max(1, known[number_of(partition_id)]) if known else 1

    return [
        (number_of(partition_id), number, number + 1)
        for partition_id in find_topic(tx, topic).partition_ids()
        for number in range(lowest(partition_id), high_watermark(tx, partition_id) + 1)
        if tx.get("log", (partition_id, number)) is None
    ]


@statement
def fetch(
    tx: MemoryTransaction, topic: str, partition: int, from_sequence: int, max_events: int
) -> list[Row]:
    """Events of one partition from a sequence on, in order."""
    source = find_partition(tx, topic, partition)
    if not (1 <= from_sequence <= MAX_SEQUENCE and 1 <= max_events <= _MOST_FETCHED):
        raise refused(
            InvalidArgument, f"cannot fetch {max_events} events from sequence {from_sequence}"
        )
    return [(*row, HISTORY) for row in read(tx, source, from_sequence, max_events)]


@statement
def high_watermarks(tx: MemoryTransaction, topic: str) -> list[Row]:
    """The readable range of every partition of a topic.  Nothing is ever dropped here."""
    return [
        (number_of(each), 1, high_watermark(tx, each), HISTORY, each)
        for each in find_topic(tx, topic).partition_ids()
    ]


def read(tx: MemoryTransaction, partition_id: int, first: int, most: int) -> Iterator[Row]:
    """Events in the columns of the log."""
    last = min(high_watermark(tx, partition_id), first + most - 1)
    for number in range(first, last + 1):
        event, at = tx.get("log", (partition_id, number))
        yield (
            number, event.event_id, event.key, event.type, event.content_type, event.headers,
            event.payload, event.created_at, at,
        )  # fmt: skip


def sequenced_at(tx: MemoryTransaction, partition_id: int, number: int) -> datetime | None:
    """When an event got its sequence, or None when no event has that sequence."""
    found: tuple[EventRow, datetime] | None = tx.get("log", (partition_id, number))
    return None if found is None else found[1]


def _committed(tx: MemoryTransaction) -> list[tuple[int, EventRow]]:
    """The committed events that wait: none that this transaction has published or sequenced."""
    waiting: Any = tx.store.tables["unsequenced"].items()
    return [each for each in waiting if tx.get("unsequenced", each[0]) is not None]


def _append(tx: MemoryTransaction, event: EventRow, now: datetime) -> None:
    number = high_watermark(tx, event.partition_id) + 1
    tx.put("log", (event.partition_id, number), (event, now))
    tx.put("watermarks", event.partition_id, number)
