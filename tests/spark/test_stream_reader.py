"""What a stream's reader says to Spark: offsets, limits, and when a micro-batch waits."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from penstock.errors import (
    InvalidArgument,
    LogBehind,
    StaleLease,
    SubscriptionNotFound,
    TopicNotFound,
)
from penstock.log.histories import history_starts, reconcile, restore_status
from penstock.spark.batch import RangesInput
from penstock.spark.options import read_options
from penstock.spark.stream import Offset, StreamReader
from penstock.subscriptions import stream
from penstock.topics import names
from tests.contract.databases import ContractDatabase
from tests.kit.log import TOPIC
from tests.kit.proof import proves
from tests.spark.kit import ALL, publish_more, published

ALL_AVAILABLE = ReadAllAvailable()


class Clock:
    """Moves when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _reader(db: ContractDatabase, clock: Clock | None = None, **options: object) -> StreamReader:
    given = {"url": db.url, "topic": TOPIC, "startingOffsets": "earliest"}
    given |= {name: str(value) for name, value in options.items()}
    return StreamReader(read_options(given, streaming=True), ALL, clock or Clock())


def _kept(offset: Offset) -> Any:
    """As Spark keeps it in the checkpoint."""
    return json.loads(json.dumps(offset))


def _events(reader: StreamReader, start: Offset, end: Offset) -> int:
    tasks = reader.partitions(start, end)
    return sum(
        each.count for task in tasks if isinstance(task, RangesInput) for each in task.ranges
    )


def test_a_stream_begins_where_its_options_say(db: ContractDatabase) -> None:
    published(db, 20, odd=False)
    assert _reader(db).initialOffset()["p"] == {"0": 0, "1": 0}
    latest = _reader(db, startingOffsets="latest").initialOffset()
    assert latest["p"] == {"0": 10, "1": 10}
    assert latest["v"] == 1
    assert latest["history"] == 1
    with closing(db.connect()) as connection:
        assert latest["topic_id"] == names.describe_topic(connection, TOPIC).topic_id


def test_a_limit_cuts_the_backlog_into_equal_micro_batches(db: ContractDatabase) -> None:
    """Guard: what a limit leaves of a partition is not lost, and every batch is full."""
    published(db, 1_000, partitions=3, odd=False)
    reader = _reader(db, maxEventsPerTrigger=100)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(100)
    start, sizes = _kept(reader.initialOffset()), []
    while (end := _kept(reader.latestOffset(start, limit))) != start:
        sizes.append(_events(reader, start, end))
        start = end
    assert sizes == [100] * 10


def test_a_trigger_of_what_is_available_ends_where_the_log_ended_then(
    db: ContractDatabase,
) -> None:
    """Guard: the end is remembered when the query begins."""
    published(db, 30, odd=False)
    reader = _reader(db, minEventsPerTrigger=1_000)
    reader.prepareForTriggerAvailableNow()
    publish_more(db, 30, odd=False, first=30)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert _events(reader, start, end) == 30
    assert reader.latestOffset(end, ALL_AVAILABLE) == end
    assert reader.reportLatestOffset()["p"] == {"0": 30, "1": 30}


def test_a_small_backlog_waits_for_more_or_for_the_delay(db: ContractDatabase) -> None:
    clock = Clock()
    published(db, 20, odd=False)
    reader = _reader(db, clock, minEventsPerTrigger=50, maxTriggerDelay="10s")
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    assert limit == ReadMinRows(50)
    assert reader.latestOffset(start, limit) == start
    clock.now += 10
    end = reader.latestOffset(start, limit)
    assert _events(reader, start, end) == 20
    publish_more(db, 60, odd=False, first=20)
    assert _events(reader, end, reader.latestOffset(end, limit)) == 60
    both = _reader(db, clock, minEventsPerTrigger=50, maxEventsPerTrigger=70)
    assert _events(both, start, both.latestOffset(start, both.getDefaultReadLimit())) == 70


def test_a_new_partition_is_read_from_its_beginning(db: ContractDatabase) -> None:
    published(db, 20, odd=False)
    reader = _reader(db)
    start = reader.latestOffset(reader.initialOffset(), ALL_AVAILABLE)
    with closing(db.connect()) as connection:
        names.resize_topic(connection, TOPIC, 4)
    publish_more(db, 20, partitions=4, odd=False, first=20)
    end = reader.latestOffset(start, ALL_AVAILABLE)
    assert end["p"] == {"0": 15, "1": 15, "2": 5, "3": 5}
    assert _events(reader, start, end) == 20


