"""A copy of a log epoch, as the database has it recorded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.archive.targets import Target
from penstock.records import LogEpoch

#: (partition, log epoch): this pair names a log epoch within its topic.
EpochKey = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Copy:
    """One recorded, verified copy of one log epoch.

    In layout 1, ``location`` is the URI of a folder of its own, and ``first_row`` is 0.  In layout
    2 it is the path of a file, relative to the table's folder, and the log epoch begins at row
    ``first_row`` of that file, counted from 0.
    """

    target: str
    known_as: str
    partition: int
    log_epoch: int
    first_sequence: int
    last_sequence: int
    event_count: int
    checksum: str
    layout: int
    location: str
    first_row: int = 0

    @property
    def key(self) -> EpochKey:
        """(partition, log epoch)."""
        return self.partition, self.log_epoch


def epoch_folder(target: Target, known_as: str, key: EpochKey) -> Path:
    """The folder of a log epoch in layout 1."""
    partition, log_epoch = key
    return target.table_path(known_as) / f"partition={partition}" / f"log_epoch={log_epoch}"


def key_of(epoch: LogEpoch) -> EpochKey:
    """(partition, log epoch)."""
    return epoch.partition, epoch.log_epoch
