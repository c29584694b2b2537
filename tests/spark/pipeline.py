"""A stream from one topic to another; run as a program it stands still at a place.

python -m tests.spark.pipeline URL SOURCE SINK CHECKPOINT
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS_A_BATCH = 50


def run(
    spark: SparkSession, url: str, source: str, sink: str, checkpoint: str, **written: object
) -> None:
    """Copy what is there, micro-batch by micro-batch."""
    events = (
        spark.readStream.format("penstock")
        .option("url", url)
        .option("topic", source)
        .option("startingOffsets", "earliest")
        .option("maxEventsPerTrigger", str(EVENTS_A_BATCH))
        .load()
        .select("key", "payload", "partition")
    )
    query = (
        events.writeStream.format("penstock")
        .options(**{name: str(value) for name, value in written.items()})
        .option("url", url)
        .option("topic", sink)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    try:
        if not query.awaitTermination(240):
            raise TimeoutError("the stream did not end")
    finally:
        query.stop()


if __name__ == "__main__":
    from ops.spark import local_session
    from tests.spark.stalling import StallingSource

    session = local_session("pipeline")
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(StallingSource)
    run(session, *sys.argv[1:])
