"""Batch reads by real Spark."""

from __future__ import annotations

import io
import json
from contextlib import closing, redirect_stdout
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from pyspark.sql.types import TimestampType

from penstock.spark import register
from tests.contract.databases import ContractDatabase, PostgresDatabase
from tests.kit.log import TOPIC, drain
from tests.kit.proof import proves
from tests.spark.kit import ALL, frame, logged, published
from tests.spark.pushing import PushingSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The first test pays for the start of Spark; a call that is cut off would break all others.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

NO_ZONE = "spark.sql.timestampType"
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"
SECRET = "geheim"


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


@pytest.fixture
def pushing(spark: SparkSession) -> Any:
    """A session that has filter push-down switched on."""
    before = spark.conf.get(PUSH_DOWN) or "false"
    spark.conf.set(PUSH_DOWN, "true")
    yield spark
    spark.conf.set(PUSH_DOWN, before)


@proves("a Spark read is whole")
@pytest.mark.long_on("mariadb")
def test_a_data_frame_is_the_log(spark: SparkSession, db: ContractDatabase) -> None:
    events = published(db, 500)
    found = frame(spark, db, eventsPerTask=100)
    assert found.columns == list(ALL)
    assert found.rdd.getNumPartitions() == 6
    rows = [
        tuple(json.loads(v or "{}") if k == "headers" else v for k, v in row.items())
        for row in found.orderBy("partition", "sequence").toArrow().to_pylist()
    ]
    assert len(rows) == events
    assert rows == logged(db)


@proves("a Spark read is whole")
def test_counts_are_equal_before_and_after_a_filtered_action(
    pushing: SparkSession, database_url: str
) -> None:
    """Guard: no filter is pushed down, even by a session that has it switched on."""
    db = PostgresDatabase("postgres", database_url)
    events = published(db, 200)
    found = frame(pushing, db)
    assert found.count() == events
    assert found.filter("type = 'even' AND sequence > 50").count() == 50
    assert found.count() == events
    fresh = frame(pushing, db)
    assert fresh.filter("partition = 1").count() == 105
    assert fresh.count() == events
    db.close()


@proves("a Spark read is whole", guard="no push-down")
def test_spark_loses_rows_where_a_source_takes_filters(pushing: SparkSession) -> None:
    """Why ours takes none. If this fails, Spark mended it: see docs/evidence/decisions/spark.md."""
    pushing.dataSource.register(PushingSource)
    found = pushing.read.format(PushingSource.name()).load()
    assert found.filter("n > 5").count() == 4
    assert found.count() == 4  # of 10


def test_a_schema_of_the_user_chooses_the_columns(spark: SparkSession, database_url: str) -> None:
    db = PostgresDatabase("postgres", database_url)
    published(db, 50, odd=False)
    reader = spark.read.format("penstock").option("url", db.url).option("topic", TOPIC)
    found = reader.schema("key string, sequence bigint").load()
    assert sorted(map(tuple, found.collect())) == sorted((row[5], row[3]) for row in logged(db))
    with pytest.raises(Exception, match="InvalidArgument: the schema has a column 'body'"):
        reader.schema("body binary").load().count()
    db.close()


def test_a_session_whose_timestamps_have_no_zone(spark: SparkSession, database_url: str) -> None:
    """Guard: our texts of types say timestamp_ltz, which means the same to every session."""
    db = PostgresDatabase("postgres", database_url)
    published(db, 4, odd=False)
    before = spark.conf.get(NO_ZONE)
    spark.conf.set(NO_ZONE, "TIMESTAMP_NTZ")
    try:
        found = frame(spark, db)
        assert found.schema["created_at"].dataType == TimestampType()
        rows = found.selectExpr("payload", "created_at AS not_before")
        writer = rows.write.format("penstock").option("url", db.url).option("topic", TOPIC)
        writer.mode("append").save()
    finally:
        spark.conf.set(NO_ZONE, before or "TIMESTAMP_LTZ")
    with closing(db.connect()) as connection:
        drain(connection)
    assert frame(spark, db).count() == 8
    db.close()


def test_nothing_to_read_is_an_empty_data_frame(spark: SparkSession, database_url: str) -> None:
    db = PostgresDatabase("postgres", database_url)
    published(db, 4, odd=False)
    assert frame(spark, db, startingOffsets="latest").collect() == []
    db.close()


def test_bad_options_are_refused_before_a_job_runs(spark: SparkSession, database_url: str) -> None:
    db = PostgresDatabase("postgres", database_url)
    published(db, 4, odd=False)
    with pytest.raises(Exception, match="InvalidArgument: eventsPerTask is '0'"):
        frame(spark, db, eventsPerTask=0)
    with pytest.raises(Exception, match="TopicNotFound: "):
        frame(spark, db, topic="tests/none").count()
    db.close()


def test_a_password_is_in_no_plan_and_no_error(spark: SparkSession, database_url: str) -> None:
    db = PostgresDatabase("postgres", database_url)
    published(db, 4, odd=False)
    secret = urlsplit(database_url).password
    assert secret
    found = frame(spark, db).filter("sequence > 1")
    shown = io.StringIO()
    with redirect_stdout(shown):
        for mode in ("extended", "formatted", "codegen", "cost"):
            found.explain(mode)
    assert "penstock" in shown.getvalue()
    found.collect()
    query = found._jdf.queryExecution()
    assert secret not in shown.getvalue() + query.toString() + query.logical().toJSON()
    with pytest.raises(Exception, match="DatabaseUnavailable") as refused:
        frame(spark, db, url=f"postgresql://me:{SECRET}@127.0.0.1:1/none").count()
    assert SECRET not in str(refused.value)
    db.close()


@pytest.mark.long  # another environment is another daemon of workers
def test_the_environment_of_the_workers_can_name_the_database(
    spark: SparkSession, database_url: str
) -> None:
    db = PostgresDatabase("postgres", database_url)
    published(db, 4, odd=False)
    environment = spark.sparkContext.environment
    environment["LEDGER_URL"] = database_url
    try:
        # What was registered before has the environment of then.
        register(spark)
        reader = spark.read.format("penstock").option("topic", TOPIC)
        assert reader.option("urlVariable", "LEDGER_URL").load().count() == 4
        with pytest.raises(Exception, match=r"variable NOT_THERE .* is not set"):
            reader.option("urlVariable", "NOT_THERE").load().count()
    finally:
        del environment["LEDGER_URL"]
    db.close()
