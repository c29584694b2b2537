"""Rollup: the files of a closed day become few, and nothing else changes, whatever dies when."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ops.archive import commits, manifest, rollup as rollups
from ops.archive.commits import EpochCommitter
from ops.archive.copying import recorded_plans
from ops.archive.epoch_reader import EpochReader
from ops.archive.rollup import RolledUp, rollup
from ops.archive.verify import read_copy as read_back
from ops.archive.writer import RowWriter, write_epoch
from ops.backfill.missing import audit_files, tidy
from ops.seal import copies_of, forget_copy, log_epochs
from penstock.archive.contents import read_contents
from penstock.archive.copies import Copy, key_of
from penstock.archive.copy_reader import read_copy
from penstock.archive.format import DAYS
from penstock.archive.table import ArchiveTable
from penstock.archive.targets import Target
from penstock.errors import CopyDamaged, EpochError, TargetUnavailable
from penstock.records import LogEpoch
from tests.archive import stalled_rollup
from tests.archive.folders import bring_folders
from tests.archive.logs import Log, Row, bring, plan_of, record, states
from tests.archive.test_markers import mount, unmount
from tests.kit.proof import proves


def yesterday(log: Log, days: int = 1) -> None:
    """Everything that is sealed was sealed some days ago."""
    log.connection.execute(
        "UPDATE penstock.log_epochs SET sealed_at = sealed_at - make_interval(days => %s)", (days,)
    )


@pytest.fixture
def copies(log: Log, target: Target) -> list[Copy]:
    """Five log epochs in each of two partitions, sealed yesterday, a file for each."""
    log.publish_odd()
    log.publish_many(200)
    log.seal(max_events=22)
    yesterday(log)
    return bring(log, target, log_epochs(log.connection, log.topic))


def day_files(log: Log, target: Target) -> list[Path]:
    """The files that the table names."""
    table = ArchiveTable(target, log.known_as)
    return [table.folder(DAYS) / each.path for each in table.day_files()]


def table_rows(log: Log, target: Target) -> list[Row]:
    """What any engine reads of the table, without the number of the log epoch and the day."""
    delta = ArchiveTable(target, log.known_as).delta(DAYS)
    assert delta is not None
    table = delta.to_pyarrow_table().drop_columns(["log_epoch", "sealed_date"])
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=lambda row: row[:2])


def manifest_rows(log: Log, target: Target) -> list[Row]:
    """What is read by the manifest."""
    found: list[Row] = []
    for epoch in log_epochs(log.connection, log.topic):
        found += copy_rows(target, manifest_copy(log, target, epoch))
    return sorted(found, key=lambda row: row[:2])


def manifest_copy(log: Log, target: Target, epoch: LogEpoch) -> Copy:
    """The recorded copy."""
    return manifest.recorded(log.connection, target.name, [epoch])[key_of(epoch)]


def copy_rows(target: Target, copy: Copy) -> list[Row]:
    """The rows of a copy, without the number of the log epoch."""
    return [
        tuple(value for name, value in row.items() if name != "log_epoch")
        for batch in read_copy(target, copy, copy.first_sequence, copy.last_sequence)
        for row in batch.to_pylist()
    ]


def check_all(log: Log, target: Target) -> None:
    """The table, the manifest and the log are the same; no copy is damaged or lost."""
    assert table_rows(log, target) == manifest_rows(log, target) == log.rows()
    assert set(states(log)) == {"verified"}
    assert audit_files(log.url, log.topic, target) == []
    plans = recorded_plans(log.url, target, log_epochs(log.connection, log.topic))
    assert [read_back(plan, target).damage for plan in plans.values()] == [""] * len(plans)


@proves("D10 of a rollup")
def test_the_files_of_a_closed_day_become_one(log: Log, target: Target, copies: list[Copy]) -> None:
    """Sorted, with every log epoch where the manifest and the file itself say that it is."""
    (made,) = rollup(log.url, log.topic, target)
    assert (made.replaced_files, made.log_epochs, made.events) == (10, 10, 212)
    (path,) = day_files(log, target)
    keys = pq.read_table(path, partitioning=None, columns=["partition", "log_epoch", "sequence"])
    rows = [tuple(row.values()) for row in keys.to_pylist()]
    assert rows == sorted(rows)
    assert [each.key for each in read_contents(path)] == sorted(copy.key for copy in copies)
    check_all(log, target)
    assert rollup(log.url, log.topic, target) == []


def test_the_table_says_that_no_row_changed(log: Log, target: Target, copies: list[Copy]) -> None:
    """A reader of changes sees none: each action says dataChange false."""
    rollup(log.url, log.topic, target)
    delta = ArchiveTable(target, log.known_as).delta(DAYS)
    assert delta is not None
    newest = Path(
        delta.table_uri.removeprefix("file://"), "_delta_log", f"{delta.version():020}.json"
    )
    actions = [json.loads(line) for line in newest.read_text().splitlines()]
    changes = [each.get("add") or each.get("remove") for each in actions]
    assert [each["dataChange"] for each in changes if each] == [False] * 11


def test_who_has_the_manifest_of_before_still_reads(
    log: Log, target: Target, copies: list[Copy]
) -> None:
    """The small files are there until a week later, counted from the rollup, not from their making.

    Guard: the time in the commit that has replaced them.
    """
    long_ago = 1_700_000_000
    for path in day_files(log, target):
        os.utime(path, (long_ago, long_ago))
    rollup(log.url, log.topic, target)
    assert tidy(log.url, log.topic, target) == []
    assert sorted(row for copy in copies for row in copy_rows(target, copy)) == sorted(log.rows())
    assert len(tidy(log.url, log.topic, target, hours=0)) == 10
    with pytest.raises(CopyDamaged):
        copy_rows(target, copies[0])
    check_all(log, target)


def test_an_open_day_stays_as_it_is(log: Log, target: Target, copies: list[Copy]) -> None:
    today = dt.datetime.now(dt.UTC).date()
    assert rollup(log.url, log.topic, target, today=today - dt.timedelta(days=1)) == []
    assert len(day_files(log, target)) == 10


def test_each_day_has_its_own_files_and_large_ones_stay(
    log: Log, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are filled up to their size, and one that is half full is not written again."""
    for _ in range(2):
        log.publish_many(40)
        log.seal(max_events=5)
        yesterday(log)
    bring(log, target, log_epochs(log.connection, log.topic))
    small = max(path.stat().st_size for path in day_files(log, target))
    monkeypatch.setattr(rollups, "FILE_BYTES", 3 * small)
    made = rollup(log.url, log.topic, target)
    assert len({each.sealed_date for each in made}) == 2
    assert len(made) > 2
    check_all(log, target)
    monkeypatch.setattr(rollups, "FILE_BYTES", 2 * min(each.size for each in made))
    assert rollup(log.url, log.topic, target) == []


