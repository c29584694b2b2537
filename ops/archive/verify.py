"""Reads copies back from the target and computes count and checksum of what really lies there."""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from ops.archive.copy_readings import CopyReading
from ops.archive.epoch_reader import EpochInput
from ops.archive.plans import (
    TARGETS_OPTION,
    EpochPlan,
    dump_plans,
    dump_targets,
    load_plans,
    load_targets,
)
from ops.spark import register
from penstock.archive.checksum import EpochChecksum
from penstock.archive.contents import contents_of, read_contents, require_held
from penstock.archive.copy_reader import read_rows
from penstock.archive.format import CHECKSUM_KEY, CONTENTS_KEY, PARTITION_COLUMNS
from penstock.archive.markers import is_there
from penstock.errors import TargetUnavailable, error_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from penstock.archive.copies import EpochKey
    from penstock.archive.targets import Target

_SCHEMA = (
    "`partition` int, log_epoch int, event_count bigint, checksum string, damage string, "
    "other_log boolean, unavailable boolean"
)


class CopySource(DataSource):
    """``spark.read.format("penstock_copies")``: a row for each plan, read by a task of its own."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "penstock_copies"

    def schema(self) -> str:
        """The fields of :class:`CopyReading`."""
        return _SCHEMA

    def reader(self, schema: StructType) -> CopyReader:
        """The reader of the plans that the options name."""
        (target,) = load_targets(self.options[TARGETS_OPTION]).values()
        return CopyReader(load_plans(self.options["plans"]), target)


class CopyReader(DataSourceReader):
    """Reads each copy where the data is, one task each."""

    def __init__(self, plans: list[EpochPlan], target: Target) -> None:
        """Take the copies to read."""
        self._plans = plans
        self._target = target

    def partitions(self) -> Sequence[InputPartition]:
        """One input partition for each copy."""
        return [EpochInput(plan) for plan in self._plans]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """The one row of a copy."""
        assert isinstance(partition, EpochInput)
        yield astuple(read_copy(partition.plan, self._target))


def read_copies(
    spark: SparkSession, plans: list[EpochPlan], target: Target
) -> dict[EpochKey, CopyReading]:
    """Read the files of every plan back, in Spark's tasks; TargetUnavailable when one is away."""
    if not plans:
        return {}
    register(spark, CopySource)
    options = {"plans": dump_plans(plans), TARGETS_OPTION: dump_targets([target])}
    rows = spark.read.format(CopySource.name()).options(**options).load().collect()
    readings = {reading.key: reading for reading in (CopyReading(*row) for row in rows)}
    for plan in plans:
        if readings[plan.key].unavailable:
            raise TargetUnavailable(
                f"the archive target at {target.place} is not there for Spark's tasks",
                hint="mount it on every machine that Spark runs on",
            )
    return readings


def read_copy(plan: EpochPlan, target: Target) -> CopyReading:
    """Read the files of one log epoch back and compare them with its seal."""
    seen = EpochChecksum()
    damage, is_away = "", False
    try:
        for path, first_row, rows in plan.files:
            for batch in read_rows(target.store, path, first_row, rows):
                _require_epoch(batch, plan)
                seen.add(batch)
            if rows >= 0:
                # ValueError when there are rows that no log epoch has
                contents = read_contents(target.store.source(path))
                require_held(contents, plan.key, first_row, plan.checksum)
    except TargetUnavailable as error:
        damage, is_away = str(error), True
    except (OSError, ValueError, pa.ArrowException) as error:
        damage = error_text(error)
    found = seen.event_count, seen.first_sequence, seen.last_sequence, seen.hexdigest()
    sealed = plan.event_count, plan.first_sequence, plan.last_sequence, plan.checksum
    if not damage and found != sealed:
        damage = _difference(plan, seen)
    if not damage and plan.checksum not in _written_as(plan, target):
        # Readers find it by this word; what it stands for may be gone with the next VACUUM.
        damage = "its file does not say that it holds it: another program has written it"
    return CopyReading(
        *plan.key,
        event_count=seen.event_count,
        checksum=seen.hexdigest(),
        damage=damage,
        other_log=bool(damage) and _written_as(plan, target) == [seen.hexdigest()],
        unavailable=is_away or (bool(damage) and not is_there(target)),
    )


def _require_epoch(batch: pa.RecordBatch, plan: EpochPlan) -> None:
    """ValueError when rows of layout 2 say that they are another log epoch's."""
    for name, value in zip(PARTITION_COLUMNS, plan.key, strict=True):
        if name in batch.schema.names and pc.unique(batch[name]).to_pylist() != [value]:
            raise ValueError(f"rows of another {name} than {value}")


def _difference(plan: EpochPlan, seen: EpochChecksum) -> str:
    if not plan.files:
        return "the table does not hold it"
    if seen.event_count != plan.event_count:
        return f"{seen.event_count} events instead of {plan.event_count}"
    return f"checksum {seen.hexdigest()} instead of {plan.checksum}"


def _written_as(plan: EpochPlan, target: Target) -> list[str]:
    """The checksums that the files themselves say they were written with."""
    found = []
    for path, _, _ in plan.files:
        try:
            metadata = pq.read_metadata(target.store.source(path))
            if CONTENTS_KEY.encode() in (metadata.metadata or {}):
                found += [each.checksum for each in contents_of(metadata) if each.key == plan.key]
            else:
                found.append((metadata.metadata or {}).get(CHECKSUM_KEY.encode(), b"").decode())
        except (OSError, ValueError, TypeError, pa.ArrowException, TargetUnavailable):
            return []
    return found
