"""Log epochs by the hour of their sealing, on every engine: what changed, what waits, what is lost.

Dagster's sensors look at nothing else, so a look has to stay bounded however long the log is.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from ops import hours
from ops.archive.placement import Placement, verified_on
from ops.hours import BEGINNING, HOUR
from ops.seal import forget_copy, log_epochs, seal
from penstock import database
from penstock.errors import InvalidArgument, TopicNotFound
from penstock.records import LogEpoch
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import Guard, without
from tests.kit.log import drain
from tests.kit.placements import on_each
from tests.kit.proof import proves
from tests.kit.stream import STREAM, filled

#: Changes after the first page would never be seen.
ALL_AT_ONCE: Guard = {
    "postgres": ("changed_hours", "WHERE c.changed_at > changed_hours.after", "WHERE true"),
    "mysql": ("changed_hours", "WHERE c.changed_at > after", "WHERE TRUE"),
}


def sealed(own: Any, events: int = 10, epochs: int = 2) -> list[LogEpoch]:
    """A topic of one partition, cut into log epochs."""
    filled(own, events=events)
    drain(own)
    seal(own, STREAM, max_events=events // epochs)
    return log_epochs(own, STREAM)


def record(own: Any, epoch: LogEpoch, target: str) -> None:
    """Record a copy."""
    database.call(
        own,
        "record_copy",
        topic=STREAM,
        partition=epoch.partition,
        log_epoch=epoch.log_epoch,
        target=target,
        location="a",
        event_count=epoch.event_count,
        checksum=epoch.checksum,
        layout=2,
        first_row=0,
    )


def hour_of(epoch: LogEpoch) -> dt.datetime:
    """The hour in which it was sealed."""
    assert epoch.sealed_at is not None
    at = epoch.sealed_at
    at = at if at.tzinfo else at.replace(tzinfo=dt.UTC)
    return at.astimezone(dt.UTC).replace(minute=0, second=0, microsecond=0)


def pages(own: Any, size: int) -> list[hours.ChangedHour]:
    """All changes, read in pages."""
    found: list[hours.ChangedHour] = []
    after = BEGINNING
    while page := hours.changed_hours(own, after, size):
        found += page
        after = page[-1].changed_at
    return found


@proves("a look stays bounded")
def test_the_hours_of_all_changes_are_found_page_by_page(db: ContractDatabase) -> None:
    """Guard: the change of a copy is looked for after the time that is given, as that of a seal."""
    own = db.connect()
    first, second = sealed(own)
    assert {each.hour for each in pages(own, 1)} == {hour_of(first), hour_of(second)}
    assert sum(each.changes for each in pages(own, 1)) == 2
    after = max(each.changed_at for each in pages(own, 10))
    assert hours.changed_hours(own, after) == []
    record(own, first, "one")
    (copied,) = hours.changed_hours(own, after)
    assert (copied.topic, copied.hour, copied.changes) == (STREAM, hour_of(first), 1)
    forget_copy(own, STREAM, (0, 1), "one", "gone")
    (lost,) = hours.changed_hours(own, copied.changed_at)
    assert lost.changed_at > copied.changed_at
    assert hours.changed_hours(own, lost.changed_at) == []
    for wrong in (0, 10_001):
        with pytest.raises(InvalidArgument):
            hours.changed_hours(own, BEGINNING, wrong)
    without(db, ALL_AT_ONCE)
    assert hours.changed_hours(own, lost.changed_at) != []


def test_an_hour_holds_its_log_epochs_and_no_others(db: ContractDatabase) -> None:
    own = db.connect()
    first, second = sealed(own)
    record(own, first, "one")
    record(own, first, "two")
    hour = hour_of(first)
    found = hours.epochs_between(own, STREAM, hour, hour + 2 * HOUR)
    assert [each.checksum for each in found] == [first.checksum, second.checksum]
    assert sorted(found[0].targets) == ["one", "two"] and found[1].targets == ()
    assert hours.epochs_of_hour(own, STREAM, hour - HOUR) == []
    assert hours.epochs_between(own, STREAM, hour - HOUR, hour) == []
    assert verified_on(found, on_each("two", "one")) == found[:1]
    assert verified_on(found, on_each("two", "three")) == []
    assert verified_on(found, Placement({"two": 1, "three": 1}, 1, 1)) == found[:1]
    assert verified_on(found, None) == []
    with pytest.raises(TopicNotFound):
        hours.epochs_of_hour(own, "no/topic", hour)


def test_the_data_version_is_that_of_the_checksums(db: ContractDatabase) -> None:
    own = db.connect()
    first, second = sealed(own)
    whole = hours.data_version([first, second])
    assert whole == hours.data_version([second, first])
    assert len({whole, hours.data_version([first]), hours.data_version([second])}) == 3


def test_what_waits_to_be_sealed_and_for_how_long(db: ContractDatabase) -> None:
    own = db.connect()
    assert hours.unsealed_logs(own) == []
    filled(own, events=10)
    drain(own)
    (waiting,) = hours.unsealed_logs(own)
    assert (waiting.topic, waiting.events) == (STREAM, 10) and 0 <= waiting.seconds < 60
    database.call(own, "seal", topic=STREAM, partition=0, max_events=4, max_age_seconds=None)
    assert hours.unsealed_logs(own)[0].events == 6
    seal(own, STREAM, max_events=10, max_age_seconds=0)
    assert hours.unsealed_logs(own) == []


def test_a_lost_copy_is_listed_until_it_is_made_again(db: ContractDatabase) -> None:
    own = db.connect()
    first, second = sealed(own)
    for epoch in (first, second):
        record(own, epoch, "one")
    assert hours.lost_copies(own) == []
    forget_copy(own, STREAM, (0, 2), "one", "its file is gone")
    forget_copy(own, STREAM, (0, 1), "one", "damaged")
    assert [(each.log_epoch, each.detail) for each in hours.lost_copies(own)] == [
        (1, "damaged"),
        (2, "its file is gone"),
    ]
    (newest,) = hours.lost_copies(own, 1)
    assert (newest.topic, newest.log_epoch, newest.target) == (STREAM, 1, "one")
    record(own, second, "one")
    assert [each.log_epoch for each in hours.lost_copies(own)] == [1]
    with pytest.raises(InvalidArgument):
        hours.lost_copies(own, 0)
