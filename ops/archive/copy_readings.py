"""What was read back of a copy: the same for Spark's tasks, the guard and the archive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.archive.targets import Target
from penstock.records import LogEpoch


@dataclass(frozen=True, slots=True)
class CopyReading:
    """What the files of one log epoch hold.

    ``damage`` is empty when they hold exactly what was sealed.  ``other_log`` says that they are
    whole, but were written from another log than the one that the seal is of, ``unavailable`` that
    the target is not there where they were read.
    """

    partition: int
    log_epoch: int
    event_count: int
    checksum: str
    damage: str
    other_log: bool = False
    unavailable: bool = False

    @property
    def key(self) -> tuple[int, int]:
        """(partition, log epoch)."""
        return self.partition, self.log_epoch


#: Reads copies of log epochs of one topic on a target.
Reader = Callable[[Target, Sequence[LogEpoch]], Sequence[CopyReading]]
