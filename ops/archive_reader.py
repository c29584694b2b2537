"""Spark's reader of log epochs, for the archive's writer: out of the database or out of a copy.

One input partition is one log epoch, so that one task reads it, in the order of its sequence, and
the task that writes it needs no shuffle.  The log never changes and has no gaps, so an epoch is
read page by page in short transactions: no snapshot is held while an epoch is copied, which would
keep the database from cleaning up behind everybody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from ops.archive_plans import TARGETS_OPTION, EpochPlan, load_plans, load_targets
from penstock.archive.format import FILE_SCHEMA, SPARK_SCHEMA, with_epoch
from penstock.archive.reader import ROWS_PER_BATCH, read_rows
from penstock.database import connect, stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

    from penstock.archive.targets import Target

#: One call of `fetch`; it bounds how long a snapshot is held and what the server materialises.
_EVENTS_PER_PAGE = 10_000
#: What is read from the socket at once: with payloads at their limit of 1 MiB that many MiB.
_ROWS_PER_READ = 64
#: A batch for Spark ends at either bound.
_BYTES_PER_BATCH = 8 << 20
_PAYLOAD_COLUMN = FILE_SCHEMA.get_field_index("payload")


class EpochInput(InputPartition):
    """One log epoch to read."""

    def __init__(self, plan: EpochPlan) -> None:
        """Carry the plan to the task."""
        super().__init__(plan.key)
        self.plan = plan


class EpochSource(DataSource):
    """``spark.read.format("penstock_epochs")`` with the options url, topic and plans."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "penstock_epochs"

    def schema(self) -> str:
        """The columns of the archive."""
        return SPARK_SCHEMA

    def reader(self, schema: StructType) -> EpochReader:
        """The reader of the plans that the options name."""
        return EpochReader(
            self.options["url"],
            self.options["topic"],
            load_plans(self.options["plans"]),
            load_targets(self.options[TARGETS_OPTION]),
        )


class EpochReader(DataSourceReader):
    """Reads every planned log epoch in a task of its own."""

    def __init__(
        self,
        url: str,
        topic: str,
        plans: list[EpochPlan],
        targets: Mapping[str, Target] | None = None,
    ) -> None:
        """Take what the tasks need; nothing is opened here."""
        self._targets = dict(targets or {})
        self._url = url
        self._topic = topic
        self._plans = plans

    def partitions(self) -> Sequence[InputPartition]:
        """One input partition for each log epoch."""
        return [EpochInput(plan) for plan in self._plans]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The epoch's events as Arrow batches, in the order of their sequence."""
        assert isinstance(partition, EpochInput)
        plan = partition.plan
        batches = self._read_files(plan) if plan.files else self._read_database(plan)
        for batch in batches:
            yield with_epoch(batch, *plan.key)

    def _read_files(self, plan: EpochPlan) -> Iterator[pa.RecordBatch]:
        store = self._targets[plan.source].store
        for path, first_row, rows in plan.files:
            yield from read_rows(store, path, first_row, rows)

    def _read_database(self, plan: EpochPlan) -> Iterator[pa.RecordBatch]:
        with connect(self._url, application_name="penstock archive") as connection:
            position = plan.first_sequence
            while position <= plan.last_sequence:
                wanted = min(_EVENTS_PER_PAGE, plan.last_sequence - position + 1)
                yield from _read_page(
                    connection,
                    topic=self._topic,
                    partition=plan.partition,
                    from_sequence=position,
                    max_events=wanted,
                )
                position += wanted


def _read_page(connection: Any, **binds: Any) -> Iterator[pa.RecordBatch]:
    rows: list[tuple[Any, ...]] = []
    size = 0
    for row in stream(connection, "archive_fetch", rows_at_once=_ROWS_PER_READ, **binds):
        rows.append(row)
        size += len(row[_PAYLOAD_COLUMN] or b"")
        if len(rows) >= ROWS_PER_BATCH or size >= _BYTES_PER_BATCH:
            yield _batch(rows)
            rows, size = [], 0
    if rows:
        yield _batch(rows)


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [
        pa.array(values, field.type)
        for values, field in zip(zip(*rows, strict=True), FILE_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=FILE_SCHEMA)
