"""Duties on two executors, of which one is killed at a place; run as a program.

``python -m tests.duties.cluster`` reads names of files, a line each, with a pickled `Job`.  It
writes the outcomes beside each, and says so.  What is in this file goes to the executors by value.
They have no checkout, and get the code by Spark.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ops.archive import copying
from ops.archive.writer import ArchiveSink, ArchiveWriter, WrittenEpochs
from ops.duties import audit, running
from ops.duties.setup import Setup
from ops.duties.units import DutyOutcome, DutyUnit
from ops.duties.work import do_unit
from tests.archive.stalled import vars_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

#: Before or after a statement of SQL.
BEFORE, AFTER = "before", "after"
#: What the marker says where the place of the death knows no unit.
ANY_UNIT = ""


@dataclass(frozen=True)
class Job:
    """The work of a scenario, and where the first executor that comes by dies.

    That is before or after the ``number``-th call of a statement, in a unit of a duty.  The marker
    is a file; it gets the name of the process that died, and in which unit.
    """

    name: str
    setup: Setup
    marker: Path
    duty: str
    statement: str
    when: str = AFTER
    number: int = 1


def _die(marker: str, unit: str = ANY_UNIT) -> None:
    """Kill the executor that this process works for, unless one was killed already."""
    import psutil

    from ops.duties.work import this_process

    try:
        noted = os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return
    os.write(noted, f"{this_process()}\n{unit}".encode())
    next(each for each in psutil.Process().parents() if "java" in each.name()).kill()
    time.sleep(600)  # Spark ends this process, its executor is gone


def _dying(unit: DutyUnit, setup: Setup, *, job: tuple[Any, ...]) -> DutyOutcome:
    """The unit, in a process that may die."""
    from penstock.database import calls

    marker, duty, statement, when, number = job
    if unit.duty != duty:
        return do_unit(unit, setup)
    left = [number]
    real = calls._rows

    def call(connection: Any, name: str, binds: dict[str, Any], *, raw: bool) -> Any:
        left[0] -= name == statement
        is_here = name == statement and left[0] == 0
        if is_here and when == "before":
            _die(marker, str(unit))
        rows = real(connection, name, binds, raw=raw)
        if is_here and when == "after":
            _die(marker, str(unit))
        return rows

    calls._rows = call
    try:
        return do_unit(unit, setup)
    finally:
        calls._rows = real


class _DyingWriter(ArchiveWriter):
    """Writes a file, and may die before it says so."""

    marker = ""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenEpochs:  # type: ignore[override]
        """As the archive's."""
        written = super().write(iterator)
        _die(self.marker)
        return written


class _DyingSink(ArchiveSink):
    """The archive's sink with that writer."""

    marker = ""

    def writer(self, schema: StructType, overwrite: bool) -> _DyingWriter:
        """The same writer, but for its end."""
        dying = _DyingWriter(**vars_of(super().writer(schema, overwrite)))
        dying.marker = self.marker
        return dying


def _prepare(job: Job) -> None:
    """Put what dies in the place of what works."""
    marker = str(job.marker)
    if job.name == "archive":
        _DyingSink.marker = marker
        vars(copying)["ArchiveSink"] = _DyingSink
        return
    real = audit._proved

    def proved(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in real(batches):
            _die(marker)
            yield each

    if job.name == "audit":
        vars(audit)["_proved"] = proved
    place = marker, job.duty, job.statement, job.when, job.number
    vars(running)["do_unit"] = partial(_dying, job=place)


def session() -> SparkSession:
    """Two executors of one core each, in processes of their own."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        # They start with the environment of the driver.
        "spark.executorEnv.PYTHONPATH": "nowhere",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }
    builder = SparkSession.builder.appName("duties").master("local-cluster[2,1,512]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main() -> None:
    """Do the work of each job, one after the other, in one session."""
    from tests.duties.kit import do

    spark = session()
    spark.sparkContext.setLogLevel("ERROR")
    for line in sys.stdin:
        given = Path(line.strip())
        job = pickle.loads(given.read_bytes())
        _prepare(job)
        found = do(job.name, job.setup, engine="spark", spark=lambda: spark)
        given.with_suffix(".done").write_bytes(pickle.dumps(found))
        sys.stdout.write("done\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main()
