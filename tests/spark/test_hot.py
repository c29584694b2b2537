"""Reading ranges of the log without Spark: what a task does."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from penstock import log
from penstock.archive import database_reader
from penstock.errors import (
    BelowLowSequence,
    BeyondHighWatermark,
    EpochMissing,
    InvalidArgument,
    InvalidPartition,
    LogBehind,
    TopicNotFound,
)
from penstock.spark.batch import RangesInput, read_input
from penstock.spark.cold_ranges import Archive
from penstock.spark.columns import ReadColumns
from penstock.spark.hot_ranges import read_hot_range
from penstock.spark.options import DatabaseAddress
from penstock.spark.ranges import SourceRange
from penstock.topics import names
from tests.contract.databases import ContractDatabase, PostgresDatabase
from tests.kit.log import TOPIC
from tests.kit.proof import proves
from tests.spark.kit import ALL, Row, logged, planned, publish_more, published


def _rows(batches: list[pa.RecordBatch]) -> list[Row]:
    """As :func:`logged` has them: headers are compared as values, their text is the database's."""
    rows: list[dict[str, Any]] = [row for batch in batches for row in batch.to_pylist()]
    return [
        tuple(
            json.loads(value or "{}") if name == "headers" else value for name, value in row.items()
        )
        for row in rows
    ]


def _read(
    db: ContractDatabase, ranges: list[SourceRange], wanted: ReadColumns | None = None
) -> Any:
    archive = Archive(DatabaseAddress(db.url), (), only=False)
    return list(read_input(archive, wanted or ReadColumns(TOPIC, ALL), RangesInput(ranges)))


def test_every_column_of_every_event(db: ContractDatabase) -> None:
    events = published(db, 300)
    rows = _rows(_read(db, planned(db)))
    assert len(rows) == events
    assert rows == logged(db)


def test_columns_that_are_not_wanted_are_not_read(db: ContractDatabase) -> None:
    published(db, 20)
    batches = _read(db, planned(db), ReadColumns(TOPIC, ("sequence", "topic", "key")))
    assert batches[0].schema.names == ["sequence", "topic", "key"]
    expected = [(row[3], TOPIC, row[5]) for row in logged(db)]
    assert [tuple(row.values()) for batch in batches for row in batch.to_pylist()] == expected
    (only, *_) = _read(db, planned(db), ReadColumns(TOPIC, ("partition",)))
    assert only.to_pydict() == {"partition": [0] * only.num_rows}


def test_only_the_wanted_types(db: ContractDatabase) -> None:
    published(db, 100)
    rows = _rows(_read(db, planned(db), ReadColumns(TOPIC, ALL, ("even", "größe"))))
    assert rows == [row for row in logged(db) if row[6] in {"even", "größe"}]
    assert len(rows) == 52
    assert _read(db, planned(db), ReadColumns(TOPIC, ALL, ("none",))) == []


def test_positions_are_where_a_read_begins_and_ends(db: ContractDatabase) -> None:
    published(db, 20, odd=False)
    ends = [(each.partition, each.first, each.last) for each in planned(db)]
    assert ends == [(0, 1, 10), (1, 1, 10)]
    one = planned(db, startingOffsets='{"0": 4}', endingOffsets='{"0": 6}')
    assert [(each.partition, each.first, each.last) for each in one] == [(0, 5, 6)]
    other = planned(db, startingOffsets="{}", partitions="1")
    assert [(each.partition, each.first, each.last) for each in other] == [(1, 1, 10)]
    assert planned(db, startingOffsets="latest") == []
    with pytest.raises(InvalidPartition, match="no partition 7"):
        planned(db, partitions="0,7")
    with pytest.raises(InvalidPartition, match="names partition 2"):
        planned(db, startingOffsets='{"2": 0}')
    with pytest.raises(BeyondHighWatermark, match="sequence 11 of partition 0"):
        planned(db, endingOffsets='{"0": 11}')
    with pytest.raises(TopicNotFound):
        planned(db, topic="tests/none")


