"""Foreign files: what another engine has written into a table, by Delta's OPTIMIZE for example.

They hold the same rows, and do not say which log epochs these are.  The files that they stand for
are no longer named by the Delta log, so the next VACUUM removes them, whatever the manifest says.
So a foreign file is read by its columns and compared with the seals.  When all of it is what was
sealed, a file of ours takes its place in one commit, and the manifest moves there.

A foreign file that is damaged is taken out of the table and its copies are forgotten, when they
can be made again; see :func:`_set_aside`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ops.archive import manifest
from ops.archive.commits import WrittenFile, discard, replace_files, take_out
from ops.archive.foreign_folders import adopt_folders
from ops.archive.foreign_rows import (
    ForeignRows,
    epochs_of,
    is_foreign,
    read_foreign,
    require_others,
)
from ops.archive.moving import move, require_whole
from ops.archive.writer import RowWriter, new_path, written_file
from ops.seal import copies_of, forget_copy, log_epochs
from penstock.archive.contents import EpochRows
from penstock.archive.copies import Copy, EpochKey, key_of
from penstock.archive.format import DAYS, PARTITION_COLUMNS, TABLE_SCHEMA
from penstock.archive.table import ArchiveTable, DayFile
from penstock.archive.targets import Target
from penstock.database import connect
from penstock.errors import CopyDamaged
from penstock.records import LogEpoch
from penstock.topics.names import describe_topic

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _ForeignGroup:
    """Foreign files of a day that have log epochs in common, and these.

    ``damage`` says why one of them cannot be read.
    """

    files: tuple[DayFile, ...]
    keys: frozenset[EpochKey]
    damage: CopyDamaged | None = None


@dataclass(frozen=True, slots=True)
class _ForeignRun:
    """What a look at a table for foreign files works with."""

    connection: Any
    topic: str
    table: ArchiveTable
    seals: dict[EpochKey, LogEpoch]


def adopt(url: str, topic: str, target: Target) -> list[str]:
    """Put files of ours in the place of foreign ones; returns those that it has replaced.

    CopyDamaged when a foreign file holds anything but what was sealed: then it stays as it is.
    """
    with connect(url, application_name="penstock archive") as connection:
        table = ArchiveTable(target, describe_topic(connection, topic).known_as)
        if not any(is_foreign(path) for path in table.all_paths()):
            return []
        seals = {key_of(each): each for each in log_epochs(connection, topic)}
        run = _ForeignRun(connection, topic, table, seals)
        replaced = adopt_folders(connection, topic, table, seals)
        for group in _groups(run):
            if group.damage is not None:
                _set_aside(run, group, group.damage)
                continue
            try:
                found = _by_columns(run, group)
            except CopyDamaged as error:
                _set_aside(run, group, error)
                continue
            if _replace(run, group.files, found):
                replaced += [each.path for each in group.files]
    return replaced


def _groups(run: _ForeignRun) -> Iterator[_ForeignGroup]:
    """Foreign files, those of a day together that have a log epoch in common."""
    open_groups: list[_ForeignGroup] = []
    for file in run.table.day_files():
        if not is_foreign(file.path):
            continue
        group, apart = _group(run, file), []
        for other in open_groups:
            if other.keys & group.keys and other.files[0].sealed_date == file.sealed_date:
                group = _ForeignGroup(
                    (*other.files, *group.files),
                    other.keys | group.keys,
                    other.damage or group.damage,
                )
            else:
                apart.append(other)
        open_groups = [*apart, group]
    yield from open_groups


def _group(run: _ForeignRun, file: DayFile) -> _ForeignGroup:
    try:
        return _ForeignGroup((file,), frozenset(keys_in(run.table, file.path)))
    except CopyDamaged as error:
        return _ForeignGroup((file,), frozenset(_lost_with(run, file)), error)


def keys_in(table: ArchiveTable, path: str) -> set[EpochKey]:
    """The log epochs of which a foreign file of layout 2 has rows; CopyDamaged."""
    rows = read_foreign(table, DAYS, path, PARTITION_COLUMNS).group_by(list(PARTITION_COLUMNS))
    return {(row["partition"], row["log_epoch"]) for row in rows.aggregate([]).to_pylist()}


def _lost_with(run: _ForeignRun, file: DayFile) -> Iterator[EpochKey]:
    """The log epochs that a file can hold which cannot be read: those that no other file has."""
    live = run.table.paths(DAYS)
    for copy in copies_of(run.connection, run.topic):
        key = copy.partition, copy.log_epoch
        is_here = copy.target == run.table.target.name and copy.layout == DAYS
        if is_here and copy.location not in live and file.may_hold(key):
            yield key


def _by_columns(run: _ForeignRun, group: _ForeignGroup) -> list[ForeignRows]:
    """The log epochs of foreign files; CopyDamaged unless each is what was sealed."""
    read = [read_foreign(run.table, DAYS, each.path, TABLE_SCHEMA.names) for each in group.files]
    whole = pa.concat_tables(read)
    whole = whole.sort_by([(name, "ascending") for name in (*PARTITION_COLUMNS, "sequence")])
    return epochs_of(run.table, group.files[0].path, _slices(whole), run.seals)


def _slices(whole: pa.Table) -> Iterable[tuple[EpochKey, pa.Table]]:
    """The rows of each log epoch, of rows in order."""
    counts = whole.group_by(list(PARTITION_COLUMNS), use_threads=False).aggregate(
        [("sequence", "count")]
    )
    first = 0
    for row in counts.to_pylist():
        rows = whole.slice(first, row["sequence_count"])
        first += rows.num_rows
        yield (int(row["partition"]), int(row["log_epoch"])), rows


def _set_aside(run: _ForeignRun, group: _ForeignGroup, error: CopyDamaged) -> None:
    """Take damaged files out of the table, and forget their copies; raises what cannot be undone.

    The files stay where they lie until they are old.  Rows that are not of the log are no damage:
    another program has put them there.
    """
    require_others(run.seals, group.keys, run.table.target.name, error)
    paths = [each.path for each in group.files]
    if take_out(run.table, group.files[0].sealed_date, paths):
        log.warning("%s; its copies are forgotten, and are made again", error.message)
        for key in sorted(group.keys):
            forget_copy(run.connection, run.topic, key, run.table.target.name, error.message)


def _replace(run: _ForeignRun, files: Sequence[DayFile], found: Sequence[ForeignRows]) -> bool:
    """Write, read back, replace in one commit, and only then move the manifest."""
    table = run.table
    file, rows = _write(table, files[0], found)
    copies = [_copy(table, each, file, placed) for each, placed in zip(found, rows, strict=True)]
    try:
        require_whole(table, file.path, rows, copies)
        day = files[0].sealed_date
        is_made = replace_files(table, day, [each.path for each in files], file, rows)
    except BaseException:
        discard(table.target, table.known_as, file)
        raise
    if not is_made:
        discard(table.target, table.known_as, file)
        return False
    recorded = manifest.recorded(run.connection, table.target.name, [each.epoch for each in found])
    moved = [
        (placed, recorded[placed.key])
        for placed in rows
        if placed.key in recorded and recorded[placed.key].layout == DAYS
    ]
    places, old = [each for each, _ in moved], [copy for _, copy in moved]
    move(run.connection, run.topic, file.path, places, old)
    return True


def _write(
    table: ArchiveTable, beside: DayFile, found: Sequence[ForeignRows]
) -> tuple[WrittenFile, list[EpochRows]]:
    relative = new_path(beside.sealed_date.isoformat())
    rows: list[EpochRows] = []
    first_row = 0
    with (
        table.target.store.sink(f"{table.name(DAYS)}/{relative}") as sink,
        RowWriter(sink) as writer,
    ):
        for each in found:
            for batch in each.rows.to_batches():
                writer.add(batch)
            rows.append(each.placed(first_row))
            first_row += each.epoch.event_count
        writer.end(rows)
    return written_file(table.target, table.known_as, relative, writer.spans), rows


def _copy(table: ArchiveTable, each: ForeignRows, file: WrittenFile, placed: EpochRows) -> Copy:
    seal = each.epoch
    return Copy(
        table.target.name, table.known_as, *key_of(seal), seal.first_sequence, seal.last_sequence,
        seal.event_count, seal.checksum, DAYS, file.path, placed.first_row,
    )  # fmt: skip
