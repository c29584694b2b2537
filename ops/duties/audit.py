"""Audit: read a range of the log, hot and cold, and prove that it is what the log promises.

It reads by the ways that readers have: FETCH in this process, the Spark data source on Spark.  The
proof itself is in `ops.duties.proof`.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ops.duties.engine import AUTO, SPARK, choose
from ops.duties.proof import Double, SeenEvents, Stretch, faults, joined, stretches, told
from ops.duties.setup import Setup
from ops.duties.units import DONE, FAILED, MAIN, DutyOutcome, DutyUnit
from penstock import database
from penstock.archive.log_reader import read
from penstock.errors import (
    BelowLowSequence,
    BeyondHighWatermark,
    CopyDamaged,
    EpochMissing,
    InvalidArgument,
    InvalidPartition,
    LogBehind,
    error_text,
)
from penstock.topics.names import partition_ranges

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: What an audit reads of an event, as the data source has it.
_COLUMNS = {
    "partition": "int",
    "sequence": "bigint",
    "event_id": "string",
    "created_at": "timestamp",
    "sequenced_at": "timestamp",
}
_STRETCH_SCHEMA = (
    "`partition` int, `first` bigint, `last` bigint, first_at bigint, last_at bigint, "
    "early bigint, back bigint"
)
#: A log that is wrong everywhere must not fill the memory of who asks.
_MOST_STRETCHES = 100_000
_MOST_DOUBLES = 1_000


def audit(
    setup: Setup,
    topic: str,
    *,
    database_name: str = MAIN,
    partition: int | None = None,
    first: int | None = None,
    last: int | None = None,
    engine: str = AUTO,
    spark: Callable[[], SparkSession] | None = None,
) -> list[DutyOutcome]:
    """Read a range of each partition, by default all of it; an outcome for each partition.

    It is "failed" when the events are not the log that was promised; the error says what is wrong.
    ``first`` and ``last`` belong to the range.  Cold events come from the targets of the setup.
    """
    whole = DutyUnit("audit", database_name, topic, partition, first, last)
    units = _ranges(setup, whole)
    events = sum((each.last or 0) - (each.first or 0) + 1 for each in units)
    # Spark cuts the ranges of an audit itself, so that one partition is not one unit.
    if choose(engine, max(2, len(units)), events) == SPARK:
        return _on_spark(setup, units, spark)
    return _here(setup, units)


def _ranges(setup: Setup, whole: DutyUnit) -> list[DutyUnit]:
    """What there is to read of each partition, its end as it is now."""
    with database.connect(setup.url(whole), application_name="penstock audit") as connection:
        present = partition_ranges(connection, whole.topic)
    chosen = [each for each in present if whole.partition in {None, each.partition}]
    if not chosen:
        raise InvalidPartition(
            f'the topic "{whole.topic}" has no partition {whole.partition}',
            hint=f"it has the partitions 0 to {len(present) - 1}",
        )
    first = 1 if whole.first is None else whole.first
    if first < 1 or (whole.last is not None and whole.last < first):
        raise InvalidArgument(
            f"there is no range from {first} to {whole.last}", hint="sequences begin with 1"
        )
    for each in chosen:
        if whole.last is not None and whole.last > each.high_watermark:
            raise BeyondHighWatermark(
                f"partition {each.partition} ends with sequence {each.high_watermark}",
                hint="leave out the end, or give one that the log has",
            )
    return [
        DutyUnit(
            "audit", whole.database, whole.topic, each.partition, first,
            each.high_watermark if whole.last is None else whole.last,
        )
        for each in chosen
    ]  # fmt: skip


def _here(setup: Setup, units: Sequence[DutyUnit]) -> list[DutyOutcome]:
    """One partition after the other, by FETCH."""
    seen = SeenEvents()
    return [_read_here(setup, unit, seen) for unit in units]


def _read_here(setup: Setup, unit: DutyUnit, seen: SeenEvents) -> DutyOutcome:
    started = time.monotonic()
    doubles: list[Double] = []
    found: list[Stretch] = []
    problem = ""
    try:
        for stretch in joined(_fetched(setup, unit, seen, doubles)):
            found.append(stretch)
            if len(found) + len(doubles) > _MOST_STRETCHES:
                problem = "the rest was not read"
                break
    except (BelowLowSequence, CopyDamaged, EpochMissing, LogBehind) as error:
        problem = error_text(error)
    return _outcome(unit, found, doubles, problem, time.monotonic() - started)


def _fetched(
    setup: Setup, unit: DutyUnit, seen: SeenEvents, doubles: list[Double]
) -> Iterator[Stretch]:
    first, count = _span(unit)
    if not count:
        return
    place = setup.url(unit), unit.topic, _number(unit), first, count
    with read(*place, targets=setup.targets) as reader:
        for batch in reader:
            doubles += seen.add(batch)
            yield from stretches(batch)


def _on_spark(
    setup: Setup, units: Sequence[DutyUnit], spark: Callable[[], SparkSession] | None
) -> list[DutyOutcome]:
    """All partitions at once: the tasks read ranges, and the doubles are found by a shuffle."""
    from ops.duties.code import ship
    from ops.spark import local_session, reason
    from penstock.spark import register

    started = time.monotonic()
    session = (spark or local_session)()
    ship(session)
    register(session)
    chosen = [each for each in units if _span(each)[1]]
    found: list[Stretch] = []
    doubles: list[Double] = []
    problem = ""
    try:
        if chosen:
            events = _frame(session, setup, chosen)
            rows = events.mapInArrow(_proved, _STRETCH_SCHEMA).limit(_MOST_STRETCHES).collect()
            found = [Stretch(*row) for row in rows]
            doubles = _doubles(events)
    except Exception as error:
        session.range(1).collect()  # Spark itself works: it is the log that cannot be read
        problem = reason(error)
    seconds = time.monotonic() - started
    return [
        _outcome(
            unit,
            [each for each in found if each.partition == unit.partition],
            [each for each in doubles if each.other_partition == unit.partition],
            problem,
            seconds,
        )
        for unit in units
    ]


def _frame(session: SparkSession, setup: Setup, units: Sequence[DutyUnit]) -> DataFrame:
    """The events of the units, hot and cold, by the data source."""
    address = setup.databases[units[0].database]
    reader = session.read.format("penstock").option("topic", units[0].topic)
    if address.url:
        reader = reader.option("url", address.url)
    elif address.variable:
        reader = reader.option("urlVariable", address.variable)
    if setup.targets:
        places = {each.name: each.uri for each in setup.targets}
        reader = reader.option("targets", json.dumps(places))
    starts = {str(each.partition): _span(each)[0] - 1 for each in units}
    ends = {str(each.partition): each.last for each in units}
    reader = reader.option("partitions", ",".join(starts))
    reader = reader.option("startingOffsets", json.dumps(starts))
    schema = ", ".join(f"`{name}` {kind}" for name, kind in _COLUMNS.items())
    return reader.option("endingOffsets", json.dumps(ends)).schema(schema).load()


def _proved(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: the stretches of what it reads."""
    import pyarrow as pa

    names = [field.name for field in dataclasses.fields(Stretch)]
    schema = pa.schema([(each, pa.int64()) for each in names])
    schema = schema.set(0, pa.field("partition", pa.int32()))
    read = (each for batch in batches if batch.num_rows for each in stretches(batch))
    for stretch in joined(read):
        yield pa.RecordBatch.from_pylist([dataclasses.asdict(stretch)], schema=schema)


