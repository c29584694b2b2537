"""Where the events of a partition are: hot, in the database, or cold, in the archive only.

There are two answers.  The low sequence of a partition cuts a range in two: a poll, a block and a
plain range end there, and what is below is for ``LogReader``.  A plan, which ``LogReader`` asks the
database for, has the log epochs of a range and their copies: one below the low sequence is hot
while it is rehydrated.  Retention goes on, so either answer may be old when it is used: then the
database refuses what was hot.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from penstock import database
from penstock.archive.copies import Copy
from penstock.records import PartitionRange
from penstock.topics.names import partition_ranges

#: The columns that all rows of a segment share.
_shared = itemgetter(slice(0, 7))


class HotAndCold(NamedTuple):
    """A range of sequences in two parts, the older one first.  Each may be empty."""

    cold: range
    hot: range


def cut(low_sequence: int, wanted: range) -> HotAndCold:
    """Cut a range in two, at the first sequence that is hot."""
    border = min(max(wanted.start, low_sequence), wanted.stop)
    return HotAndCold(range(wanted.start, border), range(border, wanted.stop))


class LowSequences:
    """The low sequences of partitions.  All of a partition is hot, until more is known of it."""

    def __init__(self, known: Iterable[PartitionRange] = ()) -> None:
        self._low = {each.partition_id: each.low_sequence for each in known}

    def learn(self, connection: Any, topics: Iterable[str]) -> None:
        """Ask for those of all partitions of topics."""
        for topic in topics:
            known = partition_ranges(connection, topic)
            self._low |= {each.partition_id: each.low_sequence for each in known}

    def is_cold(self, partition_id: int, sequence: int) -> bool:
        """Whether a sequence is below the low sequence of its partition."""
        return sequence < self._low.get(partition_id, 0)

    def cut(self, partition_id: int, wanted: range) -> HotAndCold:
        """Cut a range of a partition in two."""
        return cut(self._low.get(partition_id, 0), wanted)


@dataclass(frozen=True, slots=True)
class Segment:
    """A log epoch, or what is not sealed yet (``log_epoch`` is None), of one partition.

    A hot one can be fetched from the database, a cold one is in the archive only.  ``copies`` are
    the verified copies that the database has recorded.  ``lost`` are the targets of those that
    were there once and are missing now.
    """

    is_hot: bool
    log_epoch: int | None
    first_sequence: int
    last_sequence: int
    copies: tuple[Copy, ...] = ()
    lost: tuple[str, ...] = ()


def fetch_plan(
    connection: Any, topic: str, partition: int, from_sequence: int, max_events: int
) -> list[Segment]:
    """The segments that hold a range, in order: at most 1,000, so ask again from their end on."""
    rows = database.call(
        connection,
        "fetch_plan",
        topic=topic,
        partition=partition,
        from_sequence=from_sequence,
        max_events=max_events,
    )
    return [_segment(partition, shared, found) for shared, found in groupby(rows, key=_shared)]


def _segment(partition: int, shared: tuple[Any, ...], rows: Iterable[tuple[Any, ...]]) -> Segment:
    place, log_epoch, first, last, count, checksum, known_as = shared
    copies, lost = [], []
    for target, state, location, layout, first_row in map(itemgetter(slice(7, None)), rows):
        if state == "verified":
            copies.append(
                Copy(
                    target, known_as, partition, log_epoch, first, last, count, checksum,
                    layout, location, first_row,
                )
            )  # fmt: skip
        elif target is not None:
            lost.append(target)
    return Segment(place == "hot", log_epoch, first, last, tuple(copies), tuple(lost))
