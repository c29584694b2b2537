"""Spark's writer of the archive: tasks write Parquet files, the driver commits each log epoch once.

A task may run twice and a run may die at any point: what a task wrote becomes part of the archive
only by the driver's commit, and only when it is the log epoch that was sealed, event for event.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from ops.archive_commits import EpochCommitter, WrittenFile, discard
from ops.archive_plans import EpochPlan, load_plans
from penstock.archive.checksum import EpochChecksum, batch_fields
from penstock.archive.copies import EpochKey
from penstock.archive.format import CHECKSUM_KEY, FILE_SCHEMA, PARTITION_COLUMNS, SPARK_SCHEMA
from penstock.archive.markers import check_marker
from penstock.archive.targets import Target, make_durable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql.types import StructType

#: A row group ends at either bound; Spark hands batches of at most 10,000 rows.
ROW_GROUP_ROWS = 128 * 1024
ROW_GROUP_BYTES = 64 << 20


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
    """``df.write.format("penstock_archive")`` with target, uri, installation, known_as, plans."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "penstock_archive"

    def schema(self) -> str:
        """The columns of the archive."""
        return SPARK_SCHEMA

    def writer(self, schema: StructType, overwrite: bool) -> ArchiveWriter:
        """The writer into the target that the options name."""
        return ArchiveWriter(
            Target(self.options["target"], self.options["uri"]),
            self.options["installation"],
            self.options["known_as"],
            load_plans(self.options["plans"]),
        )


class ArchiveWriter(DataSourceArrowWriter):
    """Writes log epochs and commits those that are what was sealed."""

    def __init__(
        self, target: Target, installation: str, known_as: str, plans: list[EpochPlan]
    ) -> None:
        """Take what the tasks and the driver need; nothing is opened here."""
        self._target = target
        self._installation = installation
        self._known_as = known_as
        self._plans = {plan.key: plan for plan in plans}

    def write(  # type: ignore[override] # Spark's own base class narrows it in the same way
        self, iterator: Iterator[pa.RecordBatch]
    ) -> WrittenEpochs:
        """In a task: one file for each log epoch of the input, complete and on the disk."""
        check_marker(self._target, self._installation)
        folder = self._target.table_path(self._known_as)
        epochs = [
            _write_file(folder, key, (batch for _, batch in group))
            for key, group in groupby(_by_epoch(iterator), key=lambda each: each[0])
        ]
        return WrittenEpochs(tuple(epochs))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: one commit for each log epoch; what differs from its seal is removed."""
        check_marker(self._target, self._installation)
        table = EpochCommitter(self._target, self._known_as, self._plans)
        for epoch in _epochs(messages):
            plan = self._plans[epoch.key]
            if not (epoch.equals(plan) and table.commit(plan, epoch.file)):
                discard(self._target, self._known_as, epoch.file)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: remove what the tasks that succeeded have written."""
        for epoch in _epochs(messages):
            discard(self._target, self._known_as, epoch.file)


def _epochs(messages: list[WriterCommitMessage | None]) -> Iterator[WrittenEpoch]:
    for message in messages:
        if isinstance(message, WrittenEpochs):
            yield from message.epochs


def _by_epoch(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[EpochKey, pa.RecordBatch]]:
    """The batches, cut where the log epoch changes, each with the key of its epoch."""
    for batch in batches:
        columns = (batch[name].to_pylist() for name in PARTITION_COLUMNS)
        keys = list(zip(*columns, strict=True))
        start = 0
        for key, run in groupby(keys):
            length = len(list(run))
            yield key, batch.slice(start, length)
            start += length


def _write_file(folder: Path, key: EpochKey, batches: Iterator[pa.RecordBatch]) -> WrittenEpoch:
    relative = f"partition={key[0]}/log_epoch={key[1]}/{uuid.uuid4()}.parquet"
    path = folder / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        seen = _write_rows(path, batches)
    except BaseException:
        path.unlink(missing_ok=True)  # the disk may be full: leave it as it was
        raise
    for each in (path, path.parent, path.parent.parent, folder):
        make_durable(each)
    status = os.stat(path)
    file = WrittenFile(relative, status.st_size, status.st_mtime_ns // 1_000_000)
    return WrittenEpoch(
        key, file, seen.event_count, seen.first_sequence, seen.last_sequence, seen.hexdigest()
    )


def _write_rows(path: Path, batches: Iterator[pa.RecordBatch]) -> EpochChecksum:
    seen = EpochChecksum()
    group: list[pa.RecordBatch] = []
    with pq.ParquetWriter(path, FILE_SCHEMA, compression="zstd") as writer:
        for batch in batches:
            rows = batch.select(FILE_SCHEMA.names).cast(FILE_SCHEMA)
            seen.add_all(batch_fields(rows))
            group.append(rows)
            if _is_full(group):
                _write_group(writer, group)
        _write_group(writer, group)
        writer.add_key_value_metadata({CHECKSUM_KEY: seen.hexdigest()})
    return seen


def _is_full(group: list[pa.RecordBatch]) -> bool:
    rows, size = sum(each.num_rows for each in group), sum(each.nbytes for each in group)
    return rows >= ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES


def _write_group(writer: pq.ParquetWriter, group: list[pa.RecordBatch]) -> None:
    """One row group out of many Arrow batches."""
    if group:
        table = pa.Table.from_batches(group)
        writer.write_table(table, row_group_size=max(table.num_rows, 1))
        group.clear()
