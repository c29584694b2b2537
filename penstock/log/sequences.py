"""The log: giving committed events their sequences, and reading them by sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock import database
from penstock.records import Event
from penstock.topics import names, validation


@dataclass(frozen=True, slots=True)
class SequenceResult:
    """What one pass of the sequencer did.

    ``busy``: another sequencer is at work.  ``more``: the tick is not finished, call again.
    ``grown`` are the ids of the partitions that got events.
    """

    sequenced: int
    more: bool
    busy: bool
    grown: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LogStatus:
    """The state of the log in figures; ages in seconds.

    For a login whose view is limited by rights in namespaces, the figures cover what it may see.
    Figures that only a login with the full view may have are None for it.
    """

    unsequenced_events: int
    unsequenced_age_seconds: float
    last_pass_age_seconds: float | None
    oldest_transaction_seconds: float | None
    event_ids_ready: int | None
    rejected_commits: int | None
    history: int
    topics: int
    subscriptions: int


@dataclass(frozen=True, slots=True)
class Gap:
    """A hole in a partition's index.  A sound log has none."""

    partition: int
    expected: int
    found: int


def sequence(
    connection: Any, max_events: int = 10_000, *, announce: bool = False
) -> SequenceResult:
    """One pass: number at most ``max_events`` committed events.  Needs READ COMMITTED.

    ``announce`` wakes the consumers that listen, when the transaction commits.
    """
    name = "sequence_and_announce" if announce else "sequence"
    sequenced, more, busy, grown, *_ = database.call(connection, name, max_events=max_events)[0]
    return SequenceResult(int(sequenced), more, busy, tuple(grown))


def nothing_waits(connection: Any) -> bool:
    """Whether a pass would find nothing.

    On PostgreSQL an empty pass costs no more than this question, so it is not asked there.
    """
    if database.dialect_of(connection) != "mysql":
        return False
    return bool(database.call(connection, "nothing_waits")[0][0])


def ensure_slices(connection: Any) -> int:
    """Make storage ahead of the publishers.  Returns how many slices were added."""
    if database.dialect_of(connection) == "mysql":
        from penstock.log import mysql_storage

        return mysql_storage.ensure(connection)
    return int(database.call(connection, "ensure_slices")[0][0])


def fetch(
    connection: Any, topic: str, partition: int, from_sequence: int, max_events: int = 500
) -> list[Event]:
    """Events of one partition from a sequence on, in order, never above the high watermark.

    BelowLowSequence when the database no longer holds the first of them.
    """
    validation.topic(topic)
    validation.fetched(partition, from_sequence, max_events)
    rows = database.call_events(
        connection,
        "fetch",
        topic=topic,
        partition=partition,
        from_sequence=from_sequence,
        max_events=max_events,
    )
    return Event.from_rows(topic, partition, rows[0][-1], rows) if rows else []


def high_watermarks(connection: Any, topic: str) -> dict[int, int]:
    """The last sequence of every partition."""
    ranges = names.partition_ranges(connection, topic)
    return {each.partition: each.high_watermark for each in ranges}


def status(connection: Any) -> LogStatus:
    """What waits, how old it is, and how much room the storage has."""
    return LogStatus(*database.call(connection, "log_status")[0])


def gaps(connection: Any, topic: str, known: Sequence[int] | None = None) -> list[Gap]:
    """Holes in the index of a topic's log.

    ``known``: for each partition by its number, up to which sequence an earlier look has found it
    whole. What is below is not read again.
    """
    binds = {"topic": topic, "known": None if known is None else [*known]}
    return [Gap(*row) for row in database.call(connection, "sequence_gaps", **binds)]