def _doubles(events: DataFrame) -> list[Double]:
    """The events that are there twice, found by a shuffle."""
    from pyspark.sql import functions as sql

    place = sql.struct("partition", "sequence")
    twice = (
        events.groupBy("event_id", "created_at")
        .agg(sql.count("*").alias("n"), sql.min(place).alias("a"), sql.max(place).alias("b"))
        .where("n > 1")
        .limit(_MOST_DOUBLES)
        .selectExpr("event_id", "a.partition", "a.sequence", "b.partition", "b.sequence")
    )
    return [Double(*row) for row in twice.collect()]


def _outcome(
    unit: DutyUnit,
    found: Sequence[Stretch],
    doubles: Sequence[Double],
    problem: str,
    seconds: float,
) -> DutyOutcome:
    first, count = _span(unit)
    named = faults(found, first, first + count - 1) if not problem else []
    named = [*([problem] if problem else []), *named, *map(str, doubles)]
    events = sum(each.last - each.first + 1 for each in found)
    return DutyOutcome(
        unit,
        FAILED if named else DONE,
        events,
        round(seconds, 3),
        told(named),
        {"faults": len(named)},
    )


def _span(unit: DutyUnit) -> tuple[int, int]:
    """The first sequence of a unit, and how many it has."""
    assert unit.first is not None
    assert unit.last is not None
    return unit.first, max(0, unit.last - unit.first + 1)


def _number(unit: DutyUnit) -> int:
    assert unit.partition is not None
    return unit.partition
