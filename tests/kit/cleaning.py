"""Clean for tests: what ships, and as if every copy had been read back and was whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ops.archive.copy_readings import CopyReading, Reader
from ops.duties import verbs
from ops.duties.engine import SQL
from ops.duties.setup import Setup
from ops.duties.units import DONE
from ops.duties.verbs import DutyPlace
from ops.retention.clean import MOST_EPOCHS, CleanResult, begin, drop
from ops.retention.guard import ReadBack, read_back
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


def clean_believing(
    url: str,
    topic: str,
    *targets: str,
    read: Reader = believed,
    most: int = MOST_EPOCHS,
) -> tuple[CleanResult, ...]:
    """The steps of a run of clean, with another reader; the targets are nowhere."""
    begun = begin(url, topic, most)
    places = [Target(name, "/nowhere") for name in targets or ("local",)]
    read_back(url, begun.run, begun.due, places, read)
    return drop(url, topic, begun.run)


@dataclass(frozen=True)
class Cleaned:
    """What a run has read back, and what became of each partition."""

    read: ReadBack
    partitions: tuple[CleanResult, ...]


def clean(url: str, topic: str, *targets: Target) -> Cleaned:
    """What `penstock clean` does with a topic, but for the tables."""
    outcomes = verbs.clean_topics(Setup.of_url(url, *targets), [DutyPlace(topic)], engine=SQL)
    whole = ReadBack()
    for each in outcomes:
        if each.unit.duty == "read back":
            assert each.result, each
            whole.take(each.result)
    (done,) = (each for each in outcomes if each.unit.duty == "clean")
    assert done.state == DONE, done
    return Cleaned(whole, done.result)
