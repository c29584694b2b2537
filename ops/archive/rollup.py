"""Rollup: turn the many small files of a closed day into few large ones.

The archive writes a file for each log epoch.  Once a day is over, its files are read, and written
again as files of some 128 MB, sorted by partition, log epoch and sequence.  The order is what makes
it safe: write, read back and compare with the seals, replace the files in one Delta commit, and
only then move the manifest in one transaction.  A run can be killed at any point: what it has
written is left over, or the next run moves the manifest.

Who reads by the manifest of before still finds the small files:
:func:`ops.backfill.missing.tidy` removes them a week later.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ops.archive import manifest
from ops.archive.commits import WrittenFile, discard, replace_files
from ops.archive.foreign import adopt
from ops.archive.moving import move, require_whole
from ops.archive.sampling import is_whole
from ops.archive.writer import RowWriter, new_path, written_file
from ops.seal import copies_of, forget_copy
from penstock.archive.contents import EpochRows
from penstock.archive.copies import Copy
from penstock.archive.copy_reader import read_copy
from penstock.archive.format import DAYS
from penstock.archive.markers import check_marker, require_target
from penstock.archive.table import ArchiveTable, DayFile
from penstock.archive.targets import Target
from penstock.database import connect
from penstock.errors import CopyDamaged
from penstock.topics.names import describe_topic

#: What a file should have; one of at least half of it stays as it is.
FILE_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class RolledUp:
    """A file that a rollup has made out of several, or the manifest that it has moved."""

    sealed_date: dt.date
    file: str
    replaced_files: int
    log_epochs: int
    events: int
    size: int


@dataclass(frozen=True, slots=True)
class _Pack:
    """Small files of a day, and the log epochs in them, which become one file."""

    sealed_date: dt.date
    files: tuple[DayFile, ...]
    copies: tuple[Copy, ...]


def rollup(
    url: str,
    topic: str,
    target: Target,
    *,
    today: dt.date | None = None,
    days: Collection[dt.date] | None = None,
) -> list[RolledUp]:
    """Roll up the closed days of a topic on a target; days from ``today`` (UTC) on are open.

    ``days`` are those to look at, else all.

    Only files whose log epochs are all recorded as verified are touched.  What a killed run has
    left undone is done first.  Returns the files that it has made.
    """
    installation = require_target(url, target)
    adopt(url, topic, target)
    today = today or dt.datetime.now(dt.UTC).date()
    with connect(url, application_name="penstock rollup") as connection:
        table = ArchiveTable(target, describe_topic(connection, topic).known_as)
        done = []
        for day in _days(connection, topic, table, today):
            if days is not None and day not in days:
                continue
            check_marker(target, installation)
            try:
                done += _finish(connection, topic, table, day)
                for pack in _packs(connection, topic, table, day):
                    made = _roll(connection, topic, table, pack)
                    if made is not None:
                        done.append(made)
            except CopyDamaged:
                # Forgotten, they are made again by backfill, and the next rollup leaves them out.
                _forget_damaged(connection, topic, table, day)
                raise
    return done


def _forget_damaged(connection: Any, topic: str, table: ArchiveTable, day: dt.date) -> None:
    """Read the copies of a day, and forget those that are not what was sealed."""
    for copy in _verified(connection, topic, table, day):
        try:
            damage = "" if is_whole(table.target, copy) else "it is not what was sealed"
        except CopyDamaged as error:
            damage = error.message
        if damage:
            forget_copy(connection, topic, copy.key, table.target.name, damage)


def events_of_days(url: str, topic: str, target: Target, days: Collection[dt.date]) -> int:
    """How many events of some days of sealing are recorded as verified on a target."""
    with connect(url, application_name="penstock rollup") as connection:
        return sum(
            copy.event_count
            for day in days
            for copy, state in manifest.of_day(connection, topic, target.name, day)
            if state == "verified"
        )


def _days(connection: Any, topic: str, table: ArchiveTable, today: dt.date) -> list[dt.date]:
    """The closed days on which there may be something to do, the oldest first."""
    files = table.day_files()
    days = [each.sealed_date for each in files if _is_small(each)]
    several = {day for day in days if days.count(day) > 1}
    live = {each.path: each.sealed_date for each in files}
    stale = {
        day
        for copy in copies_of(connection, topic)
        if copy.target == table.target.name and copy.layout == DAYS and copy.location not in live
        for day in [manifest.day_of(copy.location)]
        if day is not None
    }
    return sorted(day for day in several | stale if day < today)


def _is_small(file: DayFile) -> bool:
    return file.size < FILE_BYTES // 2


def _finish(connection: Any, topic: str, table: ArchiveTable, day: dt.date) -> list[RolledUp]:
    """Move the manifest of copies whose file was replaced by a run that died before it did."""
    files = {each.path: each for each in table.day_files() if each.sealed_date == day}
    copies = {
        copy.key: copy
        for copy in _verified(connection, topic, table, day)
        if copy.location not in files
    }
    done = []
    for path, file in files.items() if copies else ():
        rows = [each for each in table.contents(path) if each.key in copies]
        if rows:
            moved = [copies[each.key] for each in rows]
            require_whole(table, path, rows, moved)
            move(connection, topic, path, rows, moved)
            events = sum(each.event_count for each in rows)
            done.append(RolledUp(day, path, 0, len(rows), events, file.size))
    return done


def _packs(connection: Any, topic: str, table: ArchiveTable, day: dt.date) -> Iterator[_Pack]:
    """Small files that are recorded as a whole, in the order of what they hold."""
    copies: dict[str, list[Copy]] = {}
    for copy in _verified(connection, topic, table, day):
        copies.setdefault(copy.location, []).append(copy)
    files = [each for each in table.day_files() if each.sealed_date == day and _is_small(each)]
    files = [
        each
        for each in files
        if sum(copy.event_count for copy in copies.get(each.path, [])) == each.event_count
    ]
    files.sort(key=lambda each: min(copy.key for copy in copies[each.path]))
    lot: list[DayFile] = []
    for file in files:
        lot.append(file)
        if sum(each.size for each in lot) >= FILE_BYTES:
            yield _pack(day, lot, copies)
            lot = []
    if len(lot) > 1:
        yield _pack(day, lot, copies)


def _pack(day: dt.date, files: Sequence[DayFile], copies: dict[str, list[Copy]]) -> _Pack:
    chosen = [copy for file in files for copy in copies[file.path]]
    return _Pack(day, tuple(files), tuple(sorted(chosen, key=lambda copy: copy.key)))


def _verified(connection: Any, topic: str, table: ArchiveTable, day: dt.date) -> list[Copy]:
    """The verified copies of a day in layout 2."""
    return [
        copy
        for copy, state in manifest.of_day(connection, topic, table.target.name, day)
        if state == "verified" and copy.layout == DAYS
    ]


def _roll(connection: Any, topic: str, table: ArchiveTable, pack: _Pack) -> RolledUp | None:
    """Make one file of a pack; nothing when another run has changed its files meanwhile."""
    file, rows = _write(table, pack)
    try:
        require_whole(table, file.path, rows, pack.copies)
        is_made = replace_files(
            table, pack.sealed_date, [each.path for each in pack.files], file, rows
        )
    except BaseException:
        discard(table.target, table.known_as, file)
        raise
    if not is_made:
        discard(table.target, table.known_as, file)
        return None
    move(connection, topic, file.path, rows, pack.copies)
    events = sum(each.event_count for each in rows)
    return RolledUp(pack.sealed_date, file.path, len(pack.files), len(rows), events, file.size)


def _write(table: ArchiveTable, pack: _Pack) -> tuple[WrittenFile, list[EpochRows]]:
    """Write the log epochs of a pack one after the other, and force the file to the disk."""
    target, known_as = table.target, table.known_as
    relative = new_path(pack.sealed_date.isoformat())
    rows: list[EpochRows] = []
    first_row = 0
    history = {each.key: each.history for file in pack.files for each in table.contents(file.path)}
    with (
        target.store.sink(f"{table.name(DAYS)}/{relative}") as sink,
        RowWriter(sink) as writer,
    ):
        for copy in pack.copies:
            for batch in read_copy(target, copy, copy.first_sequence, copy.last_sequence):
                writer.add(batch)
            rows.append(_rows(copy, first_row, history[copy.key]))
            first_row += copy.event_count
        writer.end(rows)
    return written_file(target, known_as, relative, writer.spans), rows


def _rows(copy: Copy, first_row: int, history: int) -> EpochRows:
    return EpochRows(
        *copy.key, copy.first_sequence, copy.event_count, copy.checksum, first_row, history
    )
