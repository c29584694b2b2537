"""Writes by real Spark: exactly once, whatever is killed and repeated."""

from __future__ import annotations

import random
import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.spark import register
from penstock.topics import names
from tests.contract.databases import ContractDatabase, PostgresDatabase
from tests.contract.kit import count
from tests.kit.log import TOPIC, drain, read, topic
from tests.kit.proof import proves
from tests.kit.standing import standing
from tests.spark import pipeline
from tests.spark.kit import frame, published
from tests.spark.stalling import BATCH, MARKER, PLACE, DyingSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SINK = "tests/sink"
#: So many events are staged at once.
CHUNK = 1_000
#: After so many of its 1,500 rows a task dies: twenty times.
MID_WRITE = random.Random(20).sample(range(1, 1_500), 20)


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


@pytest.fixture
def postgres(database_url: str) -> Any:
    found = PostgresDatabase("postgres", database_url)
    yield found
    found.close()


def _numbers(spark: SparkSession, events: int, tasks: int = 3) -> DataFrame:
    return spark.range(events).repartition(tasks).selectExpr(
        "CAST(CAST(id AS string) AS binary) AS payload",
        "concat('k', id % 7) AS key",
        "'number' AS type",
        "CASE WHEN id % 2 = 0 THEN '{\"even\": true}' END AS headers",
    )  # fmt: skip


def _write(given: DataFrame, db: ContractDatabase, **options: object) -> None:
    writer = given.write.format(str(options.pop("format", "penstock"))).mode("append")
    for name, value in {"url": db.url, "topic": SINK, **options}.items():
        writer = writer.option(name, str(value))
    writer.save()


def _sink(db: ContractDatabase, partitions: int = 2) -> None:
    with closing(db.connect()) as own:
        topic(own, partitions, SINK)


def _written(db: ContractDatabase, partitions: int = 2) -> list[Any]:
    with closing(db.connect()) as own:
        drain(own)
        return [event for each in range(partitions) for event in read(own, each, SINK)]


@proves("a Spark write is exactly once")
@pytest.mark.long_on("mysql")
def test_a_data_frame_is_published_once(spark: SparkSession, db: ContractDatabase) -> None:
    _sink(db)
    given = _numbers(spark, 3_000)
    _write(given, db, writeId="load", writeVersion=1)
    events = _written(db)
    assert sorted(int(bytes(event.payload)) for event in events) == list(range(3_000))
    assert {event.type for event in events} == {"number"}
    assert all(event.headers == {"even": True} for event in events if int(event.payload) % 2 == 0)
    by_key = {event.key: event.partition for event in events}
    assert all(by_key[event.key] == event.partition for event in events)
    _write(given, db, writeId="load", writeVersion=1)
    assert len(_written(db)) == 3_000
    _write(given, db, writeId="load", writeVersion=2)
    assert len(_written(db)) == 6_000
    assert count(db, "staged_writes") == 0


def test_rows_can_name_their_topics(spark: SparkSession, postgres: PostgresDatabase) -> None:
    _sink(postgres)
    with closing(postgres.connect()) as own:
        topic(own, 2, TOPIC)
    given = spark.range(10).selectExpr(
        f"CASE WHEN id < 4 THEN '{SINK}' ELSE '{TOPIC}' END AS place",
        "CAST('x' AS binary) AS payload",
    )
    writer = given.write.format("penstock").mode("append").option("url", postgres.url)
    writer.option("topicColumn", "place").save()
    assert len(_written(postgres)) == 4
    assert frame(spark, postgres).count() == 6


