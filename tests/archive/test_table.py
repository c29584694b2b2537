"""The archive's table without Spark: commits, races and repairs on the Delta log."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from ops.archive import commits as archive_commits, writer as archive_writer
from ops.archive.commits import EpochCommitter, WrittenFile, create_table, remove_leftovers
from ops.archive.copy_readings import CopyReading
from ops.archive.epoch_reader import EpochReader
from ops.archive.plans import EpochPlan
from ops.archive.verify import read_copy
from ops.archive.writer import ArchiveWriter, WrittenEpoch, WrittenEpochs, write_epoch
from penstock.archive.checksum import EpochChecksum
from penstock.archive.format import DAYS, FILE_SCHEMA, with_epoch
from penstock.archive.markers import mark
from penstock.archive.table import ArchiveTable, Committed, place_version
from penstock.archive.targets import Target
from penstock.errors import ConfigurationError
from tests.archive.logs import TOPIC
from tests.kit.digests import DigestFields, batch_of
from tests.kit.proof import proves

INSTALLATION = "00000000-0000-4000-8000-000000000000"
DAY = "2026-01-31"
EVENT_ID = "01890a5d-ac96-774b-bcce-b302099a8057"


def make_plan(partition: int = 0, log_epoch: int = 1, events: int = 5) -> EpochPlan:
    """The plan of a log epoch of events that all look the same."""
    first = (log_epoch - 1) * events + 1
    plan = EpochPlan(partition, log_epoch, first, first + events - 1, events, "", DAY)
    checksum = EpochChecksum()
    checksum.add(_rows(plan))
    return dataclasses.replace(plan, checksum=checksum.hexdigest())


def _rows(plan: EpochPlan) -> pa.RecordBatch:
    sequences = range(plan.first_sequence, plan.last_sequence + 1)
    events = [DigestFields(n, EVENT_ID, None, "t", "c/d", None, b"payload", 0) for n in sequences]
    return batch_of(*events)


def write(target: Target, *plans: EpochPlan, topic: str = TOPIC) -> WrittenEpochs:
    """What a task does with log epochs."""
    mark(target, INSTALLATION)
    create_table(target, topic)
    written = (
        write_epoch(target, topic, plan, iter([with_epoch(_rows(plan), *plan.key)]))
        for plan in plans
    )
    return WrittenEpochs(tuple(written))


def writer_of(target: Target, plans: list[EpochPlan]) -> ArchiveWriter:
    """The driver's side: it reads no event."""
    return ArchiveWriter(target, INSTALLATION, TOPIC, plans, EpochReader("", TOPIC))


def commit_epoch(target: Target, plan: EpochPlan, file: WrittenFile) -> bool:
    """Whether this commit made the log epoch."""
    return EpochCommitter(target, TOPIC, [plan]).commit([(plan, file)]) == {plan.key}


def files_of(target: Target) -> set[Path]:
    """Every data file in the table's folder, committed or not."""
    return set(target.table_path(TOPIC, DAYS).rglob("*.parquet"))


def test_a_task_alone_changes_nothing(target: Target) -> None:
    """Files are not part of the archive before the commit; an aborted job removes them."""
    plans = [make_plan(log_epoch=1), make_plan(log_epoch=2)]
    written = write(target, *plans)

    assert ArchiveTable(target, TOPIC).committed() == {}
    assert [epoch.equals(plan) for epoch, plan in zip(written.epochs, plans, strict=True)] == [
        True,
        True,
    ]
    writer_of(target, plans).abort([written, None])
    assert files_of(target) == set()


@proves("D10 under kills", guard="what an abort leaves")
def test_an_abort_after_the_commit_takes_nothing_out_of_the_archive(target: Target) -> None:
    """Spark aborts when the process that has committed dies before it can say so.

    Guard: what the table names stays; without it the Delta log names files that are gone.
    """
    plans = [make_plan(log_epoch=1), make_plan(log_epoch=2)]
    written, lost = write(target, *plans), write(target, plans[0])
    writer = writer_of(target, plans)
    writer.commit([written])
    writer.abort([written, lost])
    folder = target.table_path(TOPIC, DAYS)
    assert files_of(target) == {folder / epoch.file.path for epoch in written.epochs}


def test_a_task_that_fails_leaves_no_file(target: Target) -> None:
    """A gap in the middle of a log epoch, or a full disk: the begun file goes."""
    plan = make_plan()
    rows = with_epoch(_rows(plan), *plan.key)
    mark(target, INSTALLATION)
    create_table(target, TOPIC)

    with pytest.raises(ValueError, match="4 follows 2"):
        write_epoch(target, TOPIC, plan, iter([rows.slice(0, 2), rows.slice(3)]))
    assert files_of(target) == set()


