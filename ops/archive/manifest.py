"""The manifest in the database: where a target has the copy of each log epoch."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.archive.contents import EpochRows
from penstock.archive.copies import Copy, EpochKey, key_of
from penstock.archive.format import DAY_COLUMN, DAYS
from penstock.archive.targets import Target
from penstock.database import call, connect
from penstock.records import LogEpoch

_DAY = re.compile(rf"{DAY_COLUMN}=(\d{{4}}-\d{{2}}-\d{{2}})/")


def recorded(connection: Any, target: str, epochs: Sequence[LogEpoch]) -> dict[EpochKey, Copy]:
    """The verified copies of log epochs of one topic on a target."""
    wanted: dict[int, list[int]] = {}
    for epoch in epochs:
        wanted.setdefault(epoch.partition, []).append(epoch.log_epoch)
    keys = {key_of(epoch) for epoch in epochs}
    found = {}
    for partition, numbers in wanted.items():
        span = min(numbers), max(numbers)
        for copy, state in _between(connection, epochs[0].topic, target, partition, span):
            if copy.key in keys and state == "verified":
                found[copy.key] = copy
    return found


def of_day(connection: Any, topic: str, target: str, day: dt.date) -> list[tuple[Copy, str]]:
    """Every copy on a target of the log epochs of a day that was ever recorded, and its state."""
    spans = call(connection, "log_epochs_sealed_on", topic=topic, sealed_date=day)
    return [
        each
        for partition, first, last in spans
        for each in _between(connection, topic, target, int(partition), (int(first), int(last)))
    ]


def contents(url: str, topic: str, target: Target, path: str) -> list[EpochRows]:
    """What a file of layout 2 holds, as the manifest has it; also of copies that were lost."""
    day = day_of(path)
    if day is None:
        return []
    with connect(url) as connection:
        copies = of_day(connection, topic, target.name, day)
    return [
        EpochRows(
            *copy.key, copy.first_sequence, copy.event_count, copy.checksum, copy.first_row, 0
        )
        for copy, _ in copies
        if copy.layout == DAYS and copy.location == path
    ]


def day_of(location: str) -> dt.date | None:
    """The day in the path of a file of layout 2."""
    found = _DAY.match(location)
    return None if found is None else dt.date.fromisoformat(found[1])


def record(connection: Any, topic: str, copy: Copy) -> None:
    """Record a copy that was read back: its count and checksum have to be those of the seal."""
    call(
        connection,
        "record_copy",
        topic=topic,
        partition=copy.partition,
        log_epoch=copy.log_epoch,
        target=copy.target,
        location=copy.location,
        event_count=copy.event_count,
        checksum=copy.checksum,
        layout=copy.layout,
        first_row=copy.first_row,
    )


def _between(
    connection: Any, topic: str, target: str, partition: int, span: tuple[int, int]
) -> Iterator[tuple[Copy, str]]:
    rows = call(
        connection,
        "copies_between",
        topic=topic,
        partition=partition,
        target=target,
        first_log_epoch=span[0],
        last_log_epoch=span[1],
    )
    for known_as, epoch, first, last, count, checksum, state, layout, location, row in rows:
        sealed = (partition, epoch, first, last, count, checksum)
        yield Copy(target, known_as, *sealed, layout, location, row), state
