"""Reading a copy without Spark: ranges of a log epoch, and what is wrong with it."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ops.archive import verify
from ops.archive.copying import recorded_plans
from ops.seal import log_epochs
from penstock.archive import copy_reader
from penstock.archive.copies import Copy
from penstock.archive.copy_reader import read_copy
from penstock.archive.format import TABLE_SCHEMA
from penstock.archive.targets import Target
from penstock.errors import CopyDamaged, InvalidArgument, TargetUnavailable
from tests.archive.folders import bring_folders
from tests.archive.logs import Log, bring, only_file
from tests.archive.test_markers import mount, unmount


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


@pytest.fixture(params=[bring_folders, bring], ids=["layout 1", "layout 2"])
def copy(request: pytest.FixtureRequest, log: Log, target: Target) -> Copy:
    """A recorded copy of a log epoch of six events, in each layout."""
    log.publish_odd()
    found: Copy = request.param(log, target, log.seal())[0]
    return found


def rewritten(file: Path, rows: Sequence[int], **options: Any) -> None:
    """The same file with some of its rows, in this order."""
    table, metadata = pq.read_table(file, partitioning=None), pq.read_metadata(file).metadata
    with pq.ParquetWriter(file, table.schema) as writer:
        writer.write_table(table.take(pa.array(rows)), **options)
        writer.add_key_value_metadata(
            {
                key.decode(): text.decode()
                for key, text in (metadata or {}).items()
                if key.startswith(b"penstock.")
            }
        )


def test_every_range_of_a_copy_is_the_log(log: Log, target: Target, copy: Copy) -> None:
    """From and to any sequence, whatever row group it lies in."""
    rewritten(only_file(target, log, copy.key), range(6), row_group_size=4)
    expected = log.rows_of(copy.partition)
    for first in range(1, copy.last_sequence + 1):
        for last in range(first, copy.last_sequence + 1):
            assert rows_of(target, copy, first, last) == expected[first - 1 : last]


@pytest.mark.parametrize(("first", "last"), [(0, 1), (1, 7), (3, 2)])
def test_a_range_that_is_not_in_the_log_epoch_is_refused(
    target: Target, copy: Copy, first: int, last: int
) -> None:
    with pytest.raises(InvalidArgument, match="holds the sequences 1 to 6"):
        list(read_copy(target, copy, first, last))


def test_a_lost_or_cut_file_is_damaged(log: Log, target: Target, copy: Copy) -> None:
    file = only_file(target, log, copy.key)
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    with pytest.raises(CopyDamaged):
        list(read_copy(target, copy, 1, 6))
    file.unlink()
    with pytest.raises(CopyDamaged, match="backfill makes it again"):
        list(read_copy(target, copy, 1, 6))


def test_in_layout_1_the_file_says_what_it_is(log: Log, target: Target) -> None:
    """Of files in a folder that which was written with the checksum counts, wherever it is from.

    Guard: the checksum that a file says it was written with.
    """
    log.publish_odd()
    copy, _ = bring_folders(log, target, log.seal())
    with pytest.raises(CopyDamaged, match=r"no file in .* holds it"):
        list(read_copy(target, dataclasses.replace(copy, checksum="0" * 64), 1, 6))
    file = only_file(target, log, copy.key)
    file.with_name("a-killed-run-wrote-it-too.parquet").write_bytes(file.read_bytes())
    file.write_bytes(b"cut")
    assert rows_of(target, copy, 1, 6) == log.rows_of(copy.partition)


def test_rows_with_other_sequences_are_damaged(log: Log, target: Target, copy: Copy) -> None:
    """Guard: the sequences of the rows, which have no gap."""
    rewritten(only_file(target, log, copy.key), [0, 1, 3, 2, 4, 5])
    with pytest.raises(CopyDamaged, match="other sequences"):
        list(read_copy(target, copy, 1, 6))


def test_the_file_of_another_log_epoch_is_damaged(
    log: Log, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: in layout 2 the file says which log epochs it holds, and so does every row."""
    log.publish_odd()
    copy, other = bring(log, target, log.seal())
    wrong = dataclasses.replace(copy, location=other.location)
    with pytest.raises(CopyDamaged, match="says that it does not hold this log epoch"):
        list(read_copy(target, wrong, 1, 6))
    monkeypatch.setattr(copy_reader, "require_held", lambda *_: None)
    with pytest.raises(CopyDamaged, match="another partition than 0"):
        list(read_copy(target, wrong, 1, 6))