def test_what_cannot_be_written_is_refused_and_leaves_nothing(
    spark: SparkSession, postgres: PostgresDatabase
) -> None:
    _sink(postgres)
    given = _numbers(spark, 10)
    refused: dict[str, tuple[DataFrame, dict[str, object]]] = {
        "a column 'id', which an event does not take": (spark.range(3), {}),
        "the column payload as string": (spark.range(3).selectExpr("'x' AS payload"), {}),
        "no column payload": (spark.range(3).selectExpr("'x' AS key"), {}),
        "writeId and writeVersion belong together": (given, {"writeId": "w"}),
        "did you mean writeVersion": (given, {"writeId": "w", "writeVersio": 1}),
        "TopicNotFound: .*event 0": (given, {"topic": "tests/none"}),
        "payload is": (spark.range(3).selectExpr("CAST(NULL AS binary) AS payload"), {}),
        "headers of an event are not JSON": (given.selectExpr("payload", "'{' AS headers"), {}),
        "is no UUID": (given.selectExpr("payload", "'7' AS event_id"), {}),
    }
    for message, (rows, options) in refused.items():
        with pytest.raises(Exception, match=message):
            _write(rows, postgres, **options)
    with pytest.raises(Exception, match="cannot be overwritten"):
        writer = given.write.format("penstock").mode("overwrite").option("url", postgres.url)
        writer.option("topic", SINK).save()
    assert _written(postgres) == []
    assert count(postgres, "staged_writes") == 0


@proves("a Spark write is exactly once")
@pytest.mark.parametrize("places", [[1_500], pytest.param(MID_WRITE, marks=pytest.mark.long)])
def test_a_task_that_is_killed_in_mid_write_leaves_no_event(
    spark: SparkSession, postgres: PostgresDatabase, tmp_path: Path, places: list[int]
) -> None:
    """Guard: what is published are the stages of the attempts that Spark names."""
    _sink(postgres)
    spark.dataSource.register(DyingSource)
    given = _numbers(spark, 3_000, tasks=2)
    for number, rows in enumerate(places):
        options: dict[str, object] = {
            "format": DyingSource.name(), "marker": tmp_path / f"died {number}", "rows": rows,
            "writeId": "w", "writeVersion": number,
        }  # fmt: skip
        orphans = count(postgres, "staged_writes")
        with pytest.raises(Exception, match=r"crashed|exited|EOF"):
            _write(given, postgres, **options)
        assert len(_written(postgres)) == 3_000 * number
        assert rows < CHUNK or count(postgres, "staged_writes") > orphans
        for _ in range(2):  # the repetition of the write, and one that nobody needs
            _write(given, postgres, **options)
    events = sorted(int(bytes(event.payload)) for event in _written(postgres))
    assert events == sorted(list(range(3_000)) * len(places))


def _kill_a_driver(db: ContractDatabase, folder: Path, place: str, batch: int) -> None:
    """SIGKILL to driver, JVM and workers of a pipeline that stands still at the place."""
    marker = folder / f"{place}-{batch}"
    environment = {PLACE: place, BATCH: str(batch), MARKER: str(marker)}
    arguments = [db.url, TOPIC, SINK, str(folder / "checkpoint")]
    with standing("tests.spark.pipeline", *arguments, marker=marker, environment=environment):
        pass


def _is_a_copy(db: ContractDatabase) -> None:
    """Every event once, in the order of its key."""
    found: dict[str | None, list[bytes]] = {}
    for event in _written(db):
        found.setdefault(event.key, []).append(bytes(event.payload))
    expected: dict[str | None, list[bytes]] = {}
    with closing(db.connect()) as own:
        for partition in range(2):
            for event in read(own, partition, TOPIC):
                expected.setdefault(event.key, []).append(bytes(event.payload))
    assert found == expected


