"""A time as a start: the first event that was sequenced then or later, wherever it is by now."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ops.seal import seal
from penstock import archive, database, log, publish_batch
from penstock.archive.targets import Target
from penstock.errors import BelowLowSequence, EpochMissing, InvalidArgument
from penstock.records import Event, Message, as_time
from penstock.subscriptions import stream
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import Guard, without
from tests.kit.copies import copy_all, drop, remove
from tests.kit.log import drain, topic
from tests.kit.proof import proves
from tests.kit.stream import STREAM, SUBSCRIPTION

#: Each log epoch seems to reach further than it does.
LATE: Guard = {
    "postgres": ("seal", "sequenced_until(source_id, start, last)", "clock_timestamp()"),
    "mysql": (
        "sequenced_until",
        "SELECT MAX(c.sequenced_at) INTO until",
        "SELECT UTC_TIMESTAMP(6) + INTERVAL 0 * MAX(c.event_count) SECOND INTO until",
    ),
}
#: The last log epoch that reaches the time is taken.
SKIPS: Guard = {
    "postgres": ("position_since", "ORDER BY e.sequenced_until,", "ORDER BY e.log_epoch DESC,"),
    "mysql": ("position_since", "ORDER BY e.sequenced_until,", "ORDER BY e.log_epoch DESC,"),
}


@pytest.fixture
def place(tmp_path: Path) -> Target:
    """An archive target."""
    return Target("one", str(tmp_path / "one"))


def _ticks(own: Any, count: int, each: int = 3, partitions: int = 1) -> None:
    """Passes of the sequencer, each at another time."""
    for _ in range(count):
        publish_batch(
            own,
            [Message(STREAM, b"x", partition=n) for n in range(partitions) for _ in range(each)],
        )
        drain(own)


def _times(own: Any, partition: int = 0) -> list[datetime]:
    events: list[Event] = log.fetch(own, STREAM, partition, 1, 500)
    return [each.sequenced_at for each in events]


def _cold(own: Any, place: Target, partitions: int = 1) -> list[list[datetime]]:
    """Log epochs of seven events; all that are whole are dropped.  Returns when each event came."""
    topic(own, partitions, STREAM)
    stream.subscribe(own, SUBSCRIPTION, [STREAM], "latest")
    _ticks(own, 12, partitions=partitions)
    times = [_times(own, number) for number in range(partitions)]
    seal(own, STREAM, max_events=7)
    copy_all(own, STREAM, place)
    stream.reset(own, SUBSCRIPTION, "latest")
    drop(own, STREAM, [place])
    assert dict(database.call(own, "low_sequences", topic=STREAM)) == dict.fromkeys(
        range(partitions), 36
    )
    return times


def _expected(times: list[datetime], since: datetime) -> int:
    """The position before the first event of that time or later."""
    return next((n for n, at in enumerate(times) if at >= since), len(times))


@proves("the whole history, by time and by name")
def test_every_time_leads_to_its_first_event(db: ContractDatabase, place: Target) -> None:
    """Each event's own time, and a moment before and after it: hot, cold, and on the border."""
    own = db.connect()
    (times,) = _cold(own, place)
    moment = timedelta(microseconds=1)
    for at in sorted(set(times)):
        for since in (at - moment, at, at + moment):
            found = archive.position_at(own, STREAM, 0, since, targets=[place])
            assert found == _expected(times, since), since
    before_all = times[0] - timedelta(days=400)
    assert archive.position_at(own, STREAM, 0, before_all, targets=[place]) == 0


def test_only_the_log_epoch_of_the_time_is_read(
    db: ContractDatabase, place: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when a seal came long after its events."""
    own = db.connect()
    (times,) = _cold(own, place)
    rows = database.call(own, "locate_time", topic=STREAM, partition=0, since=times[16])
    (position, log_epoch, first, last) = rows[0]
    assert position is None
    assert first <= 17 <= last
    assert log_epoch == (first - 1) // 7 + 1


def test_a_subscription_starts_at_a_time_in_the_archive(
    db: ContractDatabase, place: Target
) -> None:
    """In all partitions, all or none: reset, a side subscription, a bookmark, a dry run."""
    own = db.connect()
    times = _cold(own, place, partitions=2)
    since = times[0][16]
    positions = {number: _expected(times[number], since) for number in (0, 1)}
    with pytest.raises(BelowLowSequence):
        stream.reset(own, SUBSCRIPTION, since)
    with pytest.raises(BelowLowSequence, match="name the archive targets"):
        archive.start_at(own, [STREAM], since, targets=[])
    start = archive.start_at(own, [STREAM], since, targets=[place])
    assert stream.replay_count(own, SUBSCRIPTION, start) == {
        (STREAM, number): 36 - position for number, position in positions.items()
    }
    assert set(stream.position(own, SUBSCRIPTION, STREAM).values()) == {36}
    assert stream.reset(own, SUBSCRIPTION, start) == {
        (STREAM, number): position for number, position in positions.items()
    }
    stream.subscribe(own, "side", [STREAM], start)
    assert stream.position(own, "side", STREAM) == positions
    assert log.place_bookmark(own, STREAM, "then", start) == positions


def test_what_cannot_be_looked_up_is_told(db: ContractDatabase, place: Target) -> None:
    own = db.connect()
    (times,) = _cold(own, place)
    with pytest.raises(InvalidArgument, match="no zone"):
        archive.position_at(own, STREAM, 0, datetime(2026, 1, 1), targets=[place])
    remove(place)
    with pytest.raises(EpochMissing, match="penstock backfill"):
        archive.position_at(own, STREAM, 0, times[0], targets=[place])
    db.run("DELETE FROM penstock.log_epochs")
    with pytest.raises(BelowLowSequence, match="no seal says which"):
        archive.position_at(own, STREAM, 0, times[0], targets=[place])


def test_a_seal_that_knows_only_its_own_time_is_searched_further(
    db: ContractDatabase, place: Target
) -> None:
    """As those that were made by an older version: the reader goes on to the next log epoch."""
    own = db.connect()
    without(db, LATE)
    (times,) = _cold(own, place)
    for since in times[::5]:
        found = archive.position_at(own, STREAM, 0, since, targets=[place])
        assert found == _expected(times, since)


@proves("the whole history, by time and by name", guard="the log epoch of a time")
def test_with_a_later_log_epoch_events_would_be_skipped(
    db: ContractDatabase, place: Target
) -> None:
    """Mutant: the order of the log epochs in `position_since`."""
    own = db.connect()
    without(db, SKIPS)
    (times,) = _cold(own, place)
    assert archive.position_at(own, STREAM, 0, times[16], targets=[place]) != _expected(
        times, times[16]
    )


def test_the_time_of_a_seal_is_that_of_its_newest_event(
    db: ContractDatabase, place: Target
) -> None:
    own = db.connect()
    (times,) = _cold(own, place)
    stored = db.run("SELECT sequenced_until FROM penstock.log_epochs ORDER BY log_epoch")
    found = [as_time(each[0]).astimezone(UTC) for each in stored]
    assert found == sorted(found)
    assert all(found[n // 7] >= at for n, at in enumerate(times[:35]))
    assert found[0] <= times[7]
