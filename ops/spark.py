"""How Spark starts on one machine: a configuration, and a session made from it.

Nothing in ``ops`` touches an RDD or the JVM, and the Spark context only to cancel jobs, where there
is one.  So every verb also runs over Spark Connect and on a cluster; there the workers need this
project on their ``PYTHONPATH``.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

_ROOT = Path(__file__).resolve().parent.parent
#: Seconds to a usable session matter more here than the last percent of a long job.
_SAYS_WHY = re.compile(
    r"penstock\.errors\.\w+:|[A-Za-z_.]*(Error|Exception|Refused|Unavailable|NotFound)\b.*:"
)
_QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def local_session_config() -> dict[str, str]:
    """The Spark settings of a local run.

    It also gives the environment what Spark reads only from there, unless it is set already: the
    interpreter of the workers (else they run the first ``python3`` on the PATH), the address of
    this machine, and the folder from which workers import ``ops`` and ``penstock``.
    """
    _prepare_environment()
    scratch = _ROOT / ".penstock" / "spark"
    return {
        "spark.master": os.environ.get("PENSTOCK_SPARK_MASTER", "local[2]"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        # The bytes bound matters with large payloads; the default is 64 MiB per batch and worker.
        "spark.sql.execution.arrow.maxBytesPerBatch": "16m",
        "spark.local.dir": str(scratch / "tmp"),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"{_QUICK_JVM} -Dderby.system.home={scratch / 'derby'}",
    }


def local_session(app_name: str = "penstock") -> SparkSession:
    """A session with :func:`local_session_config`, or the one that this process has already."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    for key, value in local_session_config().items():
        builder = builder.config(key, value)
    with starting():
        return builder.getOrCreate()


@contextmanager
def starting() -> Iterator[None]:
    """ConfigurationError when a session does not start: Spark itself names no Java."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        is_java = error.getCondition() == "JAVA_GATEWAY_EXITED"
        raise ConfigurationError(
            f"Spark does not start: {str(error).splitlines()[0]}",
            hint="install Java 17 or newer, and set JAVA_HOME to its folder"
            if is_java
            else "look at PENSTOCK_SPARK_MASTER and at the other settings of Spark",
        ) from error


_registered: weakref.WeakKeyDictionary[SparkSession, set[str]] = weakref.WeakKeyDictionary()
_registering = threading.Lock()


def register(spark: SparkSession, *sources: type[DataSource]) -> None:
    """Make data sources known to a session, each one once, and the session to this thread.

    A second registration would take the first one away for a moment, from under other threads.
    And a write looks a data source up in the thread's active session only: a thread that did not
    build the session has none until it makes a first data frame.
    """
    spark.createDataFrame([], "nothing int")
    with _registering:
        known = _registered.setdefault(spark, set())
        for source in sources:
            if source.name() not in known:
                spark.dataSource.register(source)
                known.add(source.name())


def tag_jobs(spark: SparkSession, tag: str) -> None:
    """Mark the jobs that this thread starts from now on, for `cancel_jobs`."""
    if is_remote():
        spark.addTag(tag)
    else:
        spark.sparkContext.addJobTag(tag)


def cancel_jobs(spark: SparkSession, tag: str) -> None:
    """End the jobs that some thread has marked.

    A session's own tags are the thread's on a local session: no other one can cancel by them.
    """
    if is_remote():
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)


def is_remote() -> bool:
    """Whether this process uses Spark Connect."""
    from pyspark.sql.utils import is_remote as said

    return bool(said())


def reason(error: Exception) -> str:
    """The line of an error out of a Spark task that says what happened there."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if _SAYS_WHY.match(line)]
    return (said or lines or [type(error).__name__])[-1 if said else 0][:500]


def _prepare_environment() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    known = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    if str(_ROOT) not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *known])
