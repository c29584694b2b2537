"""Times as starts, also those before the low sequence: they are looked up in the archive.

The database knows in which log epoch a time lies.  Only that one is read, to find the event.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penstock import database
from penstock.errors import BelowLowSequence, InvalidArgument
from penstock.log.starts import by_partition_id
from penstock.topics.names import partition_ranges

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.archive.log_reader import LogReader
    from penstock.archive.targets import Target


def start_at(
    connection: Any, topics: Iterable[str], since: datetime, *, targets: Sequence[Target]
) -> str:
    """The start of topics at a time: in each partition the first event sequenced then or later.

    The result is given where a start is asked for: to ``subscribe``, ``seek``, ``reset`` or
    ``place_bookmark``.
    """
    return by_partition_id(
        {
            each.partition_id: 1
            + position_at(connection, topic, each.partition, since, targets=targets)
            for topic in topics
            for each in partition_ranges(connection, topic)
        }
    )


def position_at(
    connection: Any, topic: str, partition: int, since: datetime, *, targets: Sequence[Target]
) -> int:
    """The position before the first event that was sequenced at a time or later."""
    if since.tzinfo is None:
        raise InvalidArgument(f"the time {since} has no zone", hint="give an aware datetime")
    ((position, log_epoch, first, _),) = database.call(
        connection, "locate_time", topic=topic, partition=partition, since=since
    )
    if position is not None:
        return int(position)
    if not targets:
        raise BelowLowSequence(
            f"the events that were sequenced at {since} are in log epoch {log_epoch} of partition "
            f"{partition} of {topic}, which only the archive has",
            hint="name the archive targets: targets=..., or --target NAME",
        )
    from penstock import archive

    reader = archive.read_on(connection, topic, partition, first, None, targets=targets)
    return _looked_up(reader, since)


def _looked_up(reader: LogReader, since: datetime) -> int:
    """Read until such an event is found."""
    with reader:
        for batch in reader:
            place = _first_since(batch, since)
            if place is not None:
                return int(batch.column("sequence")[place].as_py()) - 1
    return reader.next_sequence - 1


def _first_since(batch: pa.RecordBatch, since: datetime) -> int | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    times = batch.column("sequenced_at")
    reached = pc.greater_equal(times, pa.scalar(since.astimezone(UTC), times.type))
    place = pc.index(reached, True).as_py()
    return None if place < 0 else int(place)
