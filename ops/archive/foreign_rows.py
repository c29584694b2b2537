"""The rows of foreign files: read by their columns, and compared with the seals."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.archive.checksum import EpochChecksum
from penstock.archive.contents import EpochRows
from penstock.archive.copies import EpochKey, key_of
from penstock.archive.format import TABLE_SCHEMA
from penstock.archive.table import ArchiveTable
from penstock.errors import CopyDamaged, error_text
from penstock.records import LogEpoch

#: How our own files are called, by :func:`ops.archive.writer.new_path`.
_OURS = re.compile(r"(.*/)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.parquet")


class Unreadable(CopyDamaged):
    """A foreign file whose bytes are no file any more."""


class OtherContent(CopyDamaged):
    """Each event of a log epoch is there once, and they are not what was sealed."""


@dataclass(frozen=True, slots=True)
class ForeignRows:
    """The rows of one log epoch in foreign files, in order."""

    epoch: LogEpoch
    rows: pa.Table

    @property
    def histories(self) -> tuple[int, int]:
        """The lowest and the highest history."""
        found = pc.min_max(self.rows["history"])
        return int(found["min"].as_py()), int(found["max"].as_py())

    def placed(self, first_row: int) -> EpochRows:
        """As a file of ours says it."""
        seal = self.epoch
        return EpochRows(
            *key_of(seal), seal.first_sequence, seal.event_count, seal.checksum, first_row,
            self.histories[1],
        )  # fmt: skip


def is_foreign(path: str) -> bool:
    """Whether a file has a name that we give none."""
    return _OURS.fullmatch(path) is None


def read_foreign(table: ArchiveTable, layout: int, path: str, columns: Sequence[str]) -> pa.Table:
    """Columns of a file, with the types that ours have: another engine may have its own."""
    wanted = pa.schema([TABLE_SCHEMA.field(name) for name in columns])
    try:
        source = table.target.store.source(f"{table.name(layout)}/{path}")
        found = pq.read_table(
            source, columns=list(columns), partitioning=None, page_checksum_verification=True
        )
        missing = set(columns) - set(found.column_names)
        if missing:
            raise foreign_damage(table, path, f"it has no columns {sorted(missing)}")
        return found.select(list(columns)).cast(wanted)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise foreign_damage(table, path, error_text(error), Unreadable) from error


def epochs_of(
    table: ArchiveTable,
    path: str,
    slices: Iterable[tuple[EpochKey, pa.Table]],
    seals: dict[EpochKey, LogEpoch],
) -> list[ForeignRows]:
    """The log epochs of foreign rows; CopyDamaged unless each is what was sealed.

    That rows are missing or too many is found before that one has another content.
    """
    changed: list[EpochKey] = []
    found = []
    for key, rows in slices:
        seal = seals.get(key)
        if seal is None:
            raise foreign_damage(table, path, f"the log has no log epoch {key}")
        checksum = _checksum_of(rows, seal)
        if checksum is None:
            raise foreign_damage(
                table, path,
                f"of log epoch {key[1]} of partition {key[0]} it has {rows.num_rows} rows, "
                f"not the {seal.event_count} with the sequences {seal.first_sequence} to "
                f"{seal.last_sequence}",
            )  # fmt: skip
        if checksum != seal.checksum:
            changed.append(key)
        found.append(ForeignRows(seal, rows))
    if changed:
        what = f"its rows of {changed[0]} are not what was sealed"
        raise foreign_damage(table, path, what, OtherContent)
    return found


def _checksum_of(rows: pa.Table, seal: LogEpoch) -> str | None:
    """The checksum of the rows of a log epoch; None when these are not its sequences."""
    seen = EpochChecksum()
    try:
        for batch in rows.to_batches():
            seen.add(batch)
    except ValueError:  # a sequence is missing, or there twice
        return None
    there = seen.event_count, seen.first_sequence, seen.last_sequence
    sealed = seal.event_count, seal.first_sequence, seal.last_sequence
    return seen.hexdigest() if there == sealed else None


def require_others(
    seals: dict[EpochKey, LogEpoch],
    keys: Collection[EpochKey],
    target: str,
    error: CopyDamaged,
) -> None:
    """Raise the error unless the log epochs of a damaged file can be made again.

    What cannot be read comes from another target or from the database.  Another content may be a
    changed byte or another program's UPDATE: it needs a copy on another target, so that two copies
    say the same against one.
    """
    if not isinstance(error, Unreadable | OtherContent):
        raise error
    for key in keys:
        seal = seals.get(key)
        if seal is None:
            raise error
        is_hot = seal.dropped_at is None and isinstance(error, Unreadable)
        if not is_hot and not set(seal.targets) - {target}:
            raise error


def foreign_damage(
    table: ArchiveTable, path: str, what: str, kind: type[CopyDamaged] = CopyDamaged
) -> CopyDamaged:
    """What is wrong with a foreign file."""
    return kind(
        f"the file {path} of the archive of {table.known_as} on {table.target.name} was"
        f" written by another program, and is not a whole part of the archive: {what}",
        hint="other programs may only OPTIMIZE and VACUUM an archive (docs/reference/archive.md): "
        "undo what that program did (RESTORE to the version before), then run it again",
    )
