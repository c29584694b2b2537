"""Reading log epochs for the archive's writer: out of the database or out of a copy.

Spark's source says which task writes which log epoch, and no more.  The task that writes it reads
it too, in the order of its sequence, so that no row goes through the JVM and out of it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from ops.archive.plans import EpochPlan, load_plans
from penstock.archive.copy_reader import read_rows
from penstock.archive.database_reader import read_hot
from penstock.archive.format import with_epoch
from penstock.database import connect

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.archive.copies import EpochKey
    from penstock.archive.targets import Target


class EpochInput(InputPartition):
    """One log epoch of a job."""

    def __init__(self, plan: EpochPlan) -> None:
        """Carry the plan to the task."""
        super().__init__(plan.key)
        self.plan = plan


class EpochSource(DataSource):
    """``spark.read.format("penstock_epochs")`` with the option plans: a task and a row for each."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "penstock_epochs"

    def schema(self) -> str:
        """What names a log epoch."""
        return "`partition` int, log_epoch int"

    def reader(self, schema: StructType) -> EpochKeys:
        """The reader of the plans that the options name."""
        return EpochKeys(load_plans(self.options["plans"]))


class EpochKeys(DataSourceReader):
    """Hands every planned log epoch to a task of its own."""

    def __init__(self, plans: list[EpochPlan]) -> None:
        """Take the plans."""
        self._plans = plans

    def partitions(self) -> Sequence[InputPartition]:
        """One input partition for each log epoch."""
        return [EpochInput(plan) for plan in self._plans]

    def read(self, partition: InputPartition) -> Iterator[EpochKey]:
        """The one row of a log epoch."""
        assert isinstance(partition, EpochInput)
        yield partition.plan.key


class EpochReader:
    """Reads log epochs of one topic."""

    def __init__(self, url: str, topic: str, targets: Mapping[str, Target] | None = None) -> None:
        """Take what the tasks need; nothing is opened here."""
        self._url = url
        self._topic = topic
        self._targets = dict(targets or {})

    def read(self, plan: EpochPlan) -> Iterator[pa.RecordBatch]:
        """The epoch's events in the order of their sequence, with the columns of TABLE_SCHEMA."""
        yield from self._read_files(plan) if plan.files else self._read_database(plan)

    def _read_files(self, plan: EpochPlan) -> Iterator[pa.RecordBatch]:
        store = self._targets[plan.source].store
        for path, first_row, rows in plan.files:
            for batch in read_rows(store, path, first_row, rows):
                yield with_epoch(batch, *plan.key)

    def _read_database(self, plan: EpochPlan) -> Iterator[pa.RecordBatch]:
        with connect(self._url, application_name="penstock archive") as connection:
            yield from read_hot(
                connection, self._topic, plan.partition, log_epoch=plan.log_epoch,
                first=plan.first_sequence, last=plan.last_sequence,
            )  # fmt: skip
