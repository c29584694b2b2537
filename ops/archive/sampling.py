"""Looks at a copy and at a table now and then: without Spark, in this process."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from ops.archive import manifest
from ops.hours import BEGINNING, epochs_between
from penstock.archive.checksum import EpochChecksum
from penstock.archive.copies import Copy
from penstock.archive.copy_reader import read_copy
from penstock.archive.format import DAY_SCHEMA, DAYS
from penstock.archive.table import ArchiveTable
from penstock.archive.targets import Target
from penstock.database import connect
from penstock.errors import PenstockError
from penstock.records import as_time
from penstock.topics.names import describe_topic

#: What :func:`read_newest` says where a target holds no verified copy of a topic.
NOTHING = "nothing to read: no log epoch has a verified copy here"
#: The newest copy is looked for in so many hours at first, then in four times as many, and so on.
_FIRST_HOURS, _TIMES_AS_MANY, _LOOKS = 1, 4, 9


def is_whole(target: Target, copy: Copy) -> bool:
    """Whether a copy holds every event of its log epoch as it was sealed; reads all of it."""
    seen = EpochChecksum()
    for batch in read_copy(target, copy, copy.first_sequence, copy.last_sequence):
        seen.add(batch)
    return (seen.event_count, seen.hexdigest()) == (copy.event_count, copy.checksum)


def read_newest(url: str, topic: str, target: Target) -> tuple[bool, str]:
    """Whether the newest verified copy on a target is good, and what was found there.

    Where there is no copy nothing is wrong, and it is said.
    """
    copy = _newest(url, topic, target)
    if copy is None:
        return True, NOTHING
    try:
        good = is_whole(target, copy)
    except PenstockError as error:
        return False, str(error)
    return good, "whole" if good else "it is not what was sealed"


def schema_differences(url: str, topic: str, target: Target) -> list[str]:
    """Where the table of a topic on a target has other columns than this version writes."""
    with connect(url) as connection:
        known_as = describe_topic(connection, topic).known_as
    table = ArchiveTable(target, known_as).delta(DAYS)
    if table is None:
        return []
    present = {field.name: str(field.type.type) for field in table.schema().fields}
    wanted = {field.name for field in DAY_SCHEMA}
    return [
        *(f"{name} is missing" for name in sorted(wanted - present.keys())),
        *(f"{name} is not known" for name in sorted(present.keys() - wanted)),
    ]


def _newest(url: str, topic: str, target: Target) -> Copy | None:
    """The copy of the log epoch that was sealed last, of those that the target holds.

    It looks at log epochs of this topic alone, from the newest on, and stops at the first span of
    time that has one: as a rule the hour, or the day, in which something was archived.
    """
    with connect(url) as connection:
        for first, last in _spans(dt.datetime.now(dt.UTC)):
            held = [
                each
                for each in epochs_between(connection, topic, first, last)
                if target.name in each.targets
            ]
            if held:
                newest = max(held, key=lambda each: as_time(each.sealed_at))
                found = manifest.recorded(connection, target.name, [newest])
                return next(iter(found.values()), None)
    return None


def _spans(now: dt.datetime) -> Iterator[tuple[dt.datetime, dt.datetime]]:
    """From now back to the beginning, each longer than the one before it."""
    last = now + dt.timedelta(days=1)  # the clock of the database may be ahead
    for look in range(_LOOKS):
        first = now - dt.timedelta(hours=_FIRST_HOURS * _TIMES_AS_MANY**look)
        yield first, last
        last = first
    yield BEGINNING, last