def test_a_checkpoint_of_another_topic_or_format_is_refused(db: ContractDatabase) -> None:
    published(db, 2, odd=False)
    reader = _reader(db)
    start = reader.initialOffset()
    with pytest.raises(InvalidArgument, match="offset of version 2"):
        reader.latestOffset({**start, "v": 2}, ALL_AVAILABLE)
    with pytest.raises(TopicNotFound, match="written for another topic"):
        reader.latestOffset({**start, "topic_id": start["topic_id"] + 1}, ALL_AVAILABLE)


def test_another_history_stops_the_stream_unless_told_otherwise(db: ContractDatabase) -> None:
    """Guard: the offset carries the history that it is of."""
    published(db, 20, odd=False)
    reader = _reader(db)
    before = {**reader.initialOffset(), "p": {"0": 10, "1": 14}, "history": 0}
    with pytest.raises(LogBehind, match="has read history 0, the log is at history 1"):
        reader.latestOffset(before, ALL_AVAILABLE)
    with pytest.raises(LogBehind):
        reader.partitions(before, before)
    goes_on = _reader(db, failOnHistoryChange="false")
    publish_more(db, 4, odd=False, first=20)
    end = goes_on.latestOffset(before, ALL_AVAILABLE)
    assert (end["history"], end["p"]) == (1, {"0": 10, "1": 12})
    assert _events(goes_on, before, end) == 0
    assert _events(goes_on, end, goes_on.latestOffset(end, ALL_AVAILABLE)) == 2


def _restored(db: ContractDatabase, lost: dict[str, int], events: int = 15) -> Offset:
    """A log of two partitions that a restore has cut back to so many events each, and reconciled.

    Returns the offset of a stream that has read what was lost.
    """
    published(db, 2 * events, odd=False)
    before = _kept({**_reader(db).initialOffset(), "p": lost})
    with closing(db.connect(autocommit=False)) as connection:
        assert reconcile(connection, "restored from yesterday") == 2
        connection.commit()
    return before


def _read_on(db: ContractDatabase, start: Offset, limit: int = 1_000) -> tuple[int, Offset]:
    """How many events a stream reads until the end of the log, restarted for each micro-batch."""
    total = 0
    while True:
        reader = _reader(db, failOnHistoryChange="false")
        end = _kept(reader.latestOffset(start, ReadMaxRows(limit)))
        if end == start:
            return total, end
        total += _events(reader, start, end)
        start = end


@proves("a Spark stream over a restore")
@pytest.mark.parametrize("grown", [0, 5, 30])
def test_after_a_restore_a_stream_reads_all_that_comes_later(
    db: ContractDatabase, grown: int
) -> None:
    """Whenever it looks first: before the log passes what was lost, or long after.

    Guard: the log says where the new history began, and the first look writes it down.
    """
    start = _restored(db, {"0": 25, "1": 10})
    publish_more(db, 2 * grown, odd=False, first=30)
    total, start = _read_on(db, start)
    assert (total, start["history"]) == (5 + 2 * grown, 2)
    for number in range(4):
        publish_more(db, 6, odd=False, first=1_000 + 6 * number)
        total, start = _read_on(db, start, limit=4)
        assert total == 6


@proves("a Spark stream over a restore")
def test_a_planned_micro_batch_of_the_lost_history_reads_nothing(db: ContractDatabase) -> None:
    """Spark repeats it after a restart, with the positions that it wrote down before."""
    start = _restored(db, {"0": 20, "1": 0})
    end = {**start, "p": {"0": 25, "1": 4}}
    for grown in (0, 14, 40):
        publish_more(db, grown, odd=False, first=100)
        reader = _reader(db, failOnHistoryChange="false")
        assert _events(reader, start, end) == 4  # of partition 1, which lost nothing
    assert _read_on(db, end)[0] == 2 * 15 + 54 - 15 - 4


@proves("a Spark stream over a restore", guard="the start of the history")
def test_without_the_start_of_the_history_a_stream_skips_events(db: ContractDatabase) -> None:
    """Mutant."""
    every = "FROM partitions AS p;"
    db.without_guard("open_history", every, every.replace(";", " WHERE false;"))
    start = _restored(db, {"0": 25, "1": 15})
    publish_more(db, 60, odd=False, first=30)
    assert _read_on(db, start)[0] == 60 - 10


