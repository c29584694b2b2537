"""Streams by real Spark."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.spark import register
from penstock.subscriptions import stream
from tests.contract.databases import PostgresDatabase
from tests.kit.log import TOPIC
from tests.spark.kit import publish_more, published

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def _run(
    spark: SparkSession, db: PostgresDatabase, folder: Path, **options: object
) -> list[list[tuple[Any, ...]]]:
    """The micro-batches of one run that reads what is available; the checkpoint stays."""
    batches: list[list[tuple[Any, ...]]] = []

    def take(frame: DataFrame, _: int) -> None:
        rows = frame.select("partition", "sequence", "key").collect()
        batches.append([tuple(row) for row in rows])

    reader = spark.readStream.format("penstock").option("url", db.url).option("topic", TOPIC)
    for name, value in {"startingOffsets": "earliest", **options}.items():
        reader = reader.option(name, str(value))
    writer = reader.load().writeStream.foreachBatch(take).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        assert query.awaitTermination(240)
    finally:
        query.stop()
    return batches


@pytest.mark.long
def test_a_thousand_sequences_with_a_limit_of_a_hundred_are_ten_batches(
    spark: SparkSession, database_url: str, tmp_path: Path
) -> None:
    register(spark)
    db = PostgresDatabase("postgres", database_url)
    published(db, 1_000, odd=False)
    with closing(db.connect()) as connection:
        stream.subscribe(connection, "lake", [TOPIC])
        batches = _run(spark, db, tmp_path, maxEventsPerTrigger=100, subscription="lake")
        assert [len(batch) for batch in batches] == [100] * 10
        rows = sorted(row[:2] for batch in batches for row in batch)
        assert rows == [(part, n) for part in range(2) for n in range(1, 501)]
        # Spark does not commit the last micro-batch of such a run.
        assert set(stream.position(connection, "lake", TOPIC).values()) == {450}

        publish_more(db, 40, odd=False, first=1_000)
        (batch,) = _run(spark, db, tmp_path, maxEventsPerTrigger=100, subscription="lake")
        assert sorted(row[:2] for row in batch) == [
            (part, n) for part in range(2) for n in range(501, 521)
        ]
        assert set(stream.position(connection, "lake", TOPIC).values()) == {500}
    db.close()