@proves("a Spark write is exactly once")
def test_a_batch_whose_commit_spark_has_forgotten(
    spark: SparkSession, postgres: PostgresDatabase, tmp_path: Path
) -> None:
    """What a driver leaves that dies after our commit and before Spark's: it runs once more.

    Guard: claim_write lets a version be published once.
    """
    _sink(postgres)
    published(postgres, 0, odd=False)
    _publish_keys(postgres, 120, 0)
    place = tmp_path / "checkpoint"
    pipeline.run(spark, postgres.url, TOPIC, SINK, str(place))
    newest = max((place / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    assert newest.name == "2"
    for path in (newest, newest.with_name(f".{newest.name}.crc")):
        path.unlink(missing_ok=True)
    pipeline.run(spark, postgres.url, TOPIC, SINK, str(place))
    assert newest.exists()
    _is_a_copy(postgres)
    assert count(postgres, "events") == 2 * 120


@proves("a Spark write is exactly once")
def test_a_checkpoint_from_an_older_backup_loses_nothing_in_silence(
    spark: SparkSession, postgres: PostgresDatabase, tmp_path: Path
) -> None:
    """Its next micro-batch has a number that was published before, with other events.

    Guard: claim_rows compares the rows.
    """
    _sink(postgres)
    published(postgres, 0, odd=False)
    place, backup = tmp_path / "checkpoint", tmp_path / "backup"
    _publish_keys(postgres, 5, 0)
    pipeline.run(spark, postgres.url, TOPIC, SINK, str(place))
    shutil.copytree(place, backup)
    _publish_keys(postgres, 5, 5)
    pipeline.run(spark, postgres.url, TOPIC, SINK, str(place))
    _publish_keys(postgres, 7, 10)
    with pytest.raises(Exception, match=r"WriteDiffers.* 5 other rows, now 12|5 then, 12 now"):
        pipeline.run(spark, postgres.url, TOPIC, SINK, str(backup))
    assert len(_written(postgres)) == 10
    assert count(postgres, "staged_writes") == 0
    pipeline.run(spark, postgres.url, TOPIC, SINK, str(backup), failOnDifferentRows=False)
    assert len(_written(postgres)) == 10
    pipeline.run(spark, postgres.url, TOPIC, SINK, str(place))
    _is_a_copy(postgres)


def test_a_write_with_other_rows_under_its_version_is_refused(
    spark: SparkSession, postgres: PostgresDatabase
) -> None:
    _sink(postgres)
    _write(_numbers(spark, 20), postgres, writeId="load", writeVersion=1)
    with pytest.raises(Exception, match=r"WriteDiffers(.|\n)*next writeVersion"):
        _write(_numbers(spark, 30), postgres, writeId="load", writeVersion=1)
    assert count(postgres, "staged_writes") == 0
    _write(_numbers(spark, 20, tasks=2), postgres, writeId="load", writeVersion=1)
    assert len(_written(postgres)) == 20


@proves("a Spark write is exactly once")
@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=[pytest.mark.long, pytest.mark.timeout(7_200)]) for seed in range(4)],
)
def test_a_driver_that_is_killed_before_or_after_the_commit(
    spark: SparkSession, postgres: PostgresDatabase, tmp_path: Path, seed: int
) -> None:
    """A stream from topic to topic: nothing is lost, nothing doubled, the order is kept.

    All seeds together are 20 kills before the commit, and 20 after it.
    Guard: claim_write lets a version be published once.
    """
    _sink(postgres)
    rng = random.Random(seed)
    published(postgres, 0, odd=False)
    places = ["before", "after"] * 5
    rng.shuffle(places)
    batch = 0
    for number, place in enumerate(places):
        _publish_keys(postgres, 150, number * 150)
        batch += rng.randint(0, 2) if number == 0 else rng.randint(1, 2)
        _kill_a_driver(postgres, tmp_path, place, batch)
    pipeline.run(spark, postgres.url, TOPIC, SINK, str(tmp_path / "checkpoint"))
    _is_a_copy(postgres)
    assert count(postgres, "events") == 2 * 150 * len(places)


def _publish_keys(db: ContractDatabase, events: int, first: int) -> None:
    messages = [
        Message(TOPIC, b"%d" % n, key=f"k{n % 5}", partition=n % 5 % 2)
        for n in range(first, first + events)
    ]
    with closing(db.connect()) as own:
        publish_batch(own, messages)
        drain(own)
        assert names.describe_topic(own, TOPIC).partitions
