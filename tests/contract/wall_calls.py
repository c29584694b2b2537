"""Calls that control a subscription, and lists of what subscriptions do, for the tests of walls."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

from ops import hours
from ops.backfill import requests as requests
from ops.erase import list_erasures
from penstock import database, subscriptions
from penstock.log import bookmarks
from penstock.records import LogEpoch
from penstock.subscriptions import stream
from penstock.topics import holds
from tests.contract.text_kit import FUNCTIONS, in_sql
from tests.kit.cleaning import record_reading

UNKNOWN_RUN = "00000000-0000-4000-8000-000000000000"

Call = Callable[[Any, str], object]


def member(subscription: str) -> stream.Membership:
    """Somebody who never joined."""
    return stream.Membership(subscription, "spy", uuid.UUID(int=1), 1, 3)


#: Functions of a topic that only SQL calls.
IN_SQL: dict[str, Call] = {name: in_sql(name) for name in FUNCTIONS}

#: Each refuses a hidden subscription as it refuses one that is not there.
STEERING: dict[str, Call] = {
    "reset": lambda own, name: stream.reset(own, name, "latest"),
    "pause": subscriptions.pause,
    "resume": subscriptions.resume,
    "describe_subscription": subscriptions.describe_subscription,
    "report_error": lambda own, name: stream.report_error(own, member(name), "x"),
    "note_archive_reads": lambda own, name: database.call(
        own, "note_archive_reads", subscription=name, partition_ids=[1], lease_epochs=[1]
    ),
    "withdraw_archive_reads": lambda own, name: database.call(
        own, "withdraw_archive_reads", subscription=name, partition_ids=[1]
    ),
    "open_cold_block": lambda own, name: database.call(
        own,
        "open_cold_block",
        subscription=name,
        consumer="spy",
        partition_id=1,
        lease_epoch=1,
        up_to=1,
    ),
}


def _looks_at(name: str, **binds: Any) -> Call:
    return lambda own, topic: database.call(own, name, topic=topic, **binds)


#: Places in the log, log epochs, their copies and a run of clean; each refuses a hidden topic.
EPOCHS: dict[str, Call] = {
    "position_at": _looks_at("position_at", partition=0, since=datetime(2026, 1, 1, tzinfo=UTC)),
    "low_sequences": _looks_at("low_sequences"),
    "sequence_gaps": _looks_at("sequence_gaps", known=None),
    "copies_of": _looks_at("copies_of"),
    "copies_between": _looks_at(
        "copies_between", partition=0, target="t", first_log_epoch=1, last_log_epoch=9
    ),
    "log_epochs_sealed_on": _looks_at("log_epochs_sealed_on", sealed_date=date(2026, 1, 31)),
    "move_copy": _looks_at(
        "move_copy",
        partition=0,
        log_epoch=1,
        target="t",
        old_location="a",
        location="b",
        first_row=0,
    ),
    "log_epochs_of": _looks_at("log_epochs_of"),
    "log_epochs_between": _looks_at(
        "log_epochs_between",
        from_time=datetime(2026, 1, 1, tzinfo=UTC),
        to_time=datetime(2036, 1, 1, tzinfo=UTC),
    ),
    "missing_copies": _looks_at("missing_copies", target="t"),
    "count_log_epochs": _looks_at("count_log_epochs", max_events=1),
    "begin_clean": _looks_at("begin_clean"),
    "log_epochs_due": _looks_at("log_epochs_due", max_epochs=1),
    "record_reading": lambda own, name: record_reading(
        own, UNKNOWN_RUN, LogEpoch(name, 0, 1, 1, 1, 1, "c"), "t"
    ),
    "clean": _looks_at("clean", run=UNKNOWN_RUN),
    "request_backfill": lambda own, name: requests.request_backfill(own, name, "copy", "t"),
    "list_backfills": lambda own, name: requests.list_backfills(own, name),
    "rehydrated_of": _looks_at("rehydrated_of"),
    "release_rehydrated": _looks_at("release_rehydrated", older_than_seconds=0, max_epochs=1),
    "fetch_plan": _looks_at("fetch_plan", partition=0, from_sequence=1, max_events=1),
    "lsn_of": _looks_at("lsn_of", partition=0, sequence=1),
    "sequence_of": _looks_at("sequence_of", partition=0, lsn="0.1"),
    "place_hold": lambda own, name: holds.place_hold(own, name, "case", "a claim"),
    "release_hold": lambda own, name: holds.release_hold(own, name, "case", "over"),
    "list_holds": holds.list_holds,
    "find_erasable": _looks_at(
        "find_erasable", partition=0, from_sequence=1, max_events=1, event_ids=None, key="k"
    ),
    "begin_erasure": _looks_at(
        "begin_erasure", event_id=None, key="k", reason="a claim", replace_key=False
    ),
    "list_erasures": list_erasures,
    "reissued_of": _looks_at("reissued_of"),
    "erased_of": _looks_at("erased_of", partition=0, first_sequence=1, last_sequence=9, max_rows=9),
    "locate_time": _looks_at("locate_time", partition=0, since=datetime(2026, 1, 1, tzinfo=UTC)),
    "place_bookmark": lambda own, name: bookmarks.place_bookmark(own, name, "mark"),
    "drop_bookmark": lambda own, name: bookmarks.drop_bookmark(own, name, "mark"),
    "list_bookmarks": bookmarks.list_bookmarks,
    "bookmark_positions": lambda own, name: bookmarks.bookmark_positions(own, name, "mark"),
}

#: Each leaves out what is hidden.
LISTS: tuple[Callable[[Any], object], ...] = (
    subscriptions.list_subscriptions,
    subscriptions.members,
    subscriptions.leased_cursors,
    subscriptions.unleased_cursors,
    subscriptions.statistics,
    subscriptions.skips,
    holds.list_holds,
    list_erasures,
    bookmarks.list_bookmarks,
    requests.list_backfills,
    hours.changed_hours,
    hours.unsealed_logs,
    hours.lost_copies,
)
