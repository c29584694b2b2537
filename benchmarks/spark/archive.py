"""Archiving a topic, and reading the archive, against plain Parquet over the same files.

There is no row beside delta-spark: Maven Central has none for Spark 4.3 yet.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.bench import Bench
from benchmarks.measure import Aim, Case, Figure, Gap, Settings, figure
from benchmarks.processor import processor_seconds
from benchmarks.spark import cold_start
from benchmarks.spark.session import checked, drained, filled
from ops.archive.archiving import archive_epochs
from ops.seal import MAX_EVENTS, seal
from penstock.archive.format import DAYS, SPARK_SCHEMA
from penstock.archive.table import ArchiveTable
from penstock.archive.targets import Target
from penstock.topics.names import describe_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 2_000_000
ARCHIVE, COLD = Aim(value=60_000), Aim(ratio=0.8)


def cases(
    spark: SparkSession, bench: Bench, settings: Settings, folder: Path
) -> Iterator[Case | Figure | Gap]:
    """Each run archives the whole topic to a target of its own; the last one is read."""
    count = settings.amount(ROWS)
    topic = filled(bench, count)
    seal(bench.connection, topic, max_age_seconds=0)
    archiving = Archiving(spark, bench.url, topic, folder, count)
    yield Case("spark_archive", count, MAX_EVENTS, archiving.run, aim=ARCHIVE)
    yield figure(
        "spark_archive_processor", 1e6 * min(archiving.processor) / count, unit="us/event",
        rows=count, batch=MAX_EVENTS,
    )  # fmt: skip
    known_as = describe_topic(bench.connection, topic).known_as
    target = archiving.target
    yield Case(
        "spark_read_cold", count, MAX_EVENTS, _read(spark, bench, topic, target, count),
        lambda: drained(_parquet(spark, target, known_as), count), "plain Parquet", COLD,
    )  # fmt: skip
    yield Gap("spark_read_cold_delta", "there is no delta-spark for Spark 4.3 in Maven Central yet")
    yield from cold_start.figures(bench, settings, topic, target)


class Archiving:
    """Writing, committing, reading back and recording every log epoch of a topic."""

    def __init__(self, spark: SparkSession, url: str, topic: str, folder: Path, count: int) -> None:
        """Keep what to archive, and where."""
        self._spark, self._url, self._topic, self._count = spark, url, topic, count
        self._targets = (Target(f"bench{n}", str(folder / f"{n}")) for n in itertools.count(1))
        #: The last target.
        self.target = Target("none", str(folder))
        #: Processor seconds of each run: Python, its workers and the JVM, without the database.
        self.processor: list[float] = []

    def run(self) -> float:
        """Archive it once."""
        self.target = next(self._targets)
        before, begun = processor_seconds(os.getpid()), perf_counter()
        copies = archive_epochs(self._spark, self._url, self._topic, self.target)
        spent = perf_counter() - begun
        self.processor.append(processor_seconds(os.getpid()) - before)
        checked(sum(copy.epoch.event_count for copy in copies), self._count)
        return spent


def _read(
    spark: SparkSession, bench: Bench, topic: str, target: Target, count: int
) -> Callable[[], float]:
    def run() -> float:
        reader = spark.read.format("penstock").option("url", bench.url).option("topic", topic)
        reader = reader.option("source", "cold")
        places = json.dumps({target.name: target.uri})
        return drained(reader.option("targets", places).load(), count)

    return run


def _parquet(spark: SparkSession, target: Target, known_as: str) -> DataFrame:
    """The files that the Delta log names, as Spark reads them by itself."""
    table = ArchiveTable(target, known_as)
    paths = [str(table.folder(DAYS) / each.path) for each in table.day_files()]
    return spark.read.schema(SPARK_SCHEMA).parquet(*paths)
