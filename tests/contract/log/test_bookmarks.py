"""Bookmarks: a name for a position of a topic, good wherever a start is given, and never a lie."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from penstock import log
from penstock.errors import (
    AlreadyExists,
    BeyondHighWatermark,
    BookmarkNotFound,
    EmptySegment,
    InvalidArgument,
    InvalidPartition,
    LogBehind,
    SubscriptionNotFound,
    TopicNotFound,
)
from penstock.log.bookmarks import bookmark_positions, drop_bookmark, list_bookmarks, place_bookmark
from penstock.log.histories import reconcile
from penstock.log.starts import Start
from penstock.subscriptions import stream
from penstock.topics import names
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import Guard, without
from tests.kit.log import topic
from tests.kit.proof import proves
from tests.kit.stream import STREAM, SUBSCRIPTION, filled, more

SECOND = "tests/second"

FORGETS_WHAT_IS_LOST: Guard = {
    "postgres": ("open_history", "b.position > high_watermark(b.partition_id)", "false"),
    "mysql": ("mark_lost_bookmarks", "b.position > high_watermark(b.partition_id)", "FALSE"),
}
BELIEVES_ALL: Guard = {
    "postgres": ("bookmarked", "OR placed.position > high_watermark(placed.partition_id)", ""),
    "mysql": ("bookmarked", "OR wanted > watermark", ""),
}
BELIEVES_THE_FUTURE: Guard = {
    "postgres": ("bookmarked", "OR placed.history > current_history()", ""),
    "mysql": ("bookmarked", "OR placed_in > present", ""),
}


def _ahead(db: ContractDatabase, events: int = 1000) -> None:
    """As if a restore had lost these events, and not the bookmark."""
    db.run(f"UPDATE penstock.bookmarks SET position = position + {events}")


def test_it_names_a_position_in_each_partition(db: ContractDatabase) -> None:
    own = db.connect()
    filled(own, partitions=2)
    placed = place_bookmark(own, STREAM, "release 7")
    ends = log.high_watermarks(own, STREAM)
    assert placed == ends == bookmark_positions(own, STREAM, "release 7")
    more(own, partitions=2, start=11)
    rows = list_bookmarks(own, STREAM)
    assert rows == list_bookmarks(own)
    assert {each.partition: each.position for each in rows} == ends
    assert {(each.topic, each.name, each.history, each.is_lost) for each in rows} == {
        (STREAM, "release 7", 1, False)
    }
    assert isinstance(rows[0].placed_at, datetime)
    assert rows[0].placed_by
    assert stream.reset(own, SUBSCRIPTION, "bookmark:release 7") == {
        (STREAM, number): end for number, end in ends.items()
    }
    assert stream.seek(own, SUBSCRIPTION, STREAM, 1, "bookmark:release 7") == ends[1]
    counted = stream.replay_count(own, SUBSCRIPTION, "bookmark:release 7")
    present = log.high_watermarks(own, STREAM)
    assert counted == {(STREAM, n): present[n] - ends[n] for n in present}
    stream.subscribe(own, "side", [STREAM], "bookmark:release 7")
    assert stream.position(own, "side", STREAM) == ends
    assert drop_bookmark(own, STREAM, "release 7")
    assert not drop_bookmark(own, STREAM, "release 7")
    assert list_bookmarks(own) == []


def test_it_is_placed_from_any_start(db: ContractDatabase) -> None:
    """From a subscription, another bookmark, a position, a time, or a start for each partition."""
    own = db.connect()
    filled(own, partitions=2)
    stream.seek(own, SUBSCRIPTION, STREAM, 0, 2)
    stands = stream.position(own, SUBSCRIPTION, STREAM)
    assert place_bookmark(own, STREAM, "theirs", f"subscription:{SUBSCRIPTION}") == stands
    assert place_bookmark(own, STREAM, "copy", "bookmark:theirs") == stands
    assert place_bookmark(own, STREAM, "all", "earliest") == {0: 0, 1: 0}
    assert place_bookmark(own, STREAM, "lsn", "0.2") == {0: 1, 1: 1}
    each: dict[int, Start] = {0: "bookmark:theirs", 1: 3}
    assert place_bookmark(own, STREAM, "each", each) == {0: stands[0], 1: 2}


def test_a_partition_that_came_later_is_read_from_its_beginning(db: ContractDatabase) -> None:
    own = db.connect()
    filled(own, partitions=1)
    place_bookmark(own, STREAM, "before")
    names.resize_topic(own, STREAM, 2)
    assert bookmark_positions(own, STREAM, "before") == {
        0: log.high_watermarks(own, STREAM)[0],
        1: 0,
    }


def test_wrong_use_is_refused_and_nothing_is_placed(db: ContractDatabase) -> None:
    own = db.connect()
    filled(own, partitions=2)
    topic(own, 1, SECOND)
    place_bookmark(own, STREAM, "taken")
    wrong: list[tuple[type[Exception], str, str, Any]] = [
        (AlreadyExists, STREAM, "taken", "latest"),
        (EmptySegment, STREAM, "a/b", "latest"),
        (TopicNotFound, "tests/none", "x", "latest"),
        (BookmarkNotFound, STREAM, "x", "bookmark:none"),
        (BookmarkNotFound, SECOND, "x", "bookmark:taken"),
        (SubscriptionNotFound, STREAM, "x", "subscription:none"),
        (SubscriptionNotFound, SECOND, "x", f"subscription:{SUBSCRIPTION}"),
        (BeyondHighWatermark, STREAM, "x", 1_000_000),
        (InvalidArgument, STREAM, "x", "yesterday"),
        (InvalidArgument, STREAM, "x", '{"a": 1}'),
        (InvalidArgument, STREAM, "x", "{nothing"),
        (InvalidPartition, STREAM, "x", {0: 1}),
    ]
    for error, address, name, start in wrong:
        with pytest.raises(error):
            place_bookmark(own, address, name, start)
    assert {each.name for each in list_bookmarks(own)} == {"taken"}
    with pytest.raises(BookmarkNotFound):
        stream.reset(own, SUBSCRIPTION, "bookmark:none")
    with pytest.raises(BookmarkNotFound):
        bookmark_positions(own, STREAM, "none")


def test_it_goes_with_its_topic(db: ContractDatabase) -> None:
    own = db.connect()
    topic(own, 1, SECOND)
    place_bookmark(own, SECOND, "mark")
    names.delete_topic(own, SECOND)
    assert db.run("SELECT COUNT(*) FROM penstock.bookmarks") == [(0,)]


def _lost(db: ContractDatabase) -> Any:
    """A bookmark beyond the log, then a new history in which other events get its sequences."""
    own = db.connect()
    filled(own)
    place_bookmark(own, STREAM, "mark")
    _ahead(db, 1)
    reconcile(own, "a test")
    more(own, start=11)
    return own


@proves("the whole history, by time and by name")
def test_after_a_restore_that_lost_its_events_it_is_refused(db: ContractDatabase) -> None:
    """Guard: the line of open_history: later the log reaches that sequence again."""
    own = _lost(db)
    assert [each.is_lost for each in list_bookmarks(own)] == [True]
    for use in (
        lambda: stream.reset(own, SUBSCRIPTION, "bookmark:mark"),
        lambda: bookmark_positions(own, STREAM, "mark"),
        lambda: place_bookmark(own, STREAM, "copy", "bookmark:mark"),
    ):
        with pytest.raises(LogBehind, match="mark"):
            use()


@proves("the whole history, by time and by name", guard="the mark of a lost bookmark")
def test_without_the_mark_it_would_stand_before_another_event(db: ContractDatabase) -> None:
    """Mutant of the test above."""
    without(db, FORGETS_WHAT_IS_LOST)
    own = _lost(db)
    assert stream.reset(own, SUBSCRIPTION, "bookmark:mark")


@pytest.mark.parametrize("mutant", [False, True])
def test_beyond_the_log_it_is_refused(db: ContractDatabase, mutant: bool) -> None:
    """Guard: the comparison with the high watermark, before anything is reconciled."""
    own = db.connect()
    filled(own)
    place_bookmark(own, STREAM, "mark")
    _ahead(db)
    if mutant:
        without(db, BELIEVES_ALL)
        assert bookmark_positions(own, STREAM, "mark")[0] > log.high_watermarks(own, STREAM)[0]
        return
    with pytest.raises(LogBehind):
        bookmark_positions(own, STREAM, "mark")


@pytest.mark.parametrize("mutant", [False, True])
def test_of_a_later_history_it_is_refused(db: ContractDatabase, mutant: bool) -> None:
    """Guard: the comparison of the histories."""
    own = db.connect()
    filled(own)
    place_bookmark(own, STREAM, "mark", "earliest")
    db.run("UPDATE penstock.bookmarks SET history = 9")
    if mutant:
        without(db, BELIEVES_THE_FUTURE)
        assert bookmark_positions(own, STREAM, "mark") == {0: 0}
        return
    with pytest.raises(LogBehind):
        stream.seek(own, SUBSCRIPTION, STREAM, 0, "bookmark:mark")


def test_a_restore_that_kept_its_events_keeps_it(db: ContractDatabase) -> None:
    own = db.connect()
    filled(own)
    placed = place_bookmark(own, STREAM, "mark")
    reconcile(own, "a test")
    more(own, start=11)
    assert bookmark_positions(own, STREAM, "mark") == placed
