"""Where the events of a partition are: the segments of a plan, hot or cold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from penstock import database
from penstock.archive.copies import Copy

#: The columns that all rows of a segment share.
_shared = itemgetter(slice(0, 7))


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
