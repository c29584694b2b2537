"""The same over Spark Connect: the client has no JVM, and the code travels as an artifact."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.contract.databases import PostgresDatabase
from tests.kit.log import TOPIC, topic
from tests.spark.far import MID_JOB, run_far
from tests.spark.kit import published
from tests.spark.test_cluster import SPARK_HOME, archive, interpreter

__all__ = ["archive", "interpreter"]

SINK = "tests/sink"
_SECONDS = 180

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1_200)]

PROGRAM = textwrap.dedent(
    """
    import json, sys

    remote, code, url, source, sink, checkpoint, targets = sys.argv[1:]
    sys.path.insert(0, code)
    from pyspark.sql import SparkSession
    import penstock.spark

    spark = SparkSession.builder.remote(remote).getOrCreate()
    spark.addArtifacts(code, pyfile=True)
    penstock.spark.register(spark)

    def options(of, topic):
        return of.option("url", url).option("topic", topic)

    events = options(spark.read.format("penstock"), source).option("eventsPerTask", 50).load()
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
    told = {"counts": counts, "batches": len(query.recentProgress)}
    """
) + MID_JOB  # fmt: skip


@pytest.fixture
def remote(java_home: Path, interpreter: Path, archive: Path, tmp_path: Path) -> Iterator[str]:
    """A Spark Connect server, in a folder without a checkout."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    output = tmp_path / "connect.log"
    command = [
        str(SPARK_HOME / "bin" / "spark-submit"),
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--master", "local[2]",
        "--conf", f"spark.connect.grpc.binding.port={port}",
        "--conf", "spark.connect.grpc.binding.address=127.0.0.1",
        "--conf", "spark.ui.enabled=false",
        "spark-internal",
    ]  # fmt: skip
    environment = {
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(interpreter),
        # For the processes in which the server plans streams.
        "PYTHONPATH": str(archive),
    }
    with output.open("wb") as stream:
        server = subprocess.Popen(
            command, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL,
            start_new_session=True, env=environment, cwd=tmp_path,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + _SECONDS
        while not _listens(port):
            assert server.poll() is None, output.read_text()[-4_000:]
            assert time.monotonic() < deadline, output.read_text()[-4_000:]
            time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        children = psutil.Process(server.pid).children(recursive=True)
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def test_read_write_and_stream_over_connect(
    remote: str, archive: Path, interpreter: Path, database_url: str, tmp_path: Path
) -> None:
    db = PostgresDatabase("postgres", database_url)
    events = published(db, 1_000)
    with closing(db.connect()) as own:
        topic(own, 2, SINK)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [
        str(interpreter), "-W", "ignore", "-c", PROGRAM, remote, str(archive), db.url, TOPIC, SINK,
        str(tmp_path / "checkpoint"),
    ]  # fmt: skip
    said = run_far(db, command, environment, tmp_path)
    assert said == {"counts": [events, 500, events], "batches": 11, "whole": [events] * 2}
    ((written,),) = db.run(
        "SELECT count(*) FROM penstock.events AS e JOIN penstock.topics AS t"
        f" ON t.id = e.partition_id >> 16 WHERE t.address = '{SINK}'"
    )
    assert written == 2 * events
    db.close()
