"""Reading a copy of a log epoch: ranges of its events, without Spark and without a database.

Nothing here needs ``pyarrow.compute`` or ``pa.array``, which loads pandas where there is one: a
process that begins with a cold read would pay for them and have nothing of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.archive.contents import contents_of, require_held
from penstock.archive.copies import Copy, epoch_folder
from penstock.archive.format import (
    CHECKSUM_KEY,
    DAYS,
    FILE_SCHEMA,
    PARTITION_COLUMNS,
    TABLE_SCHEMA,
    of_numbers,
    repeated,
    with_epoch,
)
from penstock.archive.markers import is_there
from penstock.archive.stores import Store
from penstock.archive.targets import Target
from penstock.errors import CopyDamaged, InvalidArgument, TargetUnavailable, error_text

#: The columns of a file of layout 1, and of layout 2.
_COLUMNS = [
    dict(zip(schema.names, schema.types, strict=True)) for schema in (FILE_SCHEMA, TABLE_SCHEMA)
]
#: The rows of a batch at most.
ROWS_PER_BATCH = 4096


def read_copy(
    target: Target, copy: Copy, first_sequence: int, last_sequence: int
) -> Iterator[pa.RecordBatch]:
    """The events of a range within one log epoch, in order, with the columns of TABLE_SCHEMA.

    CopyDamaged when rows are missing or are not the ones asked for, TargetUnavailable when the
    target is not there: then nothing is lost.
    """
    if not copy.first_sequence <= first_sequence <= last_sequence <= copy.last_sequence:
        raise InvalidArgument(
            f"log epoch {copy.log_epoch} of partition {copy.partition} holds the sequences "
            f"{copy.first_sequence} to {copy.last_sequence}, not {first_sequence} to "
            f"{last_sequence}",
            hint="ask for a range within the log epoch",
        )
    skipped = copy.first_row + first_sequence - copy.first_sequence
    wanted = last_sequence - first_sequence + 1
    expected = first_sequence
    try:
        found = read_rows(target.store, _file(target, copy), skipped, wanted, holds=copy)
        for batch in found:
            _require_sequences(batch, expected, copy)
            expected += batch.num_rows
            yield _of_copy(batch, copy)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _damaged(target, copy, error_text(error)) from error
    if expected != last_sequence + 1:
        raise _damaged(target, copy, f"it ends before sequence {expected}")


def read_rows(
    store: Store, path: str, skipped: int = 0, wanted: int = -1, *, holds: Copy | None = None
) -> Iterator[pa.RecordBatch]:
    """Some rows of a file, -1: all that follow; only the row groups that hold them are read.

    ValueError when its columns are not those of the archive, or when it says itself that it does
    not hold the copy.  The checksums of pages do not cover the end of the file, which says both.
    """
    with pq.ParquetFile(store.source(path), page_checksum_verification=True) as file:
        _require_columns(file.schema_arrow)
        if holds is not None and holds.layout == DAYS:
            contents = contents_of(file.metadata)
            require_held(contents, holds.key, holds.first_row, holds.checksum)
        left = file.metadata.num_rows - skipped if wanted < 0 else wanted
        groups, skipped = _row_groups(file.metadata, skipped, left)
        for batch in file.iter_batches(ROWS_PER_BATCH, row_groups=groups):
            chosen = batch.slice(skipped, left)
            skipped -= min(skipped, batch.num_rows)
            left -= chosen.num_rows
            if chosen.num_rows:
                yield chosen


def _row_groups(metadata: pq.FileMetaData, skipped: int, wanted: int) -> tuple[list[int], int]:
    """The row groups that hold some rows, and how many rows of the first one come before them."""
    groups: list[int] = []
    start = 0
    for number in range(metadata.num_row_groups):
        end = start + metadata.row_group(number).num_rows
        if start < skipped + wanted and end > skipped:
            groups.append(number)
        start = end
    before = sum(metadata.row_group(number).num_rows for number in range(min(groups, default=0)))
    return groups, skipped - before


def _require_columns(schema: pa.Schema) -> None:
    found = dict(zip(schema.names, schema.types, strict=True))
    if found not in _COLUMNS or len(found) < len(schema.names):
        raise ValueError(f"its columns are not those of the archive: {schema.names}")


def _of_copy(batch: pa.RecordBatch, copy: Copy) -> pa.RecordBatch:
    """Rows of a copy with the columns of TABLE_SCHEMA; ValueError when they are of another one."""
    if copy.layout != DAYS:
        return with_epoch(batch, *copy.key)
    for name, value in zip(PARTITION_COLUMNS, copy.key, strict=True):
        if name not in batch.schema.names or not batch.column(name).equals(
            repeated(value, batch.num_rows)
        ):
            raise ValueError(f"its rows are of another {name} than {value}")
    return batch.select(TABLE_SCHEMA.names)


def _file(target: Target, copy: Copy) -> str:
    """The file that holds the copy: in layout 1, the one in its folder that says so itself.

    Files of killed runs may lie beside it.  One that was written with the same checksum is as good.
    """
    if copy.layout == DAYS:
        return f"{target.table_name(copy.known_as, DAYS)}/{copy.location}"
    folder = epoch_folder(target, copy.known_as, copy.key)
    unreadable = ""
    for path in sorted(folder.glob("*.parquet")):
        try:
            metadata = pq.read_metadata(path)
        except (OSError, pa.ArrowException) as error:
            unreadable = f"; {path.name}: {error}"
            continue
        written_as = (metadata.metadata or {}).get(CHECKSUM_KEY.encode(), b"").decode()
        if written_as == copy.checksum and metadata.num_rows == copy.event_count:
            return str(path)
    raise FileNotFoundError(f"no file in {folder} holds it{unreadable}")


def _require_sequences(batch: pa.RecordBatch, expected: int, copy: Copy) -> None:
    """ValueError unless the batch holds the sequences from the expected one on without a gap."""
    following = of_numbers(array("q", range(expected, expected + batch.num_rows)), pa.int64())
    if not batch.column("sequence").equals(following):
        raise ValueError(
            f"rows of log epoch {copy.log_epoch} hold other sequences than those from {expected} on"
        )


def _damaged(target: Target, copy: Copy, what: str) -> Exception:
    """What is wrong with a copy; on a target that is not there nothing is."""
    if not is_there(target):
        return TargetUnavailable(
            f"the archive target {target.name} is not available at {target.place}",
            hint="mount it",
        )
    return CopyDamaged(
        f"the copy of log epoch {copy.log_epoch} of {copy.known_as}/{copy.partition} on "
        f"{target.name} is damaged: {what}",
        hint="read it from another target; backfill makes it again",
    )
