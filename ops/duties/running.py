"""Run: work units off, in this process or on Spark, and report what became of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from ops.duties.engine import AUTO, SPARK, choose
from ops.duties.setup import Setup
from ops.duties.units import DutyOutcome, DutyUnit
from ops.duties.work import Work, do_unit, duty

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Units that this process does at once: they wait for databases more than they compute.
THREADS = 4


def run(
    units: Sequence[DutyUnit],
    setup: Setup,
    *,
    engine: str = AUTO,
    spark: Callable[[], SparkSession] | None = None,
    events: int = 0,
) -> list[DutyOutcome]:
    """Work units off; the outcome of each, in their order.

    ``engine`` is "sql" (this process), "spark", or "auto": Spark when there is much to do, as
    `ops.duties.engine` decides by the number of units and of ``events``.  ``spark`` gives the
    session; it is called only when Spark is used, and without it a local one is started.

    The error of a unit is in its outcome.  What is raised is at fault for all: a duty that does not
    exist, Spark that does not start.
    """
    for each in units:
        duty(each.duty)
    work = partial(do_unit, setup=setup)
    if choose(engine, len(units), events) != SPARK:
        return _here(units, work)
    if not units:
        return []
    from ops.duties.spreading import spread

    return spread((spark or _local_session)(), units, work)


def _here(units: Sequence[DutyUnit], work: Work) -> list[DutyOutcome]:
    with ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="duty") as pool:
        return list(pool.map(work, units))


def _local_session() -> SparkSession:
    from ops.spark import local_session

    return local_session("penstock duties")
