"""The archive of a topic on a target: a Delta table, read through delta-rs, no JAR.

A table has the name that its topic is known as, which no other topic ever gets.

A log epoch is in the archive when the Delta log says so.  Files that no commit names, which a
killed run leaves behind, are not part of it, whatever lies in the folder.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from penstock.archive.copies import EpochKey
from penstock.archive.targets import Target
from penstock.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A file that the Delta log names."""

    path: str
    size: int
    event_count: int
    last_sequence: int
    history: int


#: The files of each log epoch.
Committed = Mapping[EpochKey, list[ArchiveFile]]


class ArchiveTable:
    """What a topic's archive on a target holds; it may hold nothing, and then has no table yet."""

    def __init__(self, target: Target, known_as: str) -> None:
        """Open it; ConfigurationError when the folder is some other topic's archive."""
        self.target = target
        self.known_as = known_as
        self.path = target.table_path(known_as)
        self.delta = self._open()

    def _open(self) -> DeltaTable | None:
        if not DeltaTable.is_deltatable(str(self.path)):
            return None
        table = DeltaTable(str(self.path))
        if table.metadata().name != self.known_as:
            raise ConfigurationError(
                f"{self.path} holds the archive of {table.metadata().name!r}, "
                f"not of {self.known_as!r}",
                hint="give every installation its own archive target",
            )
        return table

    def refresh(self) -> None:
        """See what was committed meanwhile."""
        if self.delta is None:
            self.delta = self._open()
        else:
            self.delta.update_incremental()

    def committed(self, wanted: Collection[EpochKey] | None = None) -> Committed:
        """The files of every log epoch that the table holds, or of the wanted ones alone."""
        found: dict[EpochKey, list[ArchiveFile]] = {}
        if self.delta is None:
            return found
        # `pa.table` because delta-rs returns an Arrow table of its own kind
        actions = pa.table(self.delta.get_add_actions(flatten=True))
        if wanted is not None:
            actions = _only(actions, wanted)
        rows: list[dict[str, Any]] = actions.to_pylist()
        for row in sorted(rows, key=lambda each: str(each["path"])):
            epoch = int(row["partition.partition"]), int(row["partition.log_epoch"])
            entry = ArchiveFile(
                str(row["path"]),
                int(row["size_bytes"]),
                int(row["num_records"]),
                int(row["max.sequence"] or 0),
                int(row.get("max.history") or 1),
            )
            found.setdefault(epoch, []).append(entry)
        return found

    def newest(self) -> dict[int, tuple[int, int]]:
        """The newest place of each partition that the table holds: (history, last sequence)."""
        if self.delta is None:
            return {}
        actions = pa.table(self.delta.get_add_actions(flatten=True))
        history = ["max.history"] if "max.history" in actions.column_names else []
        places = actions.group_by(["partition.partition", *history])
        found: dict[int, tuple[int, int]] = {}
        for row in places.aggregate([("max.sequence", "max")]).to_pylist():
            partition = int(row["partition.partition"])
            place = int(row.get("max.history") or 1), int(row["max.sequence_max"] or 0)
            found[partition] = max(found.get(partition, place), place)
        return found

    def file(self, entry: ArchiveFile) -> Path:
        """Where a file of the table lies."""
        return self.path / entry.path


def _only(actions: pa.Table, wanted: Collection[EpochKey]) -> pa.Table:
    """The rows of some log epochs; without it a commit would make objects of all there are."""
    shift = pa.scalar(1 << 32, pa.int64())
    keys = pc.add(
        pc.multiply(pc.cast(actions["partition.partition"], pa.int64()), shift),
        pc.cast(actions["partition.log_epoch"], pa.int64()),
    )
    chosen = pa.array([(partition << 32) + epoch for partition, epoch in wanted], pa.int64())
    return actions.filter(pc.is_in(keys, value_set=chosen))
