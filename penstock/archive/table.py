"""The archive of a topic on a target: its Delta tables, read through delta-rs, no JAR.

There is one table for each layout that was ever written (see :mod:`penstock.archive.format`).  A
table has the name that its topic is known as, which no other topic ever gets.

A log epoch is in the archive when the Delta log says so.  Files that no commit names, which a
killed run leaves behind, are not part of it, whatever lies in the folder.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from penstock.archive.contents import EpochRows, read_contents
from penstock.archive.copies import EpochKey
from penstock.archive.format import DAY_COLUMN, DAYS, FOLDERS
from penstock.archive.targets import Target
from penstock.errors import ConfigurationError, CopyDamaged

#: A place of a partition, (history, sequence), as the number of a Delta app transaction.
_SEQUENCE_BITS = 44


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A file that a Delta log names, and what it holds of one log epoch."""

    path: str
    size: int
    event_count: int
    last_sequence: int
    history: int
    layout: int = FOLDERS
    first_row: int = 0
    #: Whether it holds other log epochs too.
    shared: bool = False


@dataclass(frozen=True, slots=True)
class DayFile:
    """A file of layout 2, as a whole."""

    path: str
    size: int
    event_count: int
    sealed_date: dt.date
    #: The statistics of its log epochs' columns; None where another program has written none.
    lowest: EpochKey | None = None
    highest: EpochKey | None = None

    def may_hold(self, key: EpochKey) -> bool:
        """Whether it can hold a log epoch, by its statistics."""
        if self.lowest is None or self.highest is None:
            return True
        return all(
            low <= each <= high
            for low, each, high in zip(self.lowest, key, self.highest, strict=True)
        )


#: What a file of layout 2 holds, by its path.
ToldBy = Callable[[str], Sequence[EpochRows]]

#: The files of each log epoch.
Committed = dict[EpochKey, list[ArchiveFile]]


