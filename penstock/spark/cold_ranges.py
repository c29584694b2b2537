"""Reading what the database no longer has, from the copies in the archive.

As in `penstock.archive.copy_reader`, nothing here needs ``pyarrow.compute``, ``pa.array`` or
``pa.scalar``, which load pandas: Spark starts a process to plan a read, and one for each core.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.archive.format import repeated_text
from penstock.archive.hot_or_cold import Segment, fetch_plan
from penstock.archive.log_reader import LogReader
from penstock.archive.targets import Target
from penstock.database import call
from penstock.errors import EpochMissing, InvalidArgument
from penstock.records import PartitionRange
from penstock.spark.columns import ReadColumns, arrow_schema
from penstock.spark.options import COLD, HOT, DatabaseAddress, ReadOptions
from penstock.spark.ranges import COLD_EVENTS_PER_TASK, SourceRange, require_whole

if TYPE_CHECKING:
    from penstock.database import Connection

#: What to do about events that the database no longer has, in the options of the format.
BELOW_LOW_HINT = 'begin at "earliest", or read the archive too: source=auto and targets'


@dataclass(frozen=True, slots=True)
class Archive:
    """Where a task may read what the database does not have."""

    address: DatabaseAddress
    targets: tuple[Target, ...]
    #: Read copies only, also of what the database still has.
    only: bool

    @classmethod
    def of(cls, options: ReadOptions) -> Archive:
        """What the options say."""
        targets = () if options.source == HOT else options.targets
        return cls(options.address, targets, options.source == COLD)


def plan_cold(
    connection: Connection,
    options: ReadOptions,
    partition: PartitionRange,
    cold: range,
) -> list[SourceRange]:
    """A cold range of a partition in pieces for tasks, along the borders of log epochs.

    With source=cold it ends before the first log epoch that none of the targets has yet.
    """
    if not options.targets:
        raise EpochMissing(
            f"partition {partition.partition} of {options.topic} is in the database from sequence"
            f" {partition.low_sequence} on, and the read begins with {cold.start}",
            hint="say where the archive is (targets), or read the rest only (source=hot)",
        )
    found: list[SourceRange] = []
    while cold:
        plan = fetch_plan(connection, options.topic, partition.partition, cold.start, len(cold))
        for segment in plan:
            if options.source == COLD and segment.is_hot and not _is_copied(segment, options):
                if segment.copies:
                    _require_known(connection, options)
                return found
            end = min(segment.last_sequence, cold.stop - 1)
            _append(found, partition, cold.start, end)
            cold = range(end + 1, cold.stop)
        if not plan:
            break
    return found


def _is_copied(segment: Segment, options: ReadOptions) -> bool:
    names = {target.name for target in options.targets}
    return any(copy.target in names for copy in segment.copies)


def _require_known(connection: Connection, options: ReadOptions) -> None:
    """Refuse a target that has never had a copy: a misspelt name would leave rows out."""
    known = {row[2] for row in call(connection, "copies_of", topic=options.topic)}
    for target in options.targets:
        if target.name not in known:
            raise InvalidArgument(
                f'{options.topic} has no copy on "{target.name[:80]}", which targets names',
                hint=f"it has copies on: {', '.join(sorted(known))}",
            )


def _append(found: list[SourceRange], partition: PartitionRange, first: int, last: int) -> None:
    """Add a log epoch to the last range, or begin another one."""
    if found and found[-1].count + last - first + 1 <= COLD_EVENTS_PER_TASK:
        found[-1] = replace(found[-1], last=last)
    else:
        found.append(
            SourceRange(partition.partition, partition.partition_id, first, last, is_cold=True)
        )


def read_cold_range(
    archive: Archive, wanted: ReadColumns, source: SourceRange
) -> Iterator[pa.RecordBatch]:
    """The events of a range, wherever they are by now."""
    reader = LogReader(
        archive.address.found(),
        wanted.topic,
        source.partition,
        source.first,
        source.count,
        targets=archive.targets,
        from_database=not archive.only,
    )
    with reader:
        for batch in reader:
            chosen = _chosen(batch, wanted)
            if chosen.num_rows:
                yield chosen
    require_whole(source, reader.next_sequence)


def _chosen(batch: pa.RecordBatch, wanted: ReadColumns) -> pa.RecordBatch:
    """The wanted rows and columns of a batch of the archive."""
    if wanted.types is not None:
        import pyarrow.compute as pc

        batch = batch.filter(pc.is_in(batch.column("type"), pa.array(wanted.types, pa.string())))
    columns = [_column(batch, name, wanted.topic) for name in wanted.columns]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(wanted.columns))


def _column(batch: pa.RecordBatch, name: str, topic: str) -> pa.Array[Any]:
    """A column of a batch, which is of one log epoch; events that are not sealed have none."""
    rows = batch.num_rows
    if name == "topic":
        return repeated_text(topic, rows)
    if name == "log_epoch" and rows and batch.column(name)[0].as_py() == 0:
        return pa.nulls(rows, pa.int32())
    return batch.column(name)
