"""Spark: reading, streaming and writing a topic, against JDBC over the same functions and tables.

JDBC's driver is the one of examples/java.  Where Maven cannot fetch it, there is no peer.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from benchmarks.bench import Bench
from benchmarks.measure import Aim, Case, Settings
from benchmarks.spark.session import checked, drained, filled
from penstock import log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 1_000_000
WRITTEN = 200_000
EVENTS_PER_TASK = 100_000
JDBC = "JDBC over fetch()"
READ = Aim(ratio=0.6)

#: All ranges in one query. A predicate chooses one, and PostgreSQL calls fetch for it alone.
_FETCH = """(
    SELECT r.part, r.first, f.* FROM (
        SELECT w.partition AS part, g.first FROM penstock.high_watermarks('{topic}') AS w,
               generate_series(1, w.high_watermark, {step}) AS g (first)
    ) AS r CROSS JOIN LATERAL penstock.fetch('{topic}', r.part, r.first, {step}) AS f
) AS q"""


def cases(
    spark: SparkSession, bench: Bench, settings: Settings, folder: Path, has_jdbc: bool
) -> Iterator[Case]:
    """Without the JDBC driver there is no peer."""
    count = settings.amount(ROWS)
    topic = filled(bench, count)
    peer = _read_jdbc(spark, bench, topic, count) if has_jdbc else None
    yield Case(
        "spark_read_hot", count, EVENTS_PER_TASK, _read(spark, bench, topic, count), peer,
        JDBC if peer else "", READ if peer else None,
    )  # fmt: skip
    yield Case("spark_stream", count, EVENTS_PER_TASK, _stream(spark, bench, topic, count, folder))
    written = settings.amount(WRITTEN)
    table = bench.new_bare_table() if has_jdbc else ""
    yield Case(
        "spark_write", written, written, _write(spark, bench, written),
        _write_jdbc(spark, bench, table, written) if has_jdbc else None,
        "JDBC append" if has_jdbc else "",
    )  # fmt: skip


def _read(spark: SparkSession, bench: Bench, topic: str, count: int) -> Callable[[], float]:
    def run() -> float:
        reader = spark.read.format("penstock").option("url", bench.url).option("topic", topic)
        return drained(reader.option("eventsPerTask", EVENTS_PER_TASK).load(), count)

    return run


def _read_jdbc(spark: SparkSession, bench: Bench, topic: str, count: int) -> Callable[[], float]:
    step = min(EVENTS_PER_TASK, count)
    query = _FETCH.format(topic=topic, step=step)
    marks = log.high_watermarks(bench.connection, topic)
    predicates = [
        f"part = {part} AND first = {first}"
        for part, mark in marks.items()
        for first in range(1, mark + 1, step)
    ]

    def run() -> float:
        found = spark.read.jdbc(_jdbc_url(bench), query, predicates=predicates, properties=_LOGIN)
        return drained(found, count)

    return run


def _stream(
    spark: SparkSession, bench: Bench, topic: str, count: int, folder: Path
) -> Callable[[], float]:
    def run() -> float:
        reader = spark.readStream.format("penstock").option("url", bench.url)
        reader = reader.option("topic", topic).option("startingOffsets", "earliest")
        frame = reader.option("maxEventsPerTrigger", EVENTS_PER_TASK).load()
        writer = frame.writeStream.format("noop").trigger(availableNow=True)
        begun = perf_counter()
        checkpoint = tempfile.mkdtemp(dir=folder)
        query = writer.option("checkpointLocation", checkpoint).start()
        query.awaitTermination()
        spent = perf_counter() - begun
        checked(sum(each.numInputRows for each in query.recentProgress), count)
        return spent

    return run


def _numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 4).selectExpr(
        "concat('account-', id % 5000) AS key",
        "'account.changed' AS type",
        "CAST(repeat('0123456789', 20) AS binary) AS payload",
    )


def _write(spark: SparkSession, bench: Bench, count: int) -> Callable[[], float]:
    def run() -> float:
        topic = bench.new_topic()
        writer = _numbers(spark, count).write.format("penstock").mode("append")
        begun = perf_counter()
        writer.option("url", bench.url).option("topic", topic).save()
        spent = perf_counter() - begun
        checked(bench.work_off(), count)
        return spent

    return run


def _write_jdbc(spark: SparkSession, bench: Bench, table: str, count: int) -> Callable[[], float]:
    bench.execute(f"ALTER TABLE {table} ALTER COLUMN id SET DEFAULT gen_random_uuid()")

    def run() -> float:
        rows = _numbers(spark, count).selectExpr("*", "'application/octet-stream' AS content_type")
        begun = perf_counter()
        rows.write.jdbc(_jdbc_url(bench), table, mode="append", properties=_LOGIN)
        return perf_counter() - begun

    return run


_LOGIN = {"driver": "org.postgresql.Driver", "fetchsize": "10000"}


def _jdbc_url(bench: Bench) -> str:
    parts = urlsplit(bench.url)
    login = f"user={parts.username}&password={parts.password}&reWriteBatchedInserts=true"
    return f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}?{login}"
