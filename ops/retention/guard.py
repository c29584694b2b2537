"""Guard: read back the copies of what a run of clean is about to remove.

The database drops a log epoch on the strength of a recorded copy.  A record says what was true when
the copy was made; so a run looks again, right before the events go, and tells the database under
its token what it has read.  Only that can go, and when one copy is damaged nothing goes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ops.archive.copy_readings import CopyReading, Reader
from penstock.archive.copies import key_of
from penstock.database import call, connect
from penstock.errors import TargetUnavailable
from penstock.records import LogEpoch

if TYPE_CHECKING:
    from penstock.archive.targets import Target

#: Log epochs that are read before the clock is looked at again.
READ_AT_ONCE = 128
#: What was read within this time goes, the rest is left to the next run: a token ends after hours.
MOST_SECONDS = 3_600.0


@dataclass(frozen=True, slots=True)
class DamagedCopy:
    """A copy that is not what was sealed."""

    target: str
    partition: int
    log_epoch: int
    damage: str


@dataclass(slots=True)
class ReadBack:
    """What a run has read: ``events`` in ``copies`` copies, and what was wrong."""

    copies: int = 0
    events: int = 0
    damaged: list[DamagedCopy] = field(default_factory=list)
    #: Targets that are not there now, and why.
    unavailable: dict[str, str] = field(default_factory=dict)

    def add(self, target: Target, reading: CopyReading, is_whole: bool) -> None:
        """Count a copy."""
        self.copies += 1
        self.events += reading.event_count
        if not is_whole:
            self.damaged.append(DamagedCopy(target.name, *reading.key, reading.damage))

    def take(self, other: ReadBack) -> None:
        """Count what another part of the run has read."""
        self.copies += other.copies
        self.events += other.events
        self.damaged += other.damaged
        self.unavailable = other.unavailable | self.unavailable


def read_back(
    url: str,
    run: str,
    due: Sequence[LogEpoch],
    targets: Sequence[Target],
    read: Reader,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> ReadBack:
    """Read the copies of these log epochs on these targets, and record each under the run."""
    done = ReadBack()
    end = clock() + MOST_SECONDS
    for start in range(0, len(due), READ_AT_ONCE):
        if clock() >= end:
            break
        for target in targets:
            lot = due[start : start + READ_AT_ONCE]
            chosen = [epoch for epoch in lot if target.name in epoch.targets]
            if not chosen or target.name in done.unavailable:
                continue
            try:
                readings = read(target, chosen)
            except TargetUnavailable as error:
                done.unavailable[target.name] = str(error)
                continue
            topics = {key_of(epoch): epoch.topic for epoch in chosen}
            # One transaction: a thousand commits would take longer than the reading.
            with connect(url, application_name="penstock clean", autocommit=False) as connection:
                for each in readings:
                    done.add(target, each, _tell(connection, run, topics[each.key], target, each))
                connection.commit()
    return done


def _tell(connection: Any, run: str, topic: str, target: Target, reading: CopyReading) -> bool:
    """Whether the copy is what was sealed, as the database sees it."""
    ((is_whole,),) = call(
        connection,
        "record_reading",
        topic=topic,
        run=run,
        partition=reading.partition,
        log_epoch=reading.log_epoch,
        target=target.name,
        event_count=reading.event_count,
        checksum=reading.checksum,
        damage=reading.damage,
    )
    return bool(is_whole)