def test_a_history_from_before_its_start_was_recorded_is_written_down_too(
    db: ContractDatabase,
) -> None:
    """Then the end of the log at the first look is the bound, also at each restart."""
    start = _restored(db, {"0": 25, "1": 15})
    db.run("DELETE FROM penstock.history_starts")
    end = _kept(_reader(db, failOnHistoryChange="false").latestOffset(start, ALL_AVAILABLE))
    assert (end["history"], end["p"]) == (2, {"0": 15, "1": 15})
    publish_more(db, 60, odd=False, first=30)
    assert _read_on(db, end)[0] == 60


def test_the_lowest_start_of_the_later_histories_counts(db: ContractDatabase) -> None:
    start = _restored(db, {"0": 25, "1": 15})
    publish_more(db, 20, odd=False, first=30)
    with closing(db.connect(autocommit=False)) as connection:
        names.resize_topic(connection, TOPIC, 3)
        assert reconcile(connection, "and once more") == 3
        connection.commit()
        found = {each: history_starts(connection, TOPIC, each) for each in (1, 2, 3)}
    assert found == {1: {0: 15, 1: 15, 2: 0}, 2: {0: 25, 1: 25, 2: 0}, 3: {0: 25, 1: 25, 2: 0}}
    assert _read_on(db, start)[0] == 20


def _resized_again(db: ContractDatabase, *, looks_first: bool) -> tuple[int, Offset]:
    """What a stream reads of 40 events after a restore that has lost a resize to 4 partitions."""
    start = _restored(db, {"0": 15, "1": 15, "2": 5, "3": 5})
    if looks_first:
        total, start = _read_on(db, start)
        assert total == 0
    with closing(db.connect()) as connection:
        names.resize_topic(connection, TOPIC, 4)
    publish_more(db, 40, partitions=4, odd=False, first=30)
    return _read_on(db, start)


@proves("a Spark stream over a restore")
@pytest.mark.parametrize("looks_first", [True, False])
def test_a_partition_that_a_restore_lost_is_new_when_it_comes_again(
    db: ContractDatabase, looks_first: bool
) -> None:
    """Guard: the first look drops the position of a partition that the log does not have."""
    total, end = _resized_again(db, looks_first=looks_first)
    assert (total, end["p"]) == (40, {"0": 25, "1": 25, "2": 10, "3": 10})


@proves("a Spark stream over a restore", guard="dropping lost partitions")
def test_without_dropping_lost_partitions_a_stream_skips_events(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant."""

    def blind(*asked: Any) -> dict[int, int | None]:
        return {2: None, 3: None, **history_starts(*asked)}

    monkeypatch.setattr("penstock.spark.stream.history_starts", blind)
    monkeypatch.setattr(StreamReader, "_require_partitions", lambda *_: None)
    assert _resized_again(db, looks_first=True)[0] == 40 - 10


@proves("a Spark stream over a restore")
def test_a_stream_that_has_read_beyond_the_log_stops_until_the_reconcile(
    db: ContractDatabase,
) -> None:
    """A copy of the volume, restored: the history is the same, and nothing tells it but this."""
    published(db, 30, odd=False)
    before = {**_reader(db).initialOffset(), "p": {"0": 25, "1": 15}}
    for fails in ("true", "false"):
        reader = _reader(db, failOnHistoryChange=fails)
        beyond = pytest.raises(LogBehind, match="ends at sequence 15, and the stream has read 25")
        with beyond:
            reader.latestOffset(before, ALL_AVAILABLE)
        with beyond:
            reader.partitions(before, before)
    with closing(db.connect(autocommit=False)) as connection:
        (stopped,) = restore_status(connection)
        assert (stopped.partition, stopped.sequence) == (0, 25)
        assert "stream of Spark" in stopped.source
        reconcile(connection, "restored from yesterday")
        connection.commit()
    publish_more(db, 60, odd=False, first=30)
    assert _read_on(db, before)[0] == 60


def test_a_stream_stops_when_a_partition_is_gone_that_it_has_read(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the volume from before a resize.  Mutant: what comes there again is skipped."""
    published(db, 30, odd=False)
    start = {**_reader(db).initialOffset(), "p": {"0": 15, "1": 15, "2": 5, "3": 0}}
    gone = pytest.raises(LogBehind, match="has no partition 2, and the stream has read 5 events")
    for reader in (_reader(db), _reader(db, partitions="0,1")):
        with gone:
            reader.latestOffset(start, ALL_AVAILABLE)
    with gone:
        _reader(db, failOnHistoryChange="false").partitions(start, start)
    one = {**start, "p": {"0": 15, "1": 15}}
    _reader(db, partitions="0").latestOffset(one, ALL_AVAILABLE)
    with monkeypatch.context() as mutant, closing(db.connect()) as connection:
        mutant.setattr(StreamReader, "_require_partitions", lambda *_: None)
        passed = _reader(db).latestOffset(start, ALL_AVAILABLE)
        names.resize_topic(connection, TOPIC, 4)
        publish_more(db, 40, partitions=4, odd=False, first=30)
        assert _read_on(db, passed)[0] == 40 - 5


def test_a_subscription_mirrors_what_spark_has_done(db: ContractDatabase) -> None:
    published(db, 20, odd=False)
    with closing(db.connect()) as connection:
        with pytest.raises(SubscriptionNotFound):
            _reader(db, subscription="spark").latestOffset(
                _reader(db).initialOffset(), ALL_AVAILABLE
            )
        stream.subscribe(connection, "spark", [TOPIC])
        reader = _reader(db, subscription="spark")
        end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(12))
        reader.commit(end)
        assert stream.position(connection, "spark", TOPIC) == {0: 6, 1: 6}
        reader.commit(reader.initialOffset())
        assert stream.position(connection, "spark", TOPIC) == {0: 6, 1: 6}
        stream.seek(connection, "spark", TOPIC, 0, "earliest")
        with pytest.raises(StaleLease):
            reader.commit(end)


