"""Reading over database and archive: the same rows, wherever they are and whatever is dropped."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ops.seal import seal
from penstock import log
from penstock.archive.targets import Target
from penstock.errors import BelowLowSequence, BookmarkNotFound, EpochMissing, InvalidArgument
from penstock.spark import cold_ranges, register
from penstock.spark.batch import RangesInput, inputs, read_input
from penstock.spark.cold_ranges import BELOW_LOW_HINT, Archive
from penstock.spark.columns import ReadColumns
from penstock.spark.options import read_options
from penstock.spark.stream import StreamReader
from tests.contract.databases import ContractDatabase, PostgresDatabase
from tests.kit.copies import copy_all, drop, remove
from tests.kit.log import TOPIC
from tests.kit.proof import proves
from tests.spark.kit import ALL, Row, frame, logged, planned, publish_more, published

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_EPOCH = ALL.index("log_epoch")


@pytest.fixture
def target(tmp_path: Path) -> Target:
    """An archive target."""
    return Target("nas", str(tmp_path / "nas"))


def _given(db: ContractDatabase, target: Target | None, **options: object) -> dict[str, str]:
    given = {"url": db.url, "topic": TOPIC, **{name: str(each) for name, each in options.items()}}
    if target is not None:
        given["targets"] = json.dumps({target.name: target.uri})
    return given


def _rows(db: ContractDatabase, target: Target | None, **options: object) -> list[Row]:
    """What all tasks of a read return, in the order of the log, without the log epoch."""
    given = read_options(_given(db, target, **options))
    ranges = planned(db, **_given(db, target, **options))
    return _read(given, [each for each in inputs(ranges, given) if isinstance(each, RangesInput)])


def _read(given: Any, tasks: list[RangesInput]) -> list[Row]:
    wanted = ReadColumns(TOPIC, ALL, given.types)
    batches = [batch for task in tasks for batch in read_input(Archive.of(given), wanted, task)]
    rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    return sorted((_without_epoch(row) for row in rows), key=lambda row: (row[1], row[3]))


def _without_epoch(row: Row) -> Row:
    headers = ALL.index("headers")
    found = list(row)
    found[LOG_EPOCH] = None
    if not isinstance(found[headers], dict):
        found[headers] = json.loads(found[headers] or "{}")
    return tuple(found)


def _sealed(db: ContractDatabase, events: int = 100, max_events: int = 20) -> None:
    published(db, events)
    with closing(db.connect()) as own:
        seal(own, TOPIC, max_events=max_events, max_age_seconds=0)


def _archived(db: ContractDatabase, target: Target) -> None:
    with closing(db.connect()) as own:
        copy_all(own, TOPIC, target)


def _dropped(db: ContractDatabase, target: Target) -> None:
    with closing(db.connect()) as own:
        drop(own, TOPIC, [target])


def test_what_was_dropped_comes_from_the_archive(db: ContractDatabase, target: Target) -> None:
    _sealed(db)
    whole = logged(db)
    _archived(db, target)
    assert _rows(db, target) == whole
    assert _rows(db, target, source="cold") == whole
    _dropped(db, target)
    publish_more(db, 30, odd=False, first=100)
    with pytest.raises(EpochMissing, match="say where the archive is"):
        _rows(db, None)
    found = _rows(db, target)
    assert len(found) == len(whole) + 30
    assert [row for row in found if row in whole] == whole
    assert _rows(db, target, source="cold") == whole
    assert len(_rows(db, None, source="hot")) == 30
    positions = {"startingOffsets": '{"0": 33}', "endingOffsets": '{"0": 60}'}
    assert [row[3] for row in _rows(db, target, **positions)] == list(range(34, 61))
    assert {row[6] for row in _rows(db, target, types="even")} == {"even"}


def test_a_bookmark_and_a_time_reach_into_the_archive(db: ContractDatabase, target: Target) -> None:
    """Both as beginning and as end; the positions of a time are those of its first event."""
    _sealed(db)
    with closing(db.connect()) as own:
        log.place_bookmark(own, TOPIC, "mark", {0: 20, 1: 31})
        since = log.fetch(own, TOPIC, 0, 1, 1)[0].sequenced_at.isoformat()
    whole = logged(db)
    _archived(db, target)
    _dropped(db, target)
    publish_more(db, 30, odd=False, first=100)
    later = _rows(db, target, startingOffsets="bookmark:mark", endingOffsets='{"0": 22, "1": 31}')
    assert [(row[1], row[3]) for row in later] == [(0, 20), (0, 21), (0, 22), (1, 31)]
    before = _rows(db, target, endingOffsets="bookmark:mark")
    assert [(row[1], row[3]) for row in before] == [
        *((0, n) for n in range(1, 20)),
        *((1, n) for n in range(1, 31)),
    ]
    found = _rows(db, target, startingTimestamp=since)
    assert [row for row in found if row[1] == 0][: len(whole) // 2] == [
        row for row in whole if row[1] == 0
    ]
    with pytest.raises(BelowLowSequence):
        planned(db, **_given(db, target, source="hot", startingTimestamp=since))
    with pytest.raises(BelowLowSequence, match="name the archive targets"):
        planned(db, **_given(db, None, startingTimestamp=since))
    with pytest.raises(BookmarkNotFound):
        planned(db, **_given(db, target, startingOffsets="bookmark:none"))


def test_a_log_epoch_is_named_where_it_was_read_from_a_copy(
    db: ContractDatabase, target: Target
) -> None:
    _sealed(db, 40, max_events=10)
    _archived(db, target)
    given = read_options(_given(db, target, source="cold"))
    tasks = [RangesInput([each]) for each in planned(db, **_given(db, target, source="cold"))]
    wanted = ReadColumns(TOPIC, ("log_epoch", "sequence", "topic"))
    batches = [batch for each in tasks for batch in read_input(Archive.of(given), wanted, each)]
    found = {tuple(row.values()) for batch in batches for row in batch.to_pylist()}
    assert found == {((n - 1) // 10 + 1, n, TOPIC) for n in range(1, 26)}


@proves("a Spark read is whole")
def test_retention_between_plan_and_read_loses_nothing(
    db: ContractDatabase, target: Target
) -> None:
    """Guard: a hot task that meets the low sequence goes on in the archive."""
    _sealed(db, 600)
    whole = logged(db)
    given = read_options(_given(db, target, eventsPerTask=100))
    tasks = inputs(planned(db, **_given(db, target)), given)
    _archived(db, target)
    first = read_input(Archive.of(given), ReadColumns(TOPIC, ALL), tasks[0])
    begun = next(first)
    _dropped(db, target)
    rest = [begun, *first]
    assert sum(batch.num_rows for batch in rest) == 76
    assert _read(given, [each for each in tasks if isinstance(each, RangesInput)]) == whole
    alone = read_options(_given(db, None))
    with pytest.raises(BelowLowSequence) as refused:
        _read(alone, [each for each in tasks if isinstance(each, RangesInput)])
    assert refused.value.hint == BELOW_LOW_HINT


def test_cold_tasks_end_where_log_epochs_do(
    db: ContractDatabase, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_ranges, "COLD_EVENTS_PER_TASK", 50)
    _sealed(db, 200)
    _archived(db, target)
    _dropped(db, target)
    found = [(each.partition, each.first, each.last) for each in planned(db, **_given(db, target))]
    one = [(1, 40), (41, 80), (81, 105)]
    assert found == [(part, *ends) for part in range(2) for ends in one]
    (task,) = inputs(
        planned(db, **_given(db, target)), read_options(_given(db, target, maxConnections=1))
    )
    assert isinstance(task, RangesInput)
    assert sum(each.count for each in task.ranges) == 210


def test_source_cold_ends_where_the_archive_ends(db: ContractDatabase, target: Target) -> None:
    _sealed(db, 40)
    _archived(db, target)
    publish_more(db, 40, odd=False, first=40)
    with closing(db.connect()) as own:
        seal(own, TOPIC, max_events=20, max_age_seconds=0)
    assert len(_rows(db, target, source="cold")) == 50
    assert len(_rows(db, target)) == 90
    with pytest.raises(InvalidArgument, match='no copy on "nsa", which targets names') as refused:
        _rows(db, Target("nsa", target.uri), source="cold")
    assert "nas" in refused.value.hint


def test_a_copy_that_is_gone_is_an_error_that_names_it(
    db: ContractDatabase, target: Target
) -> None:
    _sealed(db, 40)
    _archived(db, target)
    _dropped(db, target)
    remove(target)
    with pytest.raises(EpochMissing, match="on nas: "):
        _rows(db, target)


def test_a_stream_that_retention_has_passed_reads_the_archive(
    db: ContractDatabase, target: Target
) -> None:
    _sealed(db, 100)
    whole = logged(db)
    _archived(db, target)
    _dropped(db, target)
    given = read_options(_given(db, target, startingOffsets="earliest"), streaming=True)
    reader = StreamReader(given, ALL)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    tasks = [each for each in reader.partitions(start, end) if isinstance(each, RangesInput)]
    assert _read(given, tasks) == whole


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"source": "warm"}, "give auto, hot or cold"),
        ({"source": "cold"}, "say where the archive is"),
        ({"targets": "/mnt/archive"}, "JSON object of names and places"),
        ({"targets": '{"nas": 1}'}, "no JSON object of texts"),
    ],
)
def test_options_of_the_archive_are_checked(options: dict[str, str], match: str) -> None:
    with pytest.raises(InvalidArgument, match=match):
        read_options({"topic": TOPIC, **options})
    with pytest.raises(InvalidArgument, match="a stream follows the log"):
        read_options({"topic": TOPIC, "source": "cold", "targets": "{}"}, streaming=True)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_retention_in_mid_job_gives_the_full_count(
    spark: SparkSession, database_url: str, target: Target
) -> None:
    db = PostgresDatabase("postgres", database_url)
    register(spark)
    _sealed(db, 1_000)
    _archived(db, target)
    found = frame(spark, db, targets=json.dumps({target.name: target.uri}), eventsPerTask=100)
    assert found.rdd.getNumPartitions() == 12  # now it is planned
    assert found.count() == 1_010
    _dropped(db, target)
    assert found.count() == 1_010
    again = frame(spark, db, targets=json.dumps({target.name: target.uri}), source="cold")
    assert again.count() == 1_010
    assert again.select("log_epoch").distinct().count() == 26
    db.close()
