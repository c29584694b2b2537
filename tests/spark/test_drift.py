"""Decoding by real Spark, and where payloads differ from a schema."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructType

import penstock.spark
from penstock.errors import InvalidArgument
from penstock.log import Lsn
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.spark.drift import MISSING, NEW, OTHER_TYPE, FieldDrift, Walk
from penstock.spark.schemas import parse_schema
from tests.contract.databases import PostgresDatabase
from tests.kit.log import TOPIC, drain, topic
from tests.spark.kit import frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "id bigint, name string, price decimal(9,2), at timestamp, tags array<string>,"
    " o struct<a: int, b: boolean>, counts map<string, int>"
)
WHOLE = {
    "id": 1, "name": "ä", "price": 0.25, "at": "2026-03-01T10:00:00Z", "tags": ["x", None],
    "o": {"a": 1, "b": True}, "counts": {"k": 2},
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, []),
        ({"id": None}, []),
        ({"id": "1"}, [("id", OTHER_TYPE, "bigint", "string")]),
        ({"name": 1}, [("name", OTHER_TYPE, "string", "integer")]),
        ({"price": 0.125}, [("price", OTHER_TYPE, "decimal(9,2)", "number")]),
        ({"extra": {}}, [("extra", NEW, None, "object")]),
        ({"tags": [1, 2]}, [("tags[]", OTHER_TYPE, "string", "integer")]),
        ({"counts": {"k": True}}, [("counts{}", OTHER_TYPE, "int", "boolean")]),
        (
            {"o": {"a": 1, "c": []}},
            [("o.b", MISSING, "boolean", None), ("o.c", NEW, None, "array")],
        ),
    ],
)
def test_differences(changed: dict[str, Any], expected: list[Any]) -> None:
    walk = Walk(parse_schema(SCHEMA))
    assert sorted(walk.differences(json.dumps(WHOLE | changed).encode())) == expected


def test_a_payload_that_is_no_object_and_one_that_is_absent() -> None:
    walk = Walk(parse_schema("a int"))
    assert walk.differences(b"[]") == {("", OTHER_TYPE, "object", None)}
    assert walk.differences(b"") == set()
    assert walk.differences(b'{"\\ud800": 1, "a": 1}') == {("?", NEW, None, "integer")}


def _published(db: PostgresDatabase, payloads: list[dict[str, Any] | bytes]) -> None:
    with closing(db.connect()) as own:
        topic(own, 2)
        publish_batch(
            own,
            [
                Message(
                    TOPIC,
                    each if isinstance(each, bytes) else json.dumps(each).encode(),
                    partition=n % 2,
                )
                for n, each in enumerate(payloads)
            ],
        )
        drain(own)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_reads_the_columns_in_batches_and_streams(
    spark: SparkSession, database_url: str, tmp_path: Path
) -> None:
    penstock.spark.register(spark)
    db = PostgresDatabase("postgres", database_url)
    _published(db, [WHOLE, WHOLE, b"secret"])
    decoded = frame(spark, db, decode="json", decodeSchema=SCHEMA)
    assert decoded.schema["value"].dataType == StructType.fromDDL(SCHEMA)
    chosen = decoded.orderBy("partition", "sequence").selectExpr("_malformed", "value.*").toArrow()
    row, malformed, _ = chosen.to_pylist()
    assert (row["_malformed"], malformed["_malformed"]) == (None, b"secret")
    assert row["at"] == datetime(2026, 3, 1, 10, tzinfo=UTC)
    assert (row["tags"], row["o"], row["counts"]) == (
        ["x", None], {"a": 1, "b": True}, [("k", 2)]
    )  # fmt: skip
    with pytest.raises(Exception, match="PayloadMisfit: the payload of sequence 2 in part") as bad:
        frame(spark, db, decode="json", decodeMode="failfast").collect()
    assert "secret" not in str(bad.value)

    seen: list[Any] = []

    def take(batch: DataFrame, _: int) -> None:
        seen.extend(row[0] for row in batch.select("value.id").collect())

    stream = spark.readStream.format("penstock").option("url", db.url).option("topic", TOPIC)
    stream = stream.option("startingOffsets", "earliest").option("decode", "json")
    writer = stream.option("decodeMode", "dropmalformed").load().writeStream.foreachBatch(take)
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(240)
    assert seen == [1, 1]
    db.close()


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_schemas_are_understood_as_spark_does(spark: SparkSession) -> None:
    for text in (
        SCHEMA,
        "`a``b, c` dec, `int` real, b: long, c numeric(7)",
        "struct<a: array<date>>",
    ):
        assert parse_schema(text) == StructType.fromDDL(text)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_drift_is_counted_over_a_range(spark: SparkSession, database_url: str) -> None:
    db = PostgresDatabase("postgres", database_url)
    new: dict[str, Any] = {"id": 2, "late": True}
    _published(db, [{"id": "1"}, {"id": 1}, new, new, b"secret", {"id": 1}, new, {}])
    found = penstock.spark.schema_drift(
        spark, TOPIC, "id int", url=db.url, startingOffsets="earliest"
    )
    # Which partition was sequenced first is not said.
    assert [replace(found[0], partition=0), *found[1:]] == [
        FieldDrift("late", NEW, None, "boolean", 3, 0, Lsn(0, 2)),
        FieldDrift("", OTHER_TYPE, "object", None, 1, 0, Lsn(0, 3)),
        FieldDrift("id", MISSING, "int", None, 1, 1, Lsn(0, 4)),
        FieldDrift("id", OTHER_TYPE, "int", "string", 1, 0, Lsn(0, 1)),
    ]
    late = penstock.spark.schema_drift(spark, TOPIC, parse_schema("id int"), last=1, url=db.url)
    assert [(each.field, each.kind, each.events) for each in late] == [
        ("id", MISSING, 1), ("late", NEW, 1)
    ]  # fmt: skip
    for options, match in (
        ({"last": 0}, "last is 0"),
        ({"decodeMode": "failfast"}, "takes no option decodeMode"),
        ({"eventPerTask": 1}, "did you mean eventsPerTask"),
    ):
        with pytest.raises(InvalidArgument, match=match):
            penstock.spark.schema_drift(spark, TOPIC, "id int", url=db.url, **options)
    db.close()
