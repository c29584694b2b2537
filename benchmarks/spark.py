"""Spark: reading, streaming and writing a topic, against JDBC over the same functions and tables.

JDBC's driver is the one of examples/java.  Where Maven cannot fetch it, there is no peer.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from benchmarks.bench import Bench
from benchmarks.measure import Aim, Case, Gap, Settings
from penstock import log
from penstock.spark import register
from tools import java
from tools.servers import ServerUnavailable
from tools.servers.maven import copy_jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).resolve().parents[1]
JARS = ROOT / ".penstock" / "examples" / "java"
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


def cases(bench: Bench, settings: Settings) -> Iterator[Case | Gap]:
    """A session is started once; the pair that warms up pays for its first use."""
    try:
        home = java.home()
    except java.JavaMissing as error:
        yield Gap("spark", str(error))
        return
    with _session(home) as (spark, has_jdbc), tempfile.TemporaryDirectory() as folder:
        register(spark)
        count = settings.amount(ROWS)
        topic = _filled(bench, count)
        peer = _read_jdbc(spark, bench, topic, count) if has_jdbc else None
        yield Case(
            "spark_read_hot", count, EVENTS_PER_TASK, _read(spark, bench, topic, count), peer,
            JDBC if peer else "", READ if peer else None,
        )  # fmt: skip
        yield Case(
            "spark_stream", count, EVENTS_PER_TASK,
            _stream(spark, bench, topic, count, Path(folder)),
        )  # fmt: skip
        written = settings.amount(WRITTEN)
        table = bench.new_bare_table() if has_jdbc else ""
        yield Case(
            "spark_write", written, written, _write(spark, bench, written),
            _write_jdbc(spark, bench, table, written) if has_jdbc else None,
            "JDBC append" if has_jdbc else "",
        )  # fmt: skip


@contextmanager
def _session(home: Path) -> Iterator[tuple[SparkSession, bool]]:
    """A session, and whether it has the JDBC driver."""
    from pyspark.sql import SparkSession

    from ops.spark import local_session_config

    os.environ["JAVA_HOME"] = str(home)
    jars = _jars()
    builder = SparkSession.builder.appName("bench").config("spark.jars", ",".join(map(str, jars)))
    for key, value in local_session_config().items():
        builder = builder.config(key, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark, bool(jars)
    finally:
        spark.stop()


def _jars() -> list[Path]:
    try:
        copy_jars(ROOT / "examples" / "java" / "pom.xml", JARS, {})
    except ServerUnavailable:
        return []
    return sorted(JARS.glob("postgresql-*.jar"))


def _filled(bench: Bench, count: int) -> str:
    """A sequenced topic whose events the server has made."""
    topic = bench.new_topic()
    bench.fill([topic], count)
    bench.work_off()
    bench.analyse()
    if sum(log.high_watermarks(bench.connection, topic).values()) != count:
        raise RuntimeError("the topic has another number of events")
    return topic


def _read(spark: SparkSession, bench: Bench, topic: str, count: int) -> Callable[[], float]:
    def run() -> float:
        reader = spark.read.format("penstock").option("url", bench.url).option("topic", topic)
        return _drained(reader.option("eventsPerTask", EVENTS_PER_TASK).load(), count)

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
        return _drained(found, count)

    return run


def _drained(frame: DataFrame, count: int) -> float:
    """Seconds for reading every row with every column."""
    from pyspark.sql import Observation, functions

    seen = Observation()
    observed = frame.observe(seen, functions.count("*").alias("rows"))
    begun = perf_counter()
    observed.write.format("noop").mode("overwrite").save()
    spent = perf_counter() - begun
    _checked(seen.get["rows"], count)
    return spent


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
        _checked(sum(each.numInputRows for each in query.recentProgress), count)
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
        _checked(bench.work_off(), count)
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


def _checked(found: int, wanted: int) -> None:
    if found != wanted:
        raise RuntimeError(f"{found} of {wanted} events")
