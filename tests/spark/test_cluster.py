"""A standalone cluster, a master and two workers, on which nothing of Penstock is installed.

The workers' Python has the drivers and pyarrow.  Penstock travels to them as an archive: the wheel.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pyspark
import pytest

from tests.contract.databases import PostgresDatabase
from tests.kit.interpreter import bare_interpreter
from tests.kit.log import TOPIC, topic
from tests.spark.far import MID_JOB, run_far
from tests.spark.kit import logged, published

ROOT = Path(__file__).resolve().parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
SINK = "tests/sink"
_SECONDS = 120

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1_200)]

#: Runs in a folder without a checkout, by an interpreter that has no penstock.
PROGRAM = textwrap.dedent(
    """
    import json, sys

    master, code, url, source, sink, checkpoint, targets = sys.argv[1:]
    from pyspark.sql import SparkSession
    import penstock.spark

    spark = (
        SparkSession.builder.master(master)
        .config("spark.executor.memory", "700m").config("spark.executor.cores", "1")
        .config("spark.ui.enabled", "false").config("spark.submit.pyFiles", code)
        .config("spark.driver.host", "127.0.0.1").config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.sparkContext.addPyFile(code)
    penstock.spark.register(spark)

    def place(_):
        import penstock
        return penstock.__file__

    places = spark.sparkContext.parallelize(range(8), 8).map(place).distinct().collect()
    assert penstock.__file__.startswith(code), penstock.__file__

    def options(of, topic):
        return of.option("url", url).option("topic", topic)

    events = options(spark.read.format("penstock"), source).option("eventsPerTask", 50).load()
    workers = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    counts = [events.count(), events.filter("type = 'even'").count(), events.count()]
    batch = events.select("key", "payload")
    for _ in range(2):
        writer = options(batch.write.format("penstock").mode("append"), sink)
        writer.option("writeId", "once").option("writeVersion", 1).save()
    stream = options(spark.readStream.format("penstock"), source)
    stream = stream.option("startingOffsets", "earliest").option("maxEventsPerTrigger", 100).load()
    writer = options(stream.select("key", "payload").writeStream.format("penstock"), sink)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(240)
    decoded = options(spark.read.format("penstock"), source).option("decode", "json")
    decoded = decoded.option("decodeSchema", "a int").load()
    malformed = decoded.where("_malformed IS NOT NULL").count()
    drift = penstock.spark.schema_drift(spark, source, "a int", url=url)
    told = {"counts": counts, "workers": workers, "places": places, "malformed": malformed,
            "drift": [each.events for each in drift], "batches": len(query.recentProgress)}
    """
) + MID_JOB  # fmt: skip


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """The wheel, under the ending that Spark takes for Python code."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    return Path(shutil.copy(wheel, tmp_path / "penstock.zip"))


@pytest.fixture
def interpreter(tmp_path: Path) -> Path:
    """A Python with all packages of this one but Penstock."""
    return bare_interpreter(tmp_path / "python")


@pytest.fixture
def master(java_home: Path, interpreter: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a master with two workers."""
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(interpreter),
    }
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> Path:
        output = tmp_path / f"{name}.log"
        with output.open("wb") as stream:
            started.append(
                subprocess.Popen(
                    [str(SPARK_HOME / "bin" / "spark-class"), *arguments],
                    stdout=stream,
                    stderr=stream,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    env=environment,
                    cwd=tmp_path,
                )
            )
        return output

    host = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    try:
        output = start("master", "org.apache.spark.deploy.master.Master", *host)
        address = _found(output, r"spark://127\.0\.0\.1:\d+")
        for number in range(2):
            worker = "org.apache.spark.deploy.worker.Worker"
            folder = str(tmp_path / f"worker-{number}")
            own = ["-c", "1", "-m", "1g", "-d", folder, *host, address]
            _found(start(f"worker-{number}", worker, *own), "Successfully registered with master")
        yield address
    finally:
        for process in started:
            children = psutil.Process(process.pid).children(recursive=True)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()


def _found(output: Path, pattern: str) -> str:
    deadline = time.monotonic() + _SECONDS
    while not (found := re.search(pattern, output.read_text())):
        assert time.monotonic() < deadline, output.read_text()[-4_000:]
        time.sleep(0.1)
    return found[0]


def test_the_code_travels_as_an_archive(
    master: str, archive: Path, interpreter: Path, database_url: str, tmp_path: Path
) -> None:
    """Read, write and stream on workers without a checkout, also while retention drops."""
    db = PostgresDatabase("postgres", database_url)
    events = published(db, 1_000)
    with closing(db.connect()) as own:
        topic(own, 2, SINK)
    assert len(logged(db)) == events
    command = [
        str(interpreter), "-c", PROGRAM, master, str(archive), db.url, TOPIC, SINK,
        str(tmp_path / "checkpoint"),
    ]  # fmt: skip
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": str(interpreter),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Spark hands files of the job to its workers, but not to the driver's own processes.
        "PYTHONPATH": str(archive),
    }
    said = run_far(db, command, environment, tmp_path)
    places = said.pop("places")
    # Two events have no payload, and no other one has a JSON object.
    assert said == {
        "counts": [events, 500, events], "workers": 2, "batches": 11, "malformed": events - 2,
        "drift": [events - 2], "whole": [events] * 2,
    }  # fmt: skip
    # In the folder that the worker runs in, and in none of a checkout.
    assert places == ["./penstock.zip/penstock/__init__.py"]
    ((written,),) = db.run(
        "SELECT count(*) FROM penstock.events AS e JOIN penstock.topics AS t"
        f" ON t.id = e.partition_id >> 16 WHERE t.address = '{SINK}'"
    )
    assert written == 2 * events
    db.close()
