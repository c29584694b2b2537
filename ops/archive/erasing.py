"""Erasing in the archive: files that hold erased events are replaced, and removed at once.

The order is what makes it safe: write the new file, read it back, put it in the place of the old
one in one Delta commit, record it in one transaction of the database, and only then delete the old
file.  A run can be killed at any point; the next one goes on from what it finds.  A log epoch that
the database has dropped gets its new checksum in the transaction that records its first new copy,
so there is always a verified copy for readers.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ops.archive import manifest
from ops.archive.commits import (
    WrittenFile,
    create_table,
    discard,
    remove_folders,
    replace_files,
    unnamed_files,
)
from ops.archive.foreign import keys_in
from ops.archive.foreign_rows import is_foreign
from ops.archive.moving import require_whole
from ops.archive.tombstones import Tombstones, old_checksums, tombstones_of, with_tombstones
from ops.archive.writer import RowWriter, new_path, written_file
from ops.seal import log_epochs
from penstock.archive.checksum import EpochChecksum
from penstock.archive.contents import EpochRows
from penstock.archive.copies import Copy, EpochKey, key_of
from penstock.archive.copy_reader import read_copy, read_rows
from penstock.archive.format import CHECKSUM_KEY, DAYS, FOLDERS, with_epoch
from penstock.archive.markers import require_target
from penstock.archive.table import ArchiveFile, ArchiveTable
from penstock.archive.targets import Target
from penstock.database import call
from penstock.database.transactions import transaction_on
from penstock.errors import CopyDamaged, EpochError, error_text
from penstock.records import LogEpoch

_ATTEMPTS = 20
_FOLDER = re.compile(r"partition=(\d+)/log_epoch=(\d+)/")


@dataclass(frozen=True, slots=True)
class Pending:
    """What is to be erased of a dropped log epoch, and its checksum before and after."""

    erasure: str
    sequences: tuple[int, ...]
    old_checksum: str
    checksum: str


@dataclass(slots=True)
class Erasing:
    """What a run knows: the log epochs of the topic, and what was erased of them.

    ``pending`` are log epochs whose new checksum the database does not have yet.
    """

    connection: Any
    url: str
    topic: str
    epochs: dict[EpochKey, LogEpoch]
    tombstones: dict[EpochKey, Tombstones]
    trusted: dict[EpochKey, set[str]]
    pending: dict[EpochKey, Pending] = field(default_factory=dict)

    def expected(self, key: EpochKey) -> str:
        """The checksum that a copy has to have in the end."""
        pending = self.pending.get(key)
        return self.epochs[key].checksum if pending is None else pending.checksum

    def may_have(self, key: EpochKey) -> set[str]:
        """The checksums that a copy may have before."""
        known = {self.epochs[key].checksum, self.expected(key)}
        return known | (self.trusted.get(key, set()) if key in self.tombstones else set())


@dataclass(frozen=True, slots=True)
class RewrittenFile:
    """A file that took the place of one with erased events."""

    target: str
    file: str
    replaced: tuple[str, ...]
    log_epochs: int
    events: int


@dataclass(frozen=True, slots=True)
class _Unit:
    """What has to be written together: a file with all that is in it."""

    sealed_date: dt.date
    #: Where each log epoch is read: layout, path, and its rows there.
    parts: tuple[tuple[int, str, EpochRows], ...]

    def paths(self, layout: int) -> list[str]:
        return sorted({path for place, path, _ in self.parts if place == layout})


def begin(
    connection: Any, url: str, topic: str, only: Collection[EpochKey] | None = None
) -> Erasing:
    """What the database has recorded of all erasures of a topic, or of some log epochs of it."""
    trusted = old_checksums(connection, topic)
    if only is not None:
        trusted = {key: trusted[key] for key in trusted.keys() & set(only)}
    epochs = {key_of(each): each for each in log_epochs(connection, topic)} if trusted else {}
    found = {key: tombstones_of(connection, epochs[key]) for key in trusted}
    return Erasing(connection, url, topic, epochs, dict(found), trusted)


def checksum_after(target: Target, copy: Copy, tombstones: Tombstones) -> str:
    """The checksum that a whole copy has once these events are erased; CopyDamaged."""
    before, after = EpochChecksum(), EpochChecksum()
    for batch in read_copy(target, copy, copy.first_sequence, copy.last_sequence):
        before.add(batch)
        after.add(with_tombstones(batch, tombstones))
    if before.hexdigest() != copy.checksum:
        raise CopyDamaged(
            f"log epoch {copy.log_epoch} of {copy.known_as}/{copy.partition} on {copy.target} is "
            "not what was sealed",
            hint="penstock backfill makes it again; then run the erasure again",
        )
    return after.hexdigest()


def rewrite(run: Erasing, target: Target) -> list[RewrittenFile]:
    """Replace every file of a target that holds erased events.  Removes the old ones at once.

    What is there already is verified and recorded, so a run that was killed is gone on with.
    """
    if not run.tombstones:
        return []
    require_target(run.url, target, write=True)
    known_as = next(iter(run.epochs.values())).known_as
    told_by = partial(manifest.contents, run.url, run.topic, target)
    table = create_table(target, known_as, told_by)
    done = []
    for _ in range(_ATTEMPTS):
        units = [unit for unit in _units(run, table) if not _is_new(run, unit)]
        found = [_replace(run, table, unit) for unit in units]
        done += [each for each in found if each is not None]
        table.refresh()
        if None not in found:
            break
    else:
        raise EpochError(
            f"files of {run.topic} on {target.name} were replaced by others while they were erased",
            hint="run it again",
        )
    for unit in _units(run, table):
        _record(run, table, unit)
    _remove_old(run, table)
    return done


def _units(run: Erasing, table: ArchiveTable) -> Iterator[_Unit]:
    """Every file of the table with a log epoch of which something was erased."""
    seen = set()
    for key, entries in sorted(table.committed(run.tombstones.keys()).items()):
        if key not in run.epochs:
            continue
        parts: list[tuple[int, str, EpochRows]] = []
        for entry in entries:
            if entry.layout == FOLDERS:
                parts.append((FOLDERS, entry.path, _rows_of(run.epochs[key], entry)))
            elif not entry.shared and any(each.layout == FOLDERS for each in entries):
                continue  # a run that was killed has written it: it is replaced with the folder
            elif entry.path not in seen:
                seen.add(entry.path)
                shared = [(DAYS, entry.path, rows) for rows in table.contents(entry.path)]
                day = manifest.day_of(entry.path)
                assert day is not None
                yield _Unit(day, tuple(shared))
        if parts:
            yield _Unit(_day_of(run.epochs[key]), tuple(parts[:1]))  # of several each is whole


def _rows_of(epoch: LogEpoch, entry: ArchiveFile) -> EpochRows:
    return EpochRows(*key_of(epoch), epoch.first_sequence, entry.event_count, "", 0, entry.history)


def _day_of(epoch: LogEpoch) -> dt.date:
    assert epoch.sealed_at is not None
    return epoch.sealed_at.astimezone(dt.UTC).date()


def _is_new(run: Erasing, unit: _Unit) -> bool:
    """Whether a file says that it has what it has to have in the end."""
    return all(
        rows.key in run.epochs and rows.checksum == run.expected(rows.key)
        for _, _, rows in unit.parts
        if rows.key in run.tombstones
    )


def _replace(run: Erasing, table: ArchiveTable, unit: _Unit) -> RewrittenFile | None:
    """Put a file without the erased events in its place; None: somebody was faster."""
    unknown = [rows.key for _, _, rows in unit.parts if rows.key not in run.epochs]
    if unknown:
        raise EpochError(
            f"a file of {table.known_as} on {table.target.name} also holds log epochs that the "
            f"database does not have: {unknown[:10]}",
            hint="give every installation its own archive target",
        )
    file, rows = _write(run, table, unit)
    try:
        require_whole(table, file.path, rows, [_copy(run, table, file.path, each) for each in rows])
        entries = table.committed([each.key for each in rows])
        folders = _of(entries, FOLDERS) if unit.paths(FOLDERS) else []
        replaced = _of(entries, DAYS) if folders else unit.paths(DAYS)
        is_made = replace_files(table, unit.sealed_date, replaced, file, rows, data_change=True)
    except BaseException:
        discard(table.target, table.known_as, file)
        raise
    if not is_made:
        discard(table.target, table.known_as, file)
        return None
    if folders:
        remove_folders(table, [(rows[0].key, path) for path in folders])
    events = sum(len(run.tombstones.get(each.key, ())) for each in rows)
    return RewrittenFile(
        table.target.name, file.path, tuple(sorted({*replaced, *folders})), len(rows), events
    )


def _of(entries: Mapping[EpochKey, Sequence[ArchiveFile]], layout: int) -> list[str]:
    """The files of log epochs in a layout, each once."""
    return sorted(
        {each.path for found in entries.values() for each in found if each.layout == layout}
    )


def _write(run: Erasing, table: ArchiveTable, unit: _Unit) -> tuple[WrittenFile, list[EpochRows]]:
    """Write the file again; CopyDamaged unless all in it is what it has to be, before and after."""
    relative = new_path(unit.sealed_date.isoformat())
    written: list[EpochRows] = []
    first_row = 0
    store = table.target.store
    with store.sink(f"{table.name(DAYS)}/{relative}") as sink, RowWriter(sink) as writer:
        for layout, path, rows in unit.parts:
            before, after = EpochChecksum(), EpochChecksum()
            for batch in _batches(table, layout, path, rows):
                before.add(batch)
                erased = with_tombstones(batch, run.tombstones.get(rows.key, {}))
                after.add(erased)
                writer.add(erased)
            _require(run, table, rows.key, before.hexdigest(), after.hexdigest())
            written.append(
                EpochRows(
                    *rows.key, after.first_sequence, after.event_count, after.hexdigest(),
                    first_row, rows.history,
                )
            )  # fmt: skip
            first_row += after.event_count
        writer.end(written)
    return written_file(table.target, table.known_as, relative, writer.spans), written


def _batches(
    table: ArchiveTable, layout: int, path: str, rows: EpochRows
) -> Iterator[pa.RecordBatch]:
    found = read_rows(
        table.target.store, f"{table.name(layout)}/{path}", rows.first_row, rows.event_count
    )
    try:
        for batch in found:
            yield with_epoch(batch, *rows.key)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _damaged(table, rows.key, error_text(error)) from error


def _require(run: Erasing, table: ArchiveTable, key: EpochKey, before: str, after: str) -> None:
    if before not in run.may_have(key) or after != run.expected(key):
        raise _damaged(table, key, f"it has the checksum {before}")


def _damaged(table: ArchiveTable, key: EpochKey, what: str) -> CopyDamaged:
    return CopyDamaged(
        f"log epoch {key[1]} of {table.known_as}/{key[0]} on {table.target.name} is not what was "
        f"sealed: {what}",
        hint="penstock backfill makes it again; then run the erasure again",
    )


def _copy(run: Erasing, table: ArchiveTable, path: str, rows: EpochRows) -> Copy:
    return Copy(
        table.target.name, table.known_as, *rows.key, rows.first_sequence, rows.last_sequence,
        rows.event_count, run.expected(rows.key), DAYS, path, rows.first_row,
    )  # fmt: skip


def _record(run: Erasing, table: ArchiveTable, unit: _Unit) -> None:
    """Tell the database where the copies are now, and the new checksums with the first ones."""
    path = unit.paths(DAYS)[0]
    rows = [each for _, _, each in unit.parts]
    copies = [_copy(run, table, path, each) for each in rows]
    epochs = [run.epochs[each.key] for each in rows]
    recorded = manifest.recorded(run.connection, table.target.name, epochs)
    if all(recorded.get(copy.key) == copy for copy in copies):
        return
    require_whole(table, path, rows, copies)
    pending = {copy.key: run.pending[copy.key] for copy in copies if copy.key in run.pending}
    with transaction_on(run.connection):
        for key, each in pending.items():
            erase_events(
                run.connection, each.erasure, key[0], each.sequences,
                old_checksum=each.old_checksum, checksum=each.checksum,
            )  # fmt: skip
        for copy in copies:
            manifest.record(run.connection, run.topic, copy)
    fresh = {key_of(each): each for each in log_epochs(run.connection, run.topic)}
    run.epochs.update({key: fresh[key] for key in pending})
    for key, each in pending.items():
        run.trusted.setdefault(key, set()).add(each.old_checksum)
        del run.pending[key]


def erase_events(
    connection: Any,
    erasure: str,
    partition: int,
    sequences: Sequence[int],
    *,
    old_checksum: str | None = None,
    checksum: str | None = None,
) -> int:
    """Replace events of one log epoch in the database; see the SQL function."""
    ((events,),) = call(
        connection,
        "erase_events",
        erasure=erasure,
        partition=partition,
        sequences=list(sequences),
        old_checksum=old_checksum,
        checksum=checksum,
    )
    return int(events)


def _remove_old(run: Erasing, table: ArchiveTable) -> None:
    """Delete the files with erased events that no commit names: replaced ones, and leftovers.

    Whoever still wants to commit one finds that what it was to replace is gone, or is there.
    """
    for layout in (FOLDERS, DAYS):
        for path in unnamed_files(table, layout):
            if any(
                checksum in run.trusted.get(key, ()) and checksum != run.expected(key)
                for key, checksum in _written_as(table, layout, path)
            ):
                table.target.store.delete(f"{table.name(layout)}/{path}")
        # A foreign file does not say what it holds.  One that a commit has named and none does any
        # more has been replaced: nobody is about to commit it.
        for path in unnamed_files(table, layout, were_named=True):
            if is_foreign(path) and _may_hold_erased(run, table, layout, path):
                table.target.store.delete(f"{table.name(layout)}/{path}")


def _may_hold_erased(run: Erasing, table: ArchiveTable, layout: int, path: str) -> bool:
    """Whether a foreign file has a log epoch with erased events, or nobody can say."""
    folder = _FOLDER.match(path)
    try:
        keys = {(int(folder[1]), int(folder[2]))} if folder else keys_in(table, path)
    except CopyDamaged:
        return table.target.store.size(f"{table.name(layout)}/{path}") is not None
    return not keys.isdisjoint(run.trusted)


def _written_as(table: ArchiveTable, layout: int, path: str) -> list[tuple[EpochKey, str]]:
    """The log epochs that a file says it holds; none, when it is half of a file: tidy removes it.

    It is the file's own word: whoever wrote it has computed the checksums of what it holds.
    """
    try:
        if layout == DAYS:
            return [(rows.key, rows.checksum) for rows in table.contents(path)]
        metadata = pq.read_metadata(table.target.store.source(f"{table.name(layout)}/{path}"))
    except (CopyDamaged, OSError, pa.ArrowException):
        return []
    found = _FOLDER.match(path)
    checksum = (metadata.metadata or {}).get(CHECKSUM_KEY.encode(), b"").decode()
    return [((int(found[1]), int(found[2])), checksum)] if found else []
