"""Hours: the log epochs by the hour in which they were sealed, by the clock of the database.

An hour (UTC) is what Dagster shows as a partition.  Every list here is bounded: by an hour, or by a
number of changes after a time.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ops.seal import log_epoch_of
from penstock.database import call
from penstock.records import LogEpoch, as_time

HOUR = dt.timedelta(hours=1)
#: Before every log epoch.
BEGINNING = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class ChangedHour:
    """An hour of a topic, how many of the changes were in it, and when the last of these was."""

    topic: str
    hour: dt.datetime
    changes: int
    changed_at: dt.datetime


@dataclass(frozen=True, slots=True)
class UnsealedLog:
    """A topic with events above its last log epoch.

    ``events`` is how many the partition with most of them has, ``seconds`` how long the oldest has
    been in the log.
    """

    topic: str
    events: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LostCopy:
    """A copy that was recorded and is missing now."""

    topic: str
    partition: int
    log_epoch: int
    target: str
    detail: str
    changed_at: dt.datetime
    sealed_at: dt.datetime


def changed_hours(
    connection: Any, after: dt.datetime = BEGINNING, max_changes: int = 1_000
) -> list[ChangedHour]:
    """The hours of the first changes after a time: a log epoch sealed, a copy recorded or lost."""
    rows = call(connection, "changed_hours", after=after, max_changes=max_changes)
    return [
        ChangedHour(topic, as_time(hour), int(changes), as_time(changed_at))
        for topic, hour, changes, changed_at in rows
    ]


def epochs_of_hour(connection: Any, topic: str, hour: dt.datetime) -> list[LogEpoch]:
    """The log epochs that were sealed in an hour, with the targets that hold a verified copy."""
    return epochs_between(connection, topic, hour, hour + HOUR)


def epochs_between(
    connection: Any, topic: str, from_time: dt.datetime, to_time: dt.datetime
) -> list[LogEpoch]:
    """The log epochs that were sealed in a span of time; ``to_time`` does not belong to it."""
    rows = call(connection, "log_epochs_between", topic=topic, from_time=from_time, to_time=to_time)
    return [log_epoch_of(topic, row) for row in rows]


def unsealed_logs(connection: Any) -> list[UnsealedLog]:
    """The topics that have something to seal, sooner or later."""
    rows = call(connection, "unsealed_logs")
    return [UnsealedLog(topic, int(events), float(seconds)) for topic, events, seconds in rows]


def lost_copies(connection: Any, max_rows: int = 1_000) -> list[LostCopy]:
    """The copies that are missing, the newest loss first."""
    rows = call(connection, "lost_copies", max_rows=max_rows)
    return [
        LostCopy(topic, part, epoch, target, why or "", as_time(changed_at), as_time(sealed_at))
        for topic, part, epoch, target, why, changed_at, sealed_at in rows
    ]


def data_version(epochs: Iterable[LogEpoch]) -> str:
    """The hash of the checksums of log epochs, in their order: what an hour holds."""
    seen = hashlib.sha256()
    for each in sorted(epochs, key=lambda epoch: (epoch.partition, epoch.log_epoch)):
        seen.update(f"{each.partition}:{each.log_epoch}:{each.checksum}\n".encode())
    return f"sha256:{seen.hexdigest()}"