class ArchiveTable:
    """What a topic's archive on a target holds; it may hold nothing, and then has no table yet."""

    def __init__(self, target: Target, known_as: str, told_by: ToldBy | None = None) -> None:
        """Open it; ConfigurationError when the folder is some other topic's archive.

        ``told_by`` says what a file of layout 2 holds that does not say it itself any more.
        """
        self.target = target
        self.known_as = known_as
        self._told_by = told_by
        self._contents: dict[str, tuple[EpochRows, ...]] = {}
        self._deltas = {layout: self._open(layout) for layout in (FOLDERS, DAYS)}

    def _open(self, layout: int) -> DeltaTable | None:
        if layout == FOLDERS and not self.target.is_local:
            return None  # nothing was ever written so
        store = self.target.store
        path = store.uri(self.name(layout))
        with store.told():
            if not DeltaTable.is_deltatable(path, storage_options=store.options):
                return None
            table = DeltaTable(path, storage_options=store.options)
        if table.metadata().name != self.known_as:
            raise ConfigurationError(
                f"{path} holds the archive of {table.metadata().name!r}, not of {self.known_as!r}",
                hint="give every installation its own archive target",
            )
        return table

    def delta(self, layout: int) -> DeltaTable | None:
        """The Delta table of a layout, when there is one."""
        return self._deltas[layout]

    def deltas(self) -> list[DeltaTable]:
        """The Delta tables that there are."""
        return [each for each in self._deltas.values() if each is not None]

    def folder(self, layout: int) -> Path:
        """Where the table of a layout lies in a local target."""
        return self.target.table_path(self.known_as, layout)

    def name(self, layout: int) -> str:
        """The folder of the table of a layout, relative to the target."""
        return self.target.table_name(self.known_as, layout)

    def file(self, entry: ArchiveFile) -> str:
        """Where a file of the archive lies, relative to the target."""
        return f"{self.name(entry.layout)}/{entry.path}"

    def refresh(self) -> None:
        """See what was committed meanwhile."""
        for layout, delta in self._deltas.items():
            if delta is None:
                self._deltas[layout] = self._open(layout)
            else:
                with self.target.store.told():
                    delta.update_incremental()

    def learn(self, path: str, contents: Sequence[EpochRows]) -> None:
        """Know what a file of layout 2 holds without reading it: it may be damaged, or gone."""
        self._contents[path] = tuple(contents)

    def contents(self, path: str) -> tuple[EpochRows, ...]:
        """What a file of layout 2 holds; CopyDamaged when nobody can say."""
        if path not in self._contents:
            try:
                self._contents[path] = read_contents(
                    self.target.store.source(f"{self.name(DAYS)}/{path}")
                )
            except (OSError, ValueError, TypeError, pa.ArrowException) as error:
                told = tuple(self._told_by(path)) if self._told_by else ()
                if told:
                    self._contents[path] = told
                    return told
                raise CopyDamaged(
                    f"the file {path} of the archive of {self.known_as} on {self.target.name} "
                    f"cannot be read, and so nobody knows which log epochs it holds: {error}",
                    hint="bring the file back, or archive to a new target",
                ) from error
        return self._contents[path]

    def committed(self, wanted: Collection[EpochKey] | None = None) -> Committed:
        """The files of every log epoch that the archive holds, or of the wanted ones alone."""
        found: Committed = {}
        chosen = None if wanted is None else frozenset(wanted)
        for key, entry in (*self._in_folders(chosen), *self._in_days(chosen)):
            found.setdefault(key, []).append(entry)
        return found

    def committed_folders(self) -> Committed:
        """The same of layout 1 alone, for which no file is opened."""
        found: Committed = {}
        for key, entry in self._in_folders(None):
            found.setdefault(key, []).append(entry)
        return found

    def _in_folders(
        self, wanted: frozenset[EpochKey] | None
    ) -> Iterable[tuple[EpochKey, ArchiveFile]]:
        actions = self._actions(FOLDERS)
        if actions is None:
            return
        if wanted is not None:
            place = "partition.partition", "partition.log_epoch"
            actions = _only(actions, wanted, place)
        for row in _rows(actions):
            epoch = int(row["partition.partition"]), int(row["partition.log_epoch"])
            yield epoch, _single(row, FOLDERS)

    def _in_days(
        self, wanted: frozenset[EpochKey] | None
    ) -> Iterable[tuple[EpochKey, ArchiveFile]]:
        actions = self._actions(DAYS)
        if actions is None:
            return
        is_single = pc.and_(
            pc.equal(actions["min.partition"], actions["max.partition"]),
            pc.equal(actions["min.log_epoch"], actions["max.log_epoch"]),
        )
        singles, many = actions.filter(is_single), actions.filter(pc.invert(is_single))
        if wanted is not None:
            singles = _only(singles, wanted, ("min.partition", "min.log_epoch"))
        for row in _rows(singles):
            yield (int(row["min.partition"]), int(row["min.log_epoch"])), _single(row, DAYS)
        for row in _rows(many):
            if wanted is None or any(_may_hold(row, key) for key in wanted):
                path = str(row["path"])
                for rows in self.contents(path):
                    if wanted is None or rows.key in wanted:
                        yield rows.key, _shared(row, rows)

    def newest(self) -> dict[int, tuple[int, int]]:
        """The newest place of each partition that the archive holds: (history, last sequence)."""
        found: dict[int, tuple[int, int]] = {}
        actions = self._actions(FOLDERS)
        if actions is not None:
            history = ["max.history"] if "max.history" in actions.column_names else []
            places = actions.group_by(["partition.partition", *history])
            for row in places.aggregate([("max.sequence", "max")]).to_pylist():
                partition = int(row["partition.partition"])
                place = int(row.get("max.history") or 1), int(row["max.sequence_max"] or 0)
                found[partition] = max(found.get(partition, place), place)
        delta, actions = self._deltas[DAYS], self._actions(DAYS)
        if delta is not None and actions is not None:
            highest = pc.max(actions["max.partition"]).as_py()
            for partition in range(0 if highest is None else highest + 1):
                version = delta.transaction_version(app_id(self.known_as, partition, self.target))
                if version is not None:
                    place = version >> _SEQUENCE_BITS, version & ((1 << _SEQUENCE_BITS) - 1)
                    found[partition] = max(found.get(partition, place), place)
        return found

    def day_files(self) -> list[DayFile]:
        """The files of layout 2."""
        actions = self._actions(DAYS)
        if actions is None:
            return []
        return [
            DayFile(
                str(row["path"]),
                int(row["size_bytes"]),
                int(row["num_records"]),
                row[f"partition.{DAY_COLUMN}"],
                _end(row, "min"),
                _end(row, "max"),
            )
            for row in _rows(actions)
        ]

    def paths(self, layout: int) -> frozenset[str]:
        """The files that the Delta log of a layout names, relative to its table."""
        actions = self._actions(layout)
        return (
            frozenset()
            if actions is None
            else frozenset(str(row["path"]) for row in _rows(actions))
        )

    def all_paths(self) -> frozenset[str]:
        """The same of both layouts."""
        return self.paths(FOLDERS) | self.paths(DAYS)

    def _actions(self, layout: int) -> pa.Table | None:
        """The files that the Delta log names, with their statistics; None when there are none."""
        delta = self._deltas[layout]
        if delta is None:
            return None
        # `pa.table` because delta-rs returns an Arrow table of its own kind
        actions = pa.table(delta.get_add_actions(flatten=True))
        return actions if actions.num_rows else None


