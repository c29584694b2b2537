"""Spread: units over the executors of Spark, a task for each.

A task that dies with its executor is repeated by Spark on another one; a unit is fenced in the
database, so that changes nothing.  An error that a duty raises is no failure of the task: it is in
the outcome, so Spark does not repeat it.

The result of a unit comes back pickled, so that it is the same record wherever the unit was done.

The function of the tasks carries the units and the setup.  Spark shows its name in plans and pages,
and nothing of what it carries.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ops.duties.code import ship
from ops.duties.units import LOST, DutyOutcome, DutyUnit

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_SCHEMA = (
    "number bigint, state string, events bigint, seconds double, error string, result binary, "
    "worker string, lasts boolean"
)
_LOST = "its task died in each attempt; the log of the executors says why"


def spread(
    spark: SparkSession, units: Sequence[DutyUnit], work: Callable[[DutyUnit], DutyOutcome]
) -> list[DutyOutcome]:
    """Work units off in the executors; the outcome of each, in their order.

    A unit whose task dies again and again ends its whole job.  Then the units are done in halves,
    until it is alone; it is "lost", and the others are done.
    """
    ship(spark)
    found: dict[int, DutyOutcome] = {}
    _halve(spark, list(enumerate(units)), work, found)
    return [found[number] for number in range(len(units))]


def _halve(
    spark: SparkSession,
    units: Sequence[tuple[int, DutyUnit]],
    work: Callable[[DutyUnit], DutyOutcome],
    found: dict[int, DutyOutcome],
) -> None:
    try:
        rows = _job(spark, [unit for _, unit in units], work)
    except Exception as error:
        spark.range(1).collect()  # what is at fault for all of them is no unit's own
        if len(units) == 1:
            ((number, unit),) = units
            log.warning("%s is lost", unit, exc_info=error)
            found[number] = DutyOutcome(unit, LOST, 0, 0.0, _LOST)
            return
        half = len(units) // 2
        _halve(spark, units[:half], work, found)
        _halve(spark, units[half:], work, found)
        return
    for row in rows:
        number, unit = units[row["number"]]
        values = row.asDict() | {"result": pickle.loads(row["result"])}
        del values["number"]
        found[number] = DutyOutcome(unit, **values)


def _job(
    spark: SparkSession, units: Sequence[DutyUnit], work: Callable[[DutyUnit], DutyOutcome]
) -> Sequence[Any]:
    """One job with a task for each unit: a range has one row in each of its partitions."""
    numbers = spark.range(0, len(units), 1, len(units))
    return numbers.mapInArrow(_task(tuple(units), work), _SCHEMA).collect()


def _task(
    units: tuple[DutyUnit, ...], work: Callable[[DutyUnit], DutyOutcome]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def duties(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            numbers: list[Any] = batch.column(0).to_pylist()
            for number in numbers:
                did = work(units[number])
                row = {
                    "number": number, "state": did.state, "events": did.events,
                    "seconds": did.seconds, "error": did.error,
                    "result": pickle.dumps(did.result),
                    "worker": did.worker, "lasts": did.lasts,
                }  # fmt: skip
                yield pa.RecordBatch.from_pylist([row])

    return duties
