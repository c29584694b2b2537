"""Spark's writer of the archive: tasks write Parquet files, the driver commits each log epoch once.

A task may run twice and a run may die at any point: what a task wrote becomes part of the archive
only by the driver's commit, and only when it is the log epoch that was sealed, event for event.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from ops.archive.commits import EpochCommitter, Span, Spans, WrittenFile, discard, now_ms
from ops.archive.epoch_reader import EpochReader
from ops.archive.plans import TARGETS_OPTION, EpochPlan, load_plans, load_targets
from penstock.archive.checksum import EpochChecksum
from penstock.archive.contents import EpochRows, dump_contents
from penstock.archive.copies import EpochKey
from penstock.archive.format import (
    CONTENTS_KEY,
    DAY_COLUMN,
    DAYS,
    TABLE_SCHEMA,
)
from penstock.archive.markers import check_marker
from penstock.archive.table import ArchiveTable
from penstock.archive.targets import Target

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

#: A row group ends at either bound.
ROW_GROUP_ROWS = 128 * 1024
ROW_GROUP_BYTES = 64 << 20
_SPANNED = ("created_at", "sequenced_at", "history")


@dataclass(frozen=True, slots=True)
class WrittenEpoch:
    """A log epoch that a task wrote into one file."""

    key: EpochKey
    file: WrittenFile
    event_count: int
    first_sequence: int
    last_sequence: int
    checksum: str

    def equals(self, plan: EpochPlan) -> bool:
        """Whether this is exactly what was sealed."""
        written = self.event_count, self.first_sequence, self.last_sequence, self.checksum
        sealed = plan.event_count, plan.first_sequence, plan.last_sequence, plan.checksum
        return written == sealed


@dataclass(frozen=True, slots=True)
class WrittenEpochs(WriterCommitMessage):
    """What one task tells the driver."""

    epochs: tuple[WrittenEpoch, ...]


class ArchiveSink(DataSource):
    """``df.write.format("penstock_archive")`` of log epochs' keys.

    Its options are url, topic, target, installation, known_as and plans.
    """

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "penstock_archive"

    def writer(self, schema: StructType, overwrite: bool) -> ArchiveWriter:
        """The writer into the target that the options name."""
        targets = load_targets(self.options[TARGETS_OPTION])
        return ArchiveWriter(
            targets[self.options["target"]],
            self.options["installation"],
            self.options["known_as"],
            load_plans(self.options["plans"]),
            EpochReader(self.options["url"], self.options["topic"], targets),
        )


class ArchiveWriter(DataSourceArrowWriter):
    """Writes log epochs and commits those that are what was sealed."""

    def __init__(
        self,
        target: Target,
        installation: str,
        known_as: str,
        plans: list[EpochPlan],
        reader: EpochReader,
    ) -> None:
        """Take what the tasks and the driver need; nothing is opened here."""
        self._reader = reader
        self._target = target
        self._installation = installation
        self._known_as = known_as
        self._plans = {plan.key: plan for plan in plans}

    def write(  # type: ignore[override] # Spark's own base class narrows it in the same way
        self, iterator: Iterator[pa.RecordBatch]
    ) -> WrittenEpochs:
        """In a task: one file for each log epoch that is named, complete and on the disk."""
        check_marker(self._target, self._installation)
        keys = [tuple(row.values()) for batch in iterator for row in batch.to_pylist()]
        plans = [self._plans[key] for key in keys]
        return WrittenEpochs(
            tuple(
                write_epoch(self._target, self._known_as, plan, self._reader.read(plan))
                for plan in plans
            )
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: one commit of all that is as sealed; what differs is removed."""
        check_marker(self._target, self._installation)
        table = EpochCommitter(self._target, self._known_as, self._plans.values())
        epochs = list(_epochs(messages))
        good = [epoch for epoch in epochs if epoch.equals(self._plans[epoch.key])]
        made = table.commit((self._plans[epoch.key], epoch.file) for epoch in good)
        for epoch in epochs:
            if epoch not in good or epoch.key not in made:
                discard(self._target, self._known_as, epoch.file)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: remove what the tasks have written, but for what the table names by now.

        Spark calls it also when the process that commits dies after the commit.
        """
        epochs = list(_epochs(messages))
        table = ArchiveTable(self._target, self._known_as)
        committed = table.committed([epoch.key for epoch in epochs])
        named = {entry.path for entries in committed.values() for entry in entries}
        for epoch in epochs:
            if epoch.file.path not in named:
                discard(self._target, self._known_as, epoch.file)


def _epochs(messages: list[WriterCommitMessage | None]) -> Iterator[WrittenEpoch]:
    for message in messages:
        if isinstance(message, WrittenEpochs):
            yield from message.epochs


def write_epoch(
    target: Target, known_as: str, plan: EpochPlan, batches: Iterator[pa.RecordBatch]
) -> WrittenEpoch:
    """A file of one log epoch; it is part of the archive only when it is committed."""
    relative = new_path(plan.sealed_date)
    with target.store.sink(f"{target.table_name(known_as, DAYS)}/{relative}") as sink:
        seen, spans = _write_rows(sink, plan, batches)
    file = written_file(target, known_as, relative, spans)
    return WrittenEpoch(
        plan.key, file, seen.event_count, seen.first_sequence, seen.last_sequence, seen.hexdigest()
    )


def _write_rows(
    sink: Any, plan: EpochPlan, batches: Iterator[pa.RecordBatch]
) -> tuple[EpochChecksum, Spans]:
    seen = EpochChecksum()
    with RowWriter(sink) as writer:
        for batch in batches:
            seen.add(batch)
            writer.add(batch)
        contents = EpochRows(
            *plan.key, seen.first_sequence, seen.event_count, seen.hexdigest(), 0, plan.history
        )
        writer.end([contents])
    return seen, writer.spans


class RowWriter:
    """Writes a file of layout 2: large row groups, spans of its columns, and what it holds."""

    def __init__(self, sink: Any) -> None:
        """Begin the file: a path, or what is open for writing."""
        self._writer = pq.ParquetWriter(
            sink, TABLE_SCHEMA, compression="zstd", write_page_checksum=True
        )
        self._group: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self._spans: dict[str, Span] = {}

    def __enter__(self) -> RowWriter:
        """As it is."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file; without `end` it says nothing of what it holds, and nobody reads it."""
        self._writer.close()

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the next rows, with the columns of TABLE_SCHEMA."""
        if not batch.num_rows:
            return
        for name in _SPANNED:
            column = batch.column(name)
            found = pc.min_max(column.cast(pa.int64()))
            low, high = found["min"].as_py(), found["max"].as_py()
            before = self._spans.get(name, (low, high))
            self._spans[name] = min(before[0], low), max(before[1], high)
        self._group.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
            self._write_group()

    def end(self, contents: Sequence[EpochRows]) -> None:
        """Say what the file holds."""
        self._write_group()
        self._writer.add_key_value_metadata({CONTENTS_KEY: dump_contents(contents)})

    @property
    def spans(self) -> Spans:
        """The spans of what was written."""
        return Spans(*(self._spans.get(name, (0, 0)) for name in _SPANNED))

    def _write_group(self) -> None:
        """One row group out of many Arrow batches."""
        if self._group:
            table = pa.Table.from_batches(self._group)
            self._writer.write_table(table, row_group_size=table.num_rows)
        self._group = []
        self._rows = self._bytes = 0


def new_path(sealed_date: str) -> str:
    """A place for a file of a day, relative to the table."""
    return f"{DAY_COLUMN}={sealed_date}/{uuid.uuid4()}.parquet"


def written_file(target: Target, known_as: str, relative: str, spans: Spans) -> WrittenFile:
    """A file that was just written as a whole."""
    size = target.store.size(f"{target.table_name(known_as, DAYS)}/{relative}")
    if size is None:
        raise FileNotFoundError(f"{relative} was written to {target.name} and is not there")
    return WrittenFile(relative, size, now_ms(), spans)
