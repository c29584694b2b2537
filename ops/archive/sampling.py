"""Looks at a copy and at a table now and then: without Spark, in this process."""

from __future__ import annotations

import datetime as dt

from ops.archive import manifest
from ops.hours import changed_hours, epochs_of_hour
from penstock.archive.checksum import EpochChecksum
from penstock.archive.copies import Copy
from penstock.archive.format import DAY_SCHEMA, DAYS
from penstock.archive.reader import read_copy
from penstock.archive.table import ArchiveTable
from penstock.archive.targets import Target
from penstock.database import connect
from penstock.errors import PenstockError
from penstock.topics.names import describe_topic

#: How many hours back the newest copy is looked for.
_HOURS_BACK = 48


def is_whole(target: Target, copy: Copy) -> bool:
    """Whether a copy holds every event of its log epoch as it was sealed; reads all of it."""
    seen = EpochChecksum()
    for batch in read_copy(target, copy, copy.first_sequence, copy.last_sequence):
        seen.add(batch)
    return (seen.event_count, seen.hexdigest()) == (copy.event_count, copy.checksum)


def read_newest(url: str, topic: str, target: Target) -> str:
    """What is wrong with the newest copy of the last two days on a target; '' when nothing is."""
    copy = _newest(url, topic, target)
    if copy is None:
        return ""
    try:
        return "" if is_whole(target, copy) else "it is not what was sealed"
    except PenstockError as error:
        return str(error)


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
    """The copy of the log epoch that was sealed last, of those that the target holds."""
    with connect(url) as connection:
        since = dt.datetime.now(dt.UTC) - dt.timedelta(hours=_HOURS_BACK)
        hours = {each.hour for each in changed_hours(connection, since) if each.topic == topic}
        for hour in sorted(hours, reverse=True):
            epochs = [
                e for e in epochs_of_hour(connection, topic, hour) if target.name in e.targets
            ]
            if epochs:
                found = manifest.recorded(connection, target.name, epochs[-1:])
                return next(iter(found.values()), None)
    return None