def test_a_subscription_that_does_not_read_the_topic_is_refused(db: ContractDatabase) -> None:
    """It would mirror nothing, and retention would not wait."""
    published(db, 4, odd=False)
    with closing(db.connect()) as connection:
        names.create_topic(connection, "tests/other")
        stream.subscribe(connection, "spark", ["tests/other"])
    reader = _reader(db, subscription="spark")
    with pytest.raises(InvalidArgument, match='"spark" does not read the topic'):
        reader.latestOffset(_reader(db).initialOffset(), ALL_AVAILABLE)


def test_a_stream_behind_its_mark_is_warned_of(
    db: ContractDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """Retention goes by the mark, which another stream has moved.  It is said once."""
    published(db, 20, odd=False)
    with closing(db.connect()) as connection:
        stream.subscribe(connection, "spark", [TOPIC])
    first, second = (_reader(db, subscription="spark") for _ in range(2))
    start = first.initialOffset()
    end = first.latestOffset(start, ReadMaxRows(12))
    first.commit(end)
    first.latestOffset(end, ALL_AVAILABLE)
    assert not caplog.messages
    for _ in range(2):
        second.latestOffset(start, ALL_AVAILABLE)
    (said,) = caplog.messages
    assert "is at sequence 6 of partition 0, and this stream at 0" in said


def test_a_stream_with_targets_says_that_it_reads_the_archive(
    db: ContractDatabase, tmp_path: Path
) -> None:
    """Then retention does not wait for its subscription below the low sequence."""
    published(db, 20, odd=False)
    noted = "SELECT lease_epoch FROM penstock.archive_readers"
    with closing(db.connect()) as connection:
        stream.subscribe(connection, "spark", [TOPIC])
    targets = json.dumps({"one": str(tmp_path)})
    for options, found in (({}, []), ({"targets": targets}, [(0,), (0,)])):
        reader = _reader(db, None, subscription="spark", **options)
        reader.commit(reader.latestOffset(reader.initialOffset(), ReadMaxRows(12)))
        assert db.run(noted) == found


@proves("D5, D9 below the low sequence", guard="a stream of Spark")
def test_a_stream_without_targets_takes_back_what_an_earlier_one_has_said(
    db: ContractDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have lease_epoch 0.  Mutant: retention goes on without waiting for the later one."""
    published(db, 20, odd=False)
    noted = "SELECT lease_epoch FROM penstock.archive_readers"
    with closing(db.connect()) as connection:
        stream.subscribe(connection, "spark", [TOPIC])
    targets = json.dumps({"one": str(tmp_path)})
    first = _reader(db, None, subscription="spark", targets=targets)
    end = first.latestOffset(first.initialOffset(), ReadMaxRows(12))
    first.commit(end)
    for reader in (_reader(db), _reader(db, None, subscription="spark", targets=targets)):
        reader.latestOffset(end, ALL_AVAILABLE)
    with monkeypatch.context() as mutant:
        mutant.setattr(StreamReader, "_withdraw", lambda *_: None)
        _reader(db, subscription="spark").latestOffset(end, ALL_AVAILABLE)
    assert db.run(noted) == [(0,), (0,)]
    _reader(db, subscription="spark").latestOffset(end, ALL_AVAILABLE)
    assert db.run(noted) == []