PLACES = {"before the check": False, "before the commit": False, "after the commit": True}


@proves("D10 of a rollup")
@pytest.mark.parametrize("place", PLACES)
def test_a_rollup_that_is_killed_loses_nothing(
    log: Log, target: Target, copies: list[Copy], place: str
) -> None:
    """SIGKILL there; all is read as before, and the next run ends it.

    Guards: the check before the commit, the commit before the manifest, and `_finish`.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "tests.archive.stalled_rollup", place, log.url,
         log.topic, target.uri],
        stdout=subprocess.PIPE, text=True,
    ) as run:  # fmt: skip
        assert run.stdout is not None
        assert run.stdout.readline() == "reached\n"
        os.kill(run.pid, signal.SIGKILL)
    assert len(day_files(log, target)) == (1 if PLACES[place] else 10)
    check_all(log, target)
    tidy(log.url, log.topic, target, hours=0)
    check_all(log, target)
    (made,) = rollup(log.url, log.topic, target)
    assert made.replaced_files == (0 if PLACES[place] else 10)
    assert len(day_files(log, target)) == 1
    tidy(log.url, log.topic, target, hours=0)
    assert set(target.root.rglob("*.parquet")) == set(day_files(log, target))
    check_all(log, target)


def test_a_damaged_file_stops_the_rollup_of_its_pack(
    log: Log, target: Target, copies: list[Copy]
) -> None:
    """Once: it is forgotten, so that backfill makes it again, and the next rollup leaves it out.

    Nothing is replaced and nothing is left over.
    """
    path = day_files(log, target)[3]
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CopyDamaged):
        rollup(log.url, log.topic, target)
    assert len(day_files(log, target)) == len(list(target.root.rglob("*.parquet"))) == 10
    assert states(log).count("missing") == 1
    (made,) = rollup(log.url, log.topic, target)
    assert made.replaced_files == 9
    path.write_bytes(whole)
    record(log, target, log_epochs(log.connection, log.topic))
    check_all(log, target)


class Dropping(RowWriter):
    """Loses the last row of each batch."""

    def add(self, batch: Any) -> None:
        super().add(batch.slice(0, batch.num_rows - 1))


@proves("D10 of a rollup", guard="reading back")
def test_what_is_not_as_sealed_is_not_committed(
    log: Log, target: Target, copies: list[Copy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: reading back before the commit; without it the rows are gone from the table."""
    monkeypatch.setattr(rollups, "RowWriter", Dropping)
    with pytest.raises(CopyDamaged):
        rollup(log.url, log.topic, target)
    check_all(log, target)
    monkeypatch.setattr(rollups, "require_whole", lambda *_: None)
    rollup(log.url, log.topic, target)
    with pytest.raises(CopyDamaged):
        manifest_rows(log, target)


