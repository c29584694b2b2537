"""Reading a copy without Spark: ranges of a log epoch, and what is wrong with it."""

from __future__ import annotations

import dataclasses

import pyarrow.parquet as pq
import pytest

from ops.archive import location
from penstock.archive.copies import Copy, epoch_folder
from penstock.archive.format import TABLE_SCHEMA
from penstock.archive.reader import read_copy
from penstock.archive.targets import Target
from penstock.errors import CopyDamaged, InvalidArgument, TargetUnavailable
from penstock.records import LogEpoch
from tests.archive.logs import Log, archived, only_file
from tests.archive.test_markers import mount, unmount


def recorded(log: Log, target: Target, epoch: LogEpoch) -> Copy:
    """The copy as the database has it."""
    return Copy(
        target.name,
        log.known_as,
        epoch.partition,
        epoch.log_epoch,
        epoch.first_sequence,
        epoch.last_sequence,
        epoch.event_count,
        epoch.checksum,
        layout=1,
        location=location(target, epoch),
    )


def rows_of(target: Target, copy: Copy, first: int, last: int) -> list[tuple[object, ...]]:
    """The rows of a range, without the number of the log epoch."""
    found = []
    for batch in read_copy(target, copy, first, last):
        assert batch.schema == TABLE_SCHEMA
        found += [
            tuple(value for name, value in row.items() if name != "log_epoch")
            for row in batch.to_pylist()
        ]
    return found


def test_every_range_of_a_copy_is_the_log(log: Log, target: Target) -> None:
    """From and to any sequence, whatever row group it lies in."""
    epoch, _ = archived(log, target)
    copy = recorded(log, target, epoch)
    file = only_file(target, log, copy.key)
    table = pq.read_table(file)
    with pq.ParquetWriter(file, table.schema) as writer:  # row groups of four
        writer.write_table(table, row_group_size=4)
        writer.add_key_value_metadata({"penstock.checksum": epoch.checksum})
    expected = log.rows_of(epoch.partition)
    for first in range(1, epoch.last_sequence + 1):
        for last in range(first, epoch.last_sequence + 1):
            assert rows_of(target, copy, first, last) == expected[first - 1 : last]


@pytest.mark.parametrize(("first", "last"), [(0, 1), (1, 7), (3, 2)])
def test_a_range_that_is_not_in_the_log_epoch_is_refused(
    log: Log, target: Target, first: int, last: int
) -> None:
    epoch, _ = archived(log, target)
    with pytest.raises(InvalidArgument, match="holds the sequences 1 to 6"):
        list(read_copy(target, recorded(log, target, epoch), first, last))


def test_a_file_that_is_not_what_was_sealed_is_damaged(log: Log, target: Target) -> None:
    """Lost, cut short, or of some other log: CopyDamaged, and other files of the folder count.

    Guard: the checksum that a file says it was written with.
    """
    epoch, _ = archived(log, target)
    copy = recorded(log, target, epoch)
    other = dataclasses.replace(copy, checksum="0" * 64)
    with pytest.raises(CopyDamaged, match=r"no file in .* holds it"):
        list(read_copy(target, other, 1, 6))
    file = only_file(target, log, copy.key)
    whole = file.read_bytes()
    file.with_name("a-killed-run-wrote-it-too.parquet").write_bytes(whole)
    file.unlink()
    assert rows_of(target, copy, 1, 6) == log.rows_of(epoch.partition)
    for path in epoch_folder(target, log.known_as, copy.key).iterdir():
        path.unlink()
    with pytest.raises(CopyDamaged, match="backfill makes it again"):
        list(read_copy(target, copy, 1, 6))
    file.write_bytes(whole[:-100])
    with pytest.raises(CopyDamaged):
        list(read_copy(target, copy, 1, 6))


def test_rows_with_other_sequences_are_damaged(log: Log, target: Target) -> None:
    """Guard: the sequences of the rows, which have no gap."""
    epoch, _ = archived(log, target)
    copy = recorded(log, target, epoch)
    file = only_file(target, log, copy.key)
    table = pq.read_table(file)
    with pq.ParquetWriter(file, table.schema) as writer:
        writer.write_table(table.take([0, 1, 3, 2, 4, 5]))
        writer.add_key_value_metadata({"penstock.checksum": epoch.checksum})
    assert rows_of(target, copy, 1, 2) == log.rows_of(epoch.partition)[:2]
    with pytest.raises(CopyDamaged, match="other sequences"):
        list(read_copy(target, copy, 1, 6))


def test_on_a_target_that_is_not_there_nothing_is_damaged(log: Log, target: Target) -> None:
    """Guard: the marker."""
    epoch, _ = archived(log, target)
    copy = recorded(log, target, epoch)
    away = unmount(target)
    with pytest.raises(TargetUnavailable):
        list(read_copy(target, copy, 1, 6))
    mount(target, away)
    assert rows_of(target, copy, 1, 6) == log.rows_of(epoch.partition)
