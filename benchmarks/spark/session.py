"""A Spark session on this machine, and what its cases share."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.bench import Bench
from penstock import log
from tools.servers import ServerUnavailable
from tools.servers.maven import copy_jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROOT = Path(__file__).resolve().parents[2]
_JARS = _ROOT / ".penstock" / "examples" / "java"


@contextmanager
def session(home: Path) -> Iterator[tuple[SparkSession, bool]]:
    """A session, and whether it has the JDBC driver: the one of examples/java, from Maven."""
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
        copy_jars(_ROOT / "examples" / "java" / "pom.xml", _JARS, {})
    except ServerUnavailable:
        return []
    return sorted(_JARS.glob("postgresql-*.jar"))


def filled(bench: Bench, count: int) -> str:
    """A sequenced topic whose events the server has made."""
    topic = bench.new_topic()
    bench.fill([topic], count)
    bench.work_off()
    bench.analyse()
    checked(sum(log.high_watermarks(bench.connection, topic).values()), count)
    return topic


def drained(frame: DataFrame, count: int) -> float:
    """Seconds for reading every row with every column."""
    from pyspark.sql import Observation, functions

    seen = Observation()
    observed = frame.observe(seen, functions.count("*").alias("rows"))
    begun = perf_counter()
    observed.write.format("noop").mode("overwrite").save()
    spent = perf_counter() - begun
    checked(seen.get["rows"], count)
    return spent


def checked(found: int, wanted: int) -> None:
    """RuntimeError when a run has moved another number of events than it should."""
    if found != wanted:
        raise RuntimeError(f"{found} of {wanted} events")
