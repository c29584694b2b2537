"""How long after its publisher's commit an event is in a micro-batch of a running stream."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.bench import Bench
from benchmarks.measure import Aim, Figure, Settings, figure
from benchmarks.spark.session import checked
from penstock.publishing.publish import publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENTS, WARM_UP, PAUSE_SECONDS = 200, 100, 0.05
AIM = Aim(at_most=500)
_MOST_SECONDS = 120


def figures(
    spark: SparkSession, bench: Bench, settings: Settings, folder: Path
) -> Iterator[Figure]:
    """Events come one by one and are sequenced at once; the first ones are not counted."""
    count = min(settings.amount(EVENTS), EVENTS)
    topic = bench.new_topic()
    seconds: list[float] = []

    def take(batch: DataFrame, _: int) -> None:
        sent = [int(bytes(row[0])) for row in batch.select("payload").collect()]
        now = time.perf_counter_ns()
        seconds.extend((now - each) / 1e9 for each in sent)

    reader = spark.readStream.format("penstock").option("url", bench.url).option("topic", topic)
    writer = reader.option("startingOffsets", "earliest").load().writeStream.foreachBatch(take)
    query = writer.option("checkpointLocation", tempfile.mkdtemp(dir=folder)).start()
    try:
        total = 0
        for events in (1, WARM_UP, count):  # the first one waits for the query to be there
            for _ in range(events):
                publish(bench.connection, topic, b"%d" % time.perf_counter_ns())
                bench.work_off()
                time.sleep(PAUSE_SECONDS)
            total += events
            end = time.monotonic() + _MOST_SECONDS
            while len(seconds) < total and query.isActive and time.monotonic() < end:
                time.sleep(PAUSE_SECONDS)
    finally:
        query.stop()
    checked(len(seconds), total)
    counted = 1_000 * median(seconds[-count:])
    yield figure("spark_stream_p50", counted, unit="ms", rows=count, batch=1, aim=AIM)