def test_a_file_that_is_not_recorded_as_a_whole_stays(
    log: Log, target: Target, copies: list[Copy]
) -> None:
    """Committed but not recorded, or forgotten: not a rollup's business, but archive's."""
    log.connection.execute("DELETE FROM penstock.epoch_copies WHERE log_epoch = 2")
    forget_copy(log.connection, log.topic, (0, 3), target.name, "a test")
    (made,) = rollup(log.url, log.topic, target)
    assert made.replaced_files == 7
    record(log, target, log_epochs(log.connection, log.topic))
    check_all(log, target)
    (made,) = rollup(log.url, log.topic, target)
    assert made.replaced_files == 4
    check_all(log, target)


@proves("D10 of a rollup")
def test_two_rollups_at_once(log: Log, target: Target, copies: list[Copy]) -> None:
    """One of them makes the file, and the other's is removed.

    Guard: the look at the table and the app transactions: delta-rs lets two commits remove one
    file.
    """
    start = threading.Barrier(2)
    real = commits.replace_files

    def commit(*given: Any) -> bool:
        start.wait()
        return real(*given)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(rollups, "replace_files", commit)
        runs: Iterator[list[RolledUp]] = pool.map(
            lambda _: rollup(log.url, log.topic, target), range(2)
        )
        assert sorted(len(made) for made in runs) == [0, 1]
    check_all(log, target)


@proves("D10 of a rollup", guard="the app transactions")
def test_of_two_commits_from_one_version_one_fails(
    log: Log, target: Target, copies: list[Copy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: the app transactions; mutant: without them every row is in the table twice."""
    (pack,) = packs(log, target)
    stale = ArchiveTable(target, log.known_as)
    files = [rollups._write(stale, pack) for _ in range(3)]
    place = pack.sealed_date, [each.path for each in pack.files]
    assert commits.replace_files(ArchiveTable(target, log.known_as), *place, *files[0])
    monkeypatch.setattr(ArchiveTable, "refresh", lambda _: None)
    with pytest.raises(EpochError, match="other runs were faster"):
        commits.replace_files(stale, *place, *files[1])
    assert table_rows(log, target) == log.rows()
    monkeypatch.setattr(commits, "transactions_of", lambda *_: [])
    assert commits.replace_files(stale, *place, *files[2])
    assert len(table_rows(log, target)) == 2 * len(log.rows())


def packs(log: Log, target: Target) -> list[rollups._Pack]:
    """What a rollup would make one file of."""
    table = ArchiveTable(target, log.known_as)
    (day,) = {each.sealed_date for each in table.day_files()}
    return list(rollups._packs(log.connection, log.topic, table, day))


@proves("D10 of a rollup")
def test_a_repair_during_a_rollup(log: Log, target: Target, copies: list[Copy]) -> None:
    """A file that was replaced meanwhile is not replaced once more: the rollup gives up."""
    real = commits.replace_files
    epochs = log_epochs(log.connection, log.topic)
    epoch = epochs[4]

    def commit(*given: Any) -> bool:
        _replace(log, target, epoch)
        return real(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollups, "replace_files", commit)
        assert rollup(log.url, log.topic, target) == []
    record(log, target, [epoch])
    check_all(log, target)
    assert len(rollup(log.url, log.topic, target)) == 1
    check_all(log, target)


def _replace(log: Log, target: Target, epoch: LogEpoch) -> None:
    """What a repair commits."""
    (entry,) = ArchiveTable(target, log.known_as).committed()[key_of(epoch)]
    plan = dataclasses.replace(plan_of(epoch), replaces=(entry.path,))
    reader = EpochReader(log.url, log.topic)
    written = write_epoch(target, log.known_as, plan, reader.read(plan))
    committer = EpochCommitter(target, log.known_as, [plan])
    assert committer.commit([(plan, written.file)]) == {plan.key}


def test_layout_1_is_left_alone(log: Log, target: Target) -> None:
    log.publish_odd()
    log.seal()
    yesterday(log)
    bring_folders(log, target, log_epochs(log.connection, log.topic))
    before = set(target.root.rglob("*.parquet"))
    assert rollup(log.url, log.topic, target) == []
    assert set(target.root.rglob("*.parquet")) == before
    assert {each.layout for each in copies_of(log.connection, log.topic)} == {1}


def test_on_a_target_that_is_not_there_nothing_happens(
    log: Log, target: Target, copies: list[Copy]
) -> None:
    away = unmount(target)
    with pytest.raises(TargetUnavailable):
        rollup(log.url, log.topic, target)
    mount(target, away)
    check_all(log, target)


def test_the_places_are_those_of_the_program() -> None:
    assert set(PLACES) == set(stalled_rollup.PLACES)
