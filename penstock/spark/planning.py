"""From options to positions and ranges: the part of a read that asks the database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from penstock.archive.hot_or_cold import LowSequences, cut
from penstock.archive.times import position_at
from penstock.errors import (
    BelowLowSequence,
    BeyondHighWatermark,
    InvalidArgument,
    InvalidPartition,
)
from penstock.log.bookmarks import bookmark_positions
from penstock.records import PartitionRange
from penstock.spark.cold_ranges import BELOW_LOW_HINT, plan_cold
from penstock.spark.options import COLD, EARLIEST, HOT, LATEST, ReadBound, ReadOptions
from penstock.spark.ranges import SourceRange
from penstock.topics.names import partition_ranges

if TYPE_CHECKING:
    from penstock.database import Connection


def chosen_partitions(connection: Connection, options: ReadOptions) -> list[PartitionRange]:
    """What the database has of the partitions that are to be read."""
    present = partition_ranges(connection, options.topic)
    if options.partitions is None:
        return present
    missing = options.partitions - {each.partition for each in present}
    if missing:
        raise InvalidPartition(
            f'the topic "{options.topic}" has no partition {min(missing)}',
            hint=f"it has the partitions 0 to {len(present) - 1}",
        )
    return [each for each in present if each.partition in options.partitions]


def batch_ranges(connection: Connection, options: ReadOptions) -> list[SourceRange]:
    """The ranges of a batch read; the end is fixed here."""
    present = chosen_partitions(connection, options)
    after = start_positions(connection, options, present)
    until = positions(connection, options, options.ending, present, unnamed=None)
    if options.ending.name != LATEST:  # events may come between the two looks
        _require_order(after, until)
    return ranges_between(connection, options, present, after, until)


def start_positions(
    connection: Connection, options: ReadOptions, present: Iterable[PartitionRange]
) -> dict[int, int]:
    """Where a read begins: the last sequence of each partition that is not read."""
    found = positions(connection, options, options.starting, present, unnamed=0)
    low = LowSequences(present)
    for each in present:
        if options.source == HOT and low.is_cold(each.partition_id, found[each.partition] + 1):
            raise BelowLowSequence(
                f"the read begins after sequence {found[each.partition]} of partition"
                f" {each.partition}, but the database holds it from {each.low_sequence} on",
                hint=BELOW_LOW_HINT,
            )
    return found


def positions(
    connection: Connection,
    options: ReadOptions,
    place: ReadBound,
    present: Iterable[PartitionRange],
    *,
    unnamed: int | None,
) -> dict[int, int]:
    """A position in each partition: the last sequence before the place.

    ``unnamed`` is the position in partitions that the place does not name; with None they are not
    in the result.
    """
    if place.time is not None:
        return {
            each.partition: _position_at(connection, options, each.partition, place.time)
            for each in present
        }
    if place.bookmark is not None:
        marked = bookmark_positions(connection, options.topic, place.bookmark)
        return {each.partition: marked.get(each.partition, 0) for each in present}
    if place.positions is None:
        if place.name == EARLIEST:
            is_hot = options.source == HOT
            return {each.partition: each.low_sequence - 1 if is_hot else 0 for each in present}
        return {each.partition: each.high_watermark for each in present}
    _require_there(place.positions, present)
    found = {each.partition: place.positions.get(each.partition, unnamed) for each in present}
    return {partition: position for partition, position in found.items() if position is not None}


def ranges_between(
    connection: Connection,
    options: ReadOptions,
    present: Iterable[PartitionRange],
    after: Mapping[int, int],
    until: Mapping[int, int],
) -> list[SourceRange]:
    """The events of each partition after one position up to and with another.

    What the database no longer has is in cold ranges, along the borders of log epochs.
    """
    found: list[SourceRange] = []
    for each in present:
        first = after.get(each.partition, 0) + 1
        last = until.get(each.partition, 0)
        hot_from = last + 1 if options.source == COLD else each.low_sequence
        cold, hot = cut(hot_from, range(first, last + 1))
        if cold:
            found += plan_cold(connection, options, each, cold)
        if hot:
            found.append(SourceRange(each.partition, each.partition_id, hot.start, last))
    return found


def _require_order(after: Mapping[int, int], until: Mapping[int, int]) -> None:
    for partition, end in until.items():
        if after[partition] > end:
            raise InvalidArgument(
                f"the read begins after sequence {after[partition]} of partition {partition}, and"
                f" ends at {end}",
                hint="give an end that is not before the start",
            )


def _require_there(positions: Mapping[int, int], present: Iterable[PartitionRange]) -> None:
    known = {each.partition: each.high_watermark for each in present}
    for partition, position in positions.items():
        if partition not in known:
            raise InvalidPartition(
                f"an offset names partition {partition}, which is not read",
                hint=f"the partitions that are read: {', '.join(map(str, known))}",
            )
        if position > known[partition]:
            raise BeyondHighWatermark(
                f"an offset is at sequence {position} of partition {partition}, beyond the high"
                f" watermark {known[partition]}",
                hint='use "latest", or a sequence that the log has',
            )


def _position_at(
    connection: Connection, options: ReadOptions, partition: int, since: datetime
) -> int:
    targets = () if options.source == HOT else options.targets
    return position_at(connection, options.topic, partition, since, targets=targets)
