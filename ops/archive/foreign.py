"""Foreign files: what another engine has written into a table, by Delta's OPTIMIZE for example.

They hold the same rows, and do not say which log epochs these are.  The files that they stand for
are no longer named by the Delta log, so the next VACUUM removes them, whatever the manifest says.
So a foreign file is read by its columns and compared with the seals.  When all of it is what was
sealed, a file of ours takes its place in one commit, and the manifest moves there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ops.archive import manifest
from ops.archive.commits import WrittenFile, discard, replace_files
from ops.archive.moving import move, require_whole
from ops.archive.writer import RowWriter, new_path, written_file
from ops.seal import log_epochs
from penstock.archive.checksum import EpochChecksum
from penstock.archive.contents import EpochRows
from penstock.archive.copies import Copy, EpochKey, key_of
from penstock.archive.format import DAYS, TABLE_SCHEMA
from penstock.archive.table import ArchiveTable, DayFile
from penstock.archive.targets import Target
from penstock.database import connect
from penstock.errors import CopyDamaged
from penstock.records import LogEpoch
from penstock.topics.names import describe_topic

#: How our own files are called, by :func:`ops.archive.writer.new_path`.
_OURS = re.compile(r"(.*/)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.parquet")


@dataclass(frozen=True, slots=True)
class _ForeignRows:
    """The rows of one log epoch in foreign files, in order."""

    epoch: LogEpoch
    rows: pa.Table
    history: int


def adopt(url: str, topic: str, target: Target) -> list[str]:
    """Put files of ours in the place of foreign ones; returns those that it has replaced.

    CopyDamaged when a foreign file holds anything but what was sealed: then it stays as it is.
    """
    with connect(url, application_name="penstock archive") as connection:
        table = ArchiveTable(target, describe_topic(connection, topic).known_as)
        groups = list(_groups(table))
        if not groups:
            return []
        seals = {key_of(each): each for each in log_epochs(connection, topic)}
        replaced = []
        for files in groups:
            found = _by_columns(table, files, seals)
            if _replace(connection, topic, table, files, found):
                replaced += [each.path for each in files]
    return replaced


def _groups(table: ArchiveTable) -> Iterator[list[DayFile]]:
    """Foreign files, those of a day together that have a log epoch in common."""
    open_groups: list[tuple[list[DayFile], set[EpochKey]]] = []
    for file in table.day_files():
        if _OURS.fullmatch(file.path):
            continue
        files, keys = [file], _keys(table, file)
        apart = []
        for others, theirs in open_groups:
            if theirs & keys and others[0].sealed_date == file.sealed_date:
                files, keys = [*others, *files], keys | theirs
            else:
                apart.append((others, theirs))
        open_groups = [*apart, (files, keys)]
    for files, _ in open_groups:
        yield files


def _keys(table: ArchiveTable, file: DayFile) -> set[EpochKey]:
    rows = _read(table, file, ["partition", "log_epoch"]).group_by(["partition", "log_epoch"])
    return {(row["partition"], row["log_epoch"]) for row in rows.aggregate([]).to_pylist()}


def _read(table: ArchiveTable, file: DayFile, columns: Sequence[str]) -> pa.Table:
    """Columns of a file, with the types that ours have: another engine may have its own."""
    try:
        found = pq.read_table(
            table.target.store.source(f"{table.name(DAYS)}/{file.path}"),
            columns=list(columns),
            partitioning=None,
        )
        return found.select(list(columns)).cast(
            pa.schema([TABLE_SCHEMA.field(name) for name in columns])
        )
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise _damaged(table, file, f"{type(error).__name__}: {error}") from error


def _by_columns(
    table: ArchiveTable, files: Sequence[DayFile], seals: dict[EpochKey, LogEpoch]
) -> list[_ForeignRows]:
    """The log epochs of foreign files; CopyDamaged unless each is what was sealed."""
    whole = pa.concat_tables([_read(table, each, TABLE_SCHEMA.names) for each in files])
    whole = whole.sort_by([(name, "ascending") for name in ("partition", "log_epoch", "sequence")])
    counts = whole.group_by(["partition", "log_epoch"], use_threads=False).aggregate(
        [("sequence", "count")]
    )
    found = []
    first = 0
    for row in counts.to_pylist():
        key = int(row["partition"]), int(row["log_epoch"])
        rows = whole.slice(first, row["sequence_count"])
        first += rows.num_rows
        seal = seals.get(key)
        if seal is None or not _is_sealed(rows, seal):
            raise _damaged(table, files[0], f"its rows of {key} are not what was sealed")
        found.append(_ForeignRows(seal, rows, int(pc.max(rows["history"]).as_py())))
    return found


def _is_sealed(rows: pa.Table, seal: LogEpoch) -> bool:
    seen = EpochChecksum()
    for batch in rows.to_batches():
        seen.add(batch)
    return (seen.event_count, seen.first_sequence, seen.last_sequence, seen.hexdigest()) == (
        seal.event_count,
        seal.first_sequence,
        seal.last_sequence,
        seal.checksum,
    )


def _replace(
    connection: Any,
    topic: str,
    table: ArchiveTable,
    files: Sequence[DayFile],
    found: Sequence[_ForeignRows],
) -> bool:
    """Write, read back, replace in one commit, and only then move the manifest."""
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
    recorded = manifest.recorded(connection, table.target.name, [each.epoch for each in found])
    moved = [
        (placed, recorded[placed.key])
        for placed in rows
        if placed.key in recorded and recorded[placed.key].layout == DAYS
    ]
    move(connection, topic, file.path, [each for each, _ in moved], [copy for _, copy in moved])
    return True


def _write(
    table: ArchiveTable, beside: DayFile, found: Sequence[_ForeignRows]
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
            seal = each.epoch
            rows.append(
                EpochRows(
                    *key_of(seal), seal.first_sequence, seal.event_count, seal.checksum, first_row,
                    each.history,
                )
            )  # fmt: skip
            first_row += seal.event_count
        writer.end(rows)
    return written_file(table.target, table.known_as, relative, writer.spans), rows


def _copy(table: ArchiveTable, rows: _ForeignRows, file: WrittenFile, placed: EpochRows) -> Copy:
    seal = rows.epoch
    return Copy(
        table.target.name, table.known_as, *key_of(seal), seal.first_sequence, seal.last_sequence,
        seal.event_count, seal.checksum, DAYS, file.path, placed.first_row,
    )  # fmt: skip


def _damaged(table: ArchiveTable, file: DayFile, what: str) -> CopyDamaged:
    return CopyDamaged(
        f"the file {file.path} of the archive of {table.known_as} on {table.target.name} was"
        f" written by another program, and is not a whole part of the archive: {what}",
        hint="undo what that program did (RESTORE to the version before), then run it again",
    )