@pytest.mark.parametrize("end", ['{"0": 7}', "earliest", "bookmark:mark"])
def test_a_start_after_the_end_is_refused(db: ContractDatabase, end: str) -> None:
    published(db, 20, odd=False)
    with closing(db.connect()) as connection:
        log.place_bookmark(connection, TOPIC, "mark", {0: 8, 1: 1})
    with pytest.raises(InvalidArgument, match="after sequence 8 of partition 0, and ends at"):
        planned(db, startingOffsets='{"0": 8}', endingOffsets=end)
    assert not _read(db, planned(db, startingOffsets='{"0": 7}', endingOffsets='{"0": 7}'))
    assert not _read(db, planned(db, startingOffsets="latest"))


def test_a_time_is_that_of_sequencing(db: ContractDatabase) -> None:
    published(db, 20, odd=False)
    publish_more(db, 20, odd=False, first=20)
    second = min(row[11] for row in logged(db) if row[3] > 10)
    late = planned(db, startingTimestamp=second.isoformat())
    assert [(each.first, each.last) for each in late] == [(11, 20), (11, 20)]
    early = planned(db, endingTimestamp=second.isoformat())
    assert [(each.first, each.last) for each in early] == [(1, 10), (1, 10)]
    after = (second + timedelta(minutes=1)).isoformat()
    assert planned(db, startingTimestamp=after) == []


def test_no_snapshot_is_held_while_spark_takes_the_rows(database_url: str) -> None:
    """Guard: a page is read whole before its first row is passed on."""
    db = PostgresDatabase("postgres", database_url)
    published(db, 400, partitions=1)
    with closing(db.connect()) as connection:
        (only,) = planned(db)
        batches = read_hot_range(connection, ReadColumns(TOPIC, ALL), only)
        next(batches)
        held = db.run(
            "SELECT state, backend_xmin FROM pg_stat_activity WHERE pid ="
            f" {connection.info.backend_pid}"
        )
        assert held == [("idle", None)]
        assert sum(batch.num_rows for batch in batches) == 405 - 64
    db.close()


def test_pages_grow_with_small_events_and_stay_small_with_large_ones() -> None:
    assert database_reader._next_rows(64, 64, 64 * 100) == 512
    assert database_reader._next_rows(8_000, 8_000, 8_000 * 100) == 10_000
    assert database_reader._next_rows(512, 512, 512 << 20) == 16
    assert database_reader._next_rows(64, 1, 1 << 30) == 1


def test_events_that_are_gone_are_an_error(db: ContractDatabase) -> None:
    published(db, 20, odd=False)
    ranges = planned(db)
    db.run("UPDATE penstock.partitions SET low_sequence = 5 WHERE number = 0")
    with pytest.raises(BelowLowSequence):
        _read(db, ranges)
    hot = planned(db, source="hot")
    assert [(each.first, each.last) for each in hot] == [(5, 10), (1, 10)]
    with pytest.raises(BelowLowSequence, match="begins after sequence 2"):
        planned(db, startingOffsets='{"0": 2}', source="hot")
    with pytest.raises(EpochMissing, match="from sequence 5 on, and the read begins with 1"):
        planned(db)


@proves("a Spark read is whole")
def test_a_log_that_became_shorter_is_an_error(db: ContractDatabase) -> None:
    """Guard: the events of each page are counted."""
    published(db, 20, odd=False)
    (first, _) = planned(db)
    longer = SourceRange(first.partition, first.partition_id, first.first, first.last + 1)
    with pytest.raises(LogBehind, match="ends before sequence 11 now, and had 11"):
        _read(db, [longer])


@proves("a Spark read is whole")
def test_another_topic_under_the_same_address_is_not_read(db: ContractDatabase) -> None:
    """Guard: a range carries the partition's id."""
    published(db, 20, odd=False)
    ranges = planned(db)
    with closing(db.connect()) as connection:
        names.rename_topic(connection, TOPIC, "old")
    published(db, 20, odd=False)
    with pytest.raises(TopicNotFound, match="replaced after this read was planned"):
        _read(db, ranges)
