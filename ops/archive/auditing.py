"""Audit: read recorded copies back, and forget those that are not what was sealed.

A file that other bytes of the same number have got is found by nothing else.  What is forgotten
backfill makes again.
"""

from __future__ import annotations

import datetime as dt
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ops.archive.copy_readings import CopyReading, Reader
from ops.archive.read_back import plain_reader
from ops.seal import clear_suspicion, forget_copy, log_epochs, suspected_copies
from penstock.archive.copies import EpochKey, key_of
from penstock.archive.targets import Target
from penstock.database import connect
from penstock.records import LogEpoch

#: Copies that are read before what is wrong with them is recorded.
_AT_ONCE = 128
_HOUR = 3_600


@dataclass(frozen=True, slots=True)
class ForgottenCopy:
    """A recorded copy that turned out not to be there, or not to be whole, and why."""

    partition: int
    log_epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Share:
    """One of so many parts of all copies: run after run, each copy has its turn once."""

    part: int = 0
    parts: int = 1

    @classmethod
    def of_day(cls, days: int, now: dt.datetime | None = None) -> Share:
        """Today's part, of as many as there are days in a round."""
        return cls((now or dt.datetime.now(dt.UTC)).toordinal() % days, days)

    @classmethod
    def of_hour(cls, days: int, now: dt.datetime | None = None) -> Share:
        """This hour's part of a round of so many days."""
        hours = int((now or dt.datetime.now(dt.UTC)).timestamp()) // _HOUR
        return cls(hours % (24 * days), 24 * days)

    def has(self, epoch: LogEpoch) -> bool:
        """Whether it is this one's turn; the same for each run."""
        name = f"{epoch.known_as}/{epoch.partition}/{epoch.log_epoch}"
        return zlib.crc32(name.encode()) % self.parts == self.part


@dataclass(frozen=True, slots=True)
class Audited:
    """What an audit has read of a topic on a target, and what it has forgotten."""

    copies: int
    events: int
    forgotten: tuple[ForgottenCopy, ...]


def audit_copies(
    read: Reader, url: str, topic: str, target: Target, share: Share | None = None
) -> Audited:
    """Read every recorded copy of a topic on a target back, or a share of them.

    Those that are not what was sealed are forgotten.  On a target that is not there nothing is:
    TargetUnavailable.
    """
    turn = share or Share()
    with connect(url, application_name="penstock audit") as connection:
        recorded = _recorded(connection, topic, target)
    return _audit(read, url, topic, target, [each for each in recorded if turn.has(each)])


def audit_suspects(url: str, topic: str, target: Target) -> list[ForgottenCopy]:
    """Read the copies back that readers have found damaged; without Spark."""
    with connect(url, application_name="penstock audit") as connection:
        suspected = _suspected(connection, topic, target)
        if not suspected:
            return []
        recorded = _recorded(connection, topic, target)
    chosen = [each for each in recorded if key_of(each) in suspected]
    return list(_audit(plain_reader(url), url, topic, target, chosen).forgotten)


def _suspected(connection: Any, topic: str, target: Target) -> set[EpochKey]:
    found = suspected_copies(connection, topic)
    return {each.key for each in found if each.target == target.name}


def _recorded(connection: Any, topic: str, target: Target) -> list[LogEpoch]:
    return [each for each in log_epochs(connection, topic) if target.name in each.targets]


def _audit(
    read: Reader, url: str, topic: str, target: Target, epochs: Sequence[LogEpoch]
) -> Audited:
    copies = events = 0
    forgotten: list[ForgottenCopy] = []
    for start in range(0, len(epochs), _AT_ONCE):
        readings = read(target, epochs[start : start + _AT_ONCE])
        copies += len(readings)
        events += sum(each.event_count for each in readings)
        with connect(url, application_name="penstock audit") as connection:
            forgotten += _recognised(connection, topic, target, readings)
    return Audited(copies, events, tuple(forgotten))


def _recognised(
    connection: Any, topic: str, target: Target, readings: Sequence[CopyReading]
) -> list[ForgottenCopy]:
    """Forget what is damaged; what was suspected and is whole is suspected no longer."""
    suspected = _suspected(connection, topic, target)
    found = []
    for each in readings:
        if each.damage:
            forget_copy(connection, topic, each.key, target.name, each.damage)
            found.append(ForgottenCopy(*each.key, each.damage))
        elif each.key in suspected:
            clear_suspicion(connection, topic, each.key, target.name)
    return found