def test_the_same_log_epoch_of_other_events_is_damaged(
    log: Log, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: the checksum that the file says it was written with.

    Its rows have the same partition, log epoch and sequences: a file of another topic, or log.
    """
    log.publish_odd()
    copy, _ = bring(log, target, log.seal())
    other = dataclasses.replace(copy, checksum="0" * 64)
    with pytest.raises(CopyDamaged, match=f"says that it holds the checksum {copy.checksum}"):
        list(read_copy(target, other, 1, 6))
    monkeypatch.setattr(copy_reader, "require_held", lambda *_: None)
    assert rows_of(target, other, 1, 6) == log.rows_of(copy.partition)


def _flipped(log: Log, target: Target, copy: Copy, places: Iterable[int]) -> tuple[int, int]:
    """One flipped bit at each place: what the read-back did not see, and wrong reads of that."""
    file, epochs = only_file(target, log, copy.key), log_epochs(log.connection, log.topic)
    plan = recorded_plans(log.url, target, epochs)[copy.key]
    whole, expected = file.read_bytes(), list(read_copy(target, copy, 1, 6))
    unseen = wrong = 0
    for place in places:
        other = bytes([whole[place] ^ 1 << place % 8])
        file.write_bytes(whole[:place] + other + whole[place + 1 :])
        try:
            if verify.read_copy(plan, target).damage:
                continue
            unseen += 1
            wrong += list(read_copy(target, copy, 1, 6)) != expected
        except (KeyError, CopyDamaged):
            wrong += 1
    file.write_bytes(whole)
    return unseen, wrong


def test_what_the_read_back_lets_pass_is_read_as_it_was(
    log: Log, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One flipped bit anywhere.  Guard: the columns of a file are those of the archive.

    The checksums of pages do not cover the end of the file, with the names and types of columns.
    """
    log.publish_odd()
    copy, _ = bring(log, target, log.seal())
    whole = only_file(target, log, copy.key).read_bytes()
    unseen, wrong = _flipped(log, target, copy, range(random.Random(6).randrange(9), len(whole), 9))
    assert (unseen > 0, wrong) == (True, 0)
    end_of_file = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    name = whole.index(b"log_epoch", end_of_file)
    named = name + -name % 8  # its flipped bit makes another letter of it, and no error of UTF-8
    assert _flipped(log, target, copy, [named]) == (0, 0)
    monkeypatch.setattr(copy_reader, "_require_columns", lambda _: None)
    assert _flipped(log, target, copy, [named])[1] == 1


def test_one_flipped_bit_in_layout_2_is_found_when_it_is_read(log: Log, target: Target) -> None:
    """Guard: the checksum of each Parquet page; without it other payloads are read."""
    log.publish_odd()
    copy, _ = bring(log, target, log.seal())
    file = only_file(target, log, copy.key)
    whole, before = file.read_bytes(), pq.read_table(file, partitioning=None)
    column = pq.read_metadata(file).row_group(0).column(TABLE_SCHEMA.get_field_index("payload"))
    silent, expected = 0, log.rows_of(copy.partition)
    for place in range(column.data_page_offset, column.data_page_offset + 200):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with contextlib.suppress(OSError, pa.ArrowException):
            silent += pq.read_table(file, partitioning=None) != before
        with contextlib.suppress(CopyDamaged):
            assert rows_of(target, copy, 1, 6) == expected  # a bit that nobody looks at
    assert silent


def test_on_a_target_that_is_not_there_nothing_is_damaged(
    log: Log, target: Target, copy: Copy
) -> None:
    """Guard: the marker."""
    away = unmount(target)
    with pytest.raises(TargetUnavailable):
        list(read_copy(target, copy, 1, 6))
    mount(target, away)
    assert rows_of(target, copy, 1, 6) == log.rows_of(copy.partition)
