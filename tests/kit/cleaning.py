"""Clean for tests of other things: as if every copy had been read back and was whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ops.archive.copy_readings import CopyReading
from ops.retention.clean import CleanResult, clean
from ops.seal import due_log_epochs
from penstock import database
from penstock.archive.targets import Target
from penstock.records import LogEpoch


def read_all(connection: Any, topic: str) -> str:
    """A run that has read back all that is due.  Returns its token."""
    ((run,),) = database.call(connection, "begin_clean", topic=topic)
    for epoch in due_log_epochs(connection, topic, 1_000):
        for target in epoch.targets:
            record_reading(connection, str(run), epoch, target)
    return str(run)


def record_reading(connection: Any, run: str, epoch: LogEpoch, target: str, **changes: Any) -> bool:
    """What a run has read back of a copy: by default what was sealed."""
    given = {"event_count": epoch.event_count, "checksum": epoch.checksum, "damage": ""}
    ((is_whole,),) = database.call(
        connection,
        "record_reading",
        topic=epoch.topic,
        run=run,
        partition=epoch.partition,
        log_epoch=epoch.log_epoch,
        target=target,
        **given | changes,
    )
    return bool(is_whole)


def clean_unread(connection: Any, topic: str) -> list[tuple[Any, ...]]:
    """The rows of the SQL function `clean`, under such a run."""
    run = read_all(connection, topic)
    return database.call(connection, "clean", topic=topic, run=run)


def believed(_: Target, epochs: Sequence[LogEpoch]) -> list[CopyReading]:
    """A reader that finds what was sealed, whatever is there."""
    return [
        CopyReading(each.partition, each.log_epoch, each.event_count, each.checksum, "")
        for each in epochs
    ]


def clean_believing(url: str, topic: str, *targets: str) -> tuple[CleanResult, ...]:
    """A run of clean with that reader; the targets are nowhere."""
    places = [Target(name, "/nowhere") for name in targets or ("local",)]
    return clean(url, topic, places, believed).partitions