def app_id(known_as: str, partition: int, target: Target) -> str:
    """The Delta app transaction of a partition: of two commits with it at once one fails."""
    return f"{known_as}/{partition}@{target.name}"


def place_version(history: int, sequence: int) -> int:
    """The number of that transaction: it tells the newest place without a look at any file."""
    return (history << _SEQUENCE_BITS) | sequence


def _rows(actions: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = actions.to_pylist()
    return sorted(rows, key=lambda each: str(each["path"]))


def _single(row: dict[str, Any], layout: int) -> ArchiveFile:
    """A file that holds one log epoch."""
    return ArchiveFile(
        str(row["path"]),
        int(row["size_bytes"]),
        int(row["num_records"]),
        int(row["max.sequence"] or 0),
        int(row.get("max.history") or 1),
        layout,
    )


def _shared(row: dict[str, Any], rows: EpochRows) -> ArchiveFile:
    """What a file that holds several has of one."""
    return ArchiveFile(
        str(row["path"]),
        int(row["size_bytes"]),
        rows.event_count,
        rows.last_sequence,
        rows.history,
        DAYS,
        rows.first_row,
        shared=True,
    )


def _end(row: dict[str, Any], which: str) -> EpochKey | None:
    partition, log_epoch = row.get(f"{which}.partition"), row.get(f"{which}.log_epoch")
    return None if partition is None or log_epoch is None else (int(partition), int(log_epoch))


def _may_hold(row: dict[str, Any], key: EpochKey) -> bool:
    """Whether a file can hold a log epoch, by its statistics."""
    partition, log_epoch = key
    return bool(
        row["min.partition"] <= partition <= row["max.partition"]
        and row["min.log_epoch"] <= log_epoch <= row["max.log_epoch"]
    )


def _only(actions: pa.Table, wanted: Collection[EpochKey], columns: tuple[str, str]) -> pa.Table:
    """The rows of some log epochs; without it a commit would make objects of all there are."""
    shift = pa.scalar(1 << 32, pa.int64())
    keys = pc.add(
        pc.multiply(pc.cast(actions[columns[0]], pa.int64()), shift),
        pc.cast(actions[columns[1]], pa.int64()),
    )
    chosen = pa.array([(partition << 32) + epoch for partition, epoch in wanted], pa.int64())
    return actions.filter(pc.is_in(keys, value_set=chosen))