def test_a_row_group_is_larger_than_a_batch(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends at a number of rows or of bytes, not where Spark happened to cut."""
    plan = make_plan(events=20)
    rows = with_epoch(_rows(plan), *plan.key)
    mark(target, INSTALLATION)
    create_table(target, TOPIC)
    monkeypatch.setattr(archive_writer, "ROW_GROUP_ROWS", 8)
    parts = [rows.slice(start, 3) for start in range(0, 20, 3)]
    written = write_epoch(target, TOPIC, plan, iter(parts))
    file = pq.ParquetFile(target.table_path(TOPIC, DAYS) / written.file.path)
    groups = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
    assert groups == [9, 9, 2]
    monkeypatch.setattr(archive_writer, "ROW_GROUP_BYTES", 1)
    again = write_epoch(target, TOPIC, plan, iter(parts))
    assert pq.ParquetFile(target.table_path(TOPIC, DAYS) / again.file.path).num_row_groups == 7


def test_a_task_that_ran_twice(target: Target) -> None:
    """Spark repeats tasks: only the file of the message that counts becomes part of the archive."""
    plan = make_plan()
    write(target, plan)
    written = write(target, plan)

    writer_of(target, [plan]).commit([written])

    ((entry,),) = ArchiveTable(target, TOPIC).committed().values()
    assert entry.path == written.epochs[0].file.path
    assert entry.event_count == plan.event_count
    assert len(files_of(target)) == 2


def test_committing_again_is_refused(target: Target) -> None:
    """A log epoch that is there stays as it is, and the second file goes."""
    plan = make_plan()
    first, second = write(target, plan), write(target, plan)
    writer = writer_of(target, [plan])

    writer.commit([first])
    writer.commit([second])

    ((entry,),) = ArchiveTable(target, TOPIC).committed().values()
    assert entry.path == first.epochs[0].file.path
    assert len(files_of(target)) == 1


@proves("D10 of two layouts", guard="the app transaction of a commit")
def test_two_committers_that_saw_the_same_table(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that comes second finds the other's file, though it looked before that was there.

    Guard: the app transaction of the commit; without it delta-rs appends both files.
    """
    plan = make_plan()
    first, second = write(target, plan), write(target, plan)
    stale = ArchiveTable(target, TOPIC)
    assert commit_epoch(target, plan, first.epochs[0].file)
    tables = iter([stale])
    monkeypatch.setattr(
        archive_commits,
        "create_table",
        lambda target, topic: next(tables, None) or create_table(target, topic),
    )

    assert not commit_epoch(target, plan, second.epochs[0].file)
    assert [len(files) for files in ArchiveTable(target, TOPIC).committed().values()] == [1]


def test_a_job_lists_what_the_table_holds_once(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at each commit: that would cost more with every log epoch that was ever archived."""
    plans = [make_plan(log_epoch=number) for number in range(1, 7)]
    written = write(target, *plans)
    listed: list[int] = []
    real = ArchiveTable.committed

    def counted(table: ArchiveTable, *wanted: Any) -> Committed:
        listed.append(1)
        return real(table, *wanted)

    monkeypatch.setattr(ArchiveTable, "committed", counted)
    writer_of(target, plans).commit([written])
    assert len(listed) == 1
    assert len(real(ArchiveTable(target, TOPIC))) == 6


def test_committers_that_are_open_at_once_see_each_other(target: Target) -> None:
    """What one has listed goes stale; its next commit finds out, and nothing is there twice."""
    plans = [make_plan(log_epoch=number) for number in (1, 2, 3)]
    keys = [plan.key for plan in plans]
    first, second = write(target, *plans).epochs, write(target, *plans).epochs
    one, other = (EpochCommitter(target, TOPIC, plans) for _ in range(2))
    assert one.commit([(plans[0], first[0].file)]) == {(0, 1)}
    assert other.commit([(plans[1], second[1].file)]) == {(0, 2)}
    both = [(plan, epoch.file) for plan, epoch in zip(plans[1:], first[1:], strict=True)]
    assert one.commit(both) == {(0, 3)}
    assert other.commit([(plans[0], second[0].file)]) == set()
    assert other.commit([(plans[2], second[2].file)]) == set()
    committed = ArchiveTable(target, TOPIC).committed()
    assert {key: len(files) for key, files in committed.items()} == dict.fromkeys(keys, 1)
    assert ArchiveTable(target, TOPIC).newest() == {0: (1, plans[2].last_sequence)}


def test_many_committers_at_once(target: Target) -> None:
    """Eight threads, four log epochs of two partitions: each is committed exactly once."""
    plans = [make_plan(partition, number) for partition in range(2) for number in (1, 2)]
    written = [write(target, *plans).epochs for _ in range(8)]
    start = threading.Barrier(8)

    def commit(epochs: tuple[WrittenEpoch, ...]) -> list[bool]:
        start.wait()
        return [
            commit_epoch(target, plan, epoch.file)
            for plan, epoch in zip(plans, epochs, strict=True)
        ]

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(commit, written))

    assert [sum(column) for column in zip(*won, strict=True)] == [1] * len(plans)
    committed = ArchiveTable(target, TOPIC).committed()
    assert {key: len(files) for key, files in committed.items()} == {plan.key: 1 for plan in plans}


def test_an_older_epoch_is_replaced_after_newer_ones(target: Target) -> None:
    """The app transaction's number does not stand in the way of a repair, nor of a late epoch."""
    plans = [make_plan(log_epoch=number) for number in (1, 2, 3)]
    for plan in (plans[0], plans[2], plans[1]):
        assert commit_epoch(target, plan, write(target, plan).epochs[0].file)
    before = ArchiveTable(target, TOPIC).committed()
    repair = dataclasses.replace(plans[0], replaces=(before[0, 1][0].path,))
    file = write(target, repair).epochs[0].file

    assert commit_epoch(target, repair, file)
    assert not commit_epoch(target, repair, write(target, repair).epochs[0].file)

    after = ArchiveTable(target, TOPIC).committed()
    assert [entry.path for entry in after[0, 1]] == [file.path]
    assert {key: after[key] for key in ((0, 2), (0, 3))} == {
        key: before[key] for key in ((0, 2), (0, 3))
    }
    table = ArchiveTable(target, TOPIC).delta(DAYS)
    assert table is not None
    newest = place_version(1, plans[2].last_sequence)
    assert table.transaction_version(f"{TOPIC}/0@local") == newest


def test_reading_back(target: Target) -> None:
    """Whole, missing, too short, and of another log: each is told apart."""
    plan = make_plan()
    file = target.table_path(TOPIC, DAYS) / write(target, plan).epochs[0].file.path

    def read(sealed: EpochPlan, *paths: Path) -> CopyReading:
        files = tuple((str(path), 0, -1) for path in paths)
        return read_copy(dataclasses.replace(sealed, files=files), target)

    assert read(plan, file).damage == ""
    assert read(plan).damage == "the table does not hold it"
    assert "No such file" in read(plan, file.with_name("gone")).damage
    other = read(make_plan(events=6), file)
    assert (other.damage, other.other_log) == ("5 events instead of 6", True)


def test_leftovers_of_killed_runs_go_after_their_time(target: Target) -> None:
    """Files that no commit names are removed once they are old, committed ones never."""
    plan = make_plan()
    committed = write(target, plan)
    write(target, plan)
    writer_of(target, [plan]).commit([committed])

    remove_leftovers(target, TOPIC)
    assert len(files_of(target)) == 2
    remove_leftovers(target, TOPIC, retention_hours=0)

    assert files_of(target) == {target.table_path(TOPIC, DAYS) / committed.epochs[0].file.path}


def test_tables_of_different_topics(target: Target) -> None:
    """Names that look alike have folders of their own; a foreign table is refused."""
    paths = {target.table_path(topic) for topic in ("a/b", "a-b", "A/B", "a/b ", "ü/b", "ö/b")}
    assert len(paths) == 6
    assert all(path.parent == target.root for path in paths)
    path = target.table_path("x/y", DAYS)
    path.parent.mkdir(parents=True)
    DeltaTable.create(str(path), FILE_SCHEMA, name="other")

    with pytest.raises(ConfigurationError, match="holds the archive of 'other'"):
        ArchiveTable(target, "x/y")


@pytest.mark.parametrize(
    ("name", "uri"), [("", "/tmp"), ("a b", "/tmp"), ("x" * 64, "/tmp"), ("ok", "gs://bucket/x")]
)
def test_bad_targets(name: str, uri: str) -> None:
    """A target that could not be recorded or written is refused when it is named."""
    with pytest.raises(ConfigurationError):
        Target(name, uri)


def test_target_by_uri(tmp_path: Path) -> None:
    """A path and its file: URI are the same place."""
    folder = tmp_path / "with blank"
    assert Target("a", folder.as_uri()).root == Target("a", str(folder)).root == folder


def test_a_table_is_created_once(tmp_path: Path) -> None:
    """Of runs that create one table at once, one makes the first commit, the others find it.

    Guard: the link in ``_create``; delta-rs itself commits two creations one after the other.
    """
    for number in range(20):
        target = Target("local", str(tmp_path / str(number)))
        start = threading.Barrier(4)

        def create(_: int, target: Target = target, start: threading.Barrier = start) -> str:
            start.wait()
            made = create_table(target, TOPIC).delta(DAYS)
            assert made is not None
            return f"{made.metadata().id} {made.version()}"

        with ThreadPoolExecutor(4) as pool:
            ids = set(pool.map(create, range(4)))

        (one,) = ids
        assert one.endswith(" 0")
        assert not list(target.root.glob(".creating-*"))
