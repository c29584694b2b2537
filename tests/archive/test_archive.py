"""Archive and backfill with Spark: the archive is the log, byte for byte, whatever goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest

from ops.archive import copying
from ops.archive.archiving import (
    CopiesFailed,
    archive_epochs,
)
from ops.archive.auditing import audit_copies
from ops.archive.copying import CopyJob
from ops.archive.plans import EpochPlan
from ops.archive.read_back import spark_reader
from ops.backfill.missing import audit_files, backfill
from ops.seal import log_epochs
from penstock.archive.checksum import EpochChecksum
from penstock.archive.copies import key_of
from penstock.archive.format import DAYS
from penstock.archive.markers import adopt_target
from penstock.archive.table import ArchiveTable, place_version
from penstock.archive.targets import Target
from penstock.errors import EpochError, TargetUnavailable
from penstock.records import LogEpoch
from tests.archive.logs import Log, archived_rows, archived_table, only_file, read_by_tasks, states
from tests.kit.proof import proves

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The first test pays for the start of Spark; a call that is cut off would break all others.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def versions(target: Target, log: Log) -> int:
    """The version of the archive's table."""
    table = ArchiveTable(target, log.known_as).delta(DAYS)
    assert table is not None
    return table.version()


@proves("D10 on every engine")
def test_archive_is_the_log(spark: SparkSession, log: Log, target: Target) -> None:
    """Every column of every event, its checksum in SQL, in Python and in Spark, and no more."""
    log.publish_odd()
    log.publish_many(1_000)
    sealed = log.seal(max_events=300)

    copies = archive_epochs(spark, log.url, log.topic, target)

    assert [copy.epoch.checksum for copy in copies] == [
        epoch.checksum for epoch in sorted(sealed, key=key_of)
    ]
    assert all(copy.written for copy in copies)
    assert archived_rows(target, log) == log.rows()
    assert [epoch.targets for epoch in log_epochs(log.connection, log.topic)] == [("local",)] * len(
        sealed
    )
    assert [reading.damage for reading in read_by_tasks(spark, log, target)] == [""] * len(sealed)
    archived = archived_table(target, log.known_as)
    for epoch in sealed:
        chosen = (pc.field("partition") == epoch.partition) & (
            pc.field("log_epoch") == epoch.log_epoch
        )
        checksum = EpochChecksum()
        for batch in archived.filter(chosen).sort_by("sequence").to_batches():
            checksum.add(batch)
        assert checksum.hexdigest() == epoch.checksum
        assert checksum.event_count == epoch.event_count


def test_commit_metadata(spark: SparkSession, log: Log, target: Target) -> None:
    """One commit for the log epochs of a job, which says what it holds."""
    log.publish_odd()
    (first, second) = log.seal()

    archive_epochs(spark, log.url, log.topic, target)

    table = ArchiveTable(target, log.known_as).delta(DAYS)
    assert table is not None
    (said,) = (entry["log_epochs"] for entry in table.history() if "log_epochs" in entry)
    assert said == [
        {
            "partition": epoch.partition,
            "log_epoch": epoch.log_epoch,
            "first_sequence": epoch.first_sequence,
            "last_sequence": epoch.last_sequence,
            "event_count": epoch.event_count,
            "checksum": epoch.checksum,
        }
        for epoch in (first, second)
    ]
    newest = place_version(1, first.last_sequence)
    assert table.transaction_version(f"{log.known_as}/0@local") == newest


def test_repeating_is_a_no_op(spark: SparkSession, log: Log, target: Target) -> None:
    """An archived log epoch is answered, not written again; one that is new is added."""
    log.publish_odd()
    (first, second) = log.seal()
    archive_epochs(spark, log.url, log.topic, target, [key_of(first)])
    before = versions(target, log)

    again = archive_epochs(spark, log.url, log.topic, target, [key_of(first)])
    assert [copy.written for copy in again] == [False]
    assert versions(target, log) == before

    both = archive_epochs(spark, log.url, log.topic, target)
    assert [(key_of(copy.epoch), copy.written) for copy in both] == [
        (key_of(first), False),
        (key_of(second), True),
    ]
    assert archived_rows(target, log) == log.rows()


def test_an_unknown_epoch_is_refused(spark: SparkSession, log: Log, target: Target) -> None:
    """Only what is sealed can be archived."""
    with pytest.raises(EpochError, match=r"no sealed log epoch .*\(0, 1\)"):
        archive_epochs(spark, log.url, log.topic, target, [(0, 1)])


def test_committed_but_not_recorded(spark: SparkSession, log: Log, target: Target) -> None:
    """A run that died between the commit and the record is finished, and nothing is rewritten."""
    log.publish_odd()
    (first, _) = log.seal()
    archive_epochs(spark, log.url, log.topic, target)
    log.connection.execute("DELETE FROM penstock.epoch_copies")
    before = versions(target, log)

    copies = archive_epochs(spark, log.url, log.topic, target)

    assert [copy.written for copy in copies] == [False, False]
    assert versions(target, log) == before
    assert log_epochs(log.connection, log.topic)[0].targets == ("local",)
    assert log_epochs(log.connection, log.topic)[0].checksum == first.checksum


def test_readers_see_only_committed_files(spark: SparkSession, log: Log, target: Target) -> None:
    """A file that a killed run left in the folder is not part of the archive.

    Guard: the file list of the Delta log; with a glob of the directory the rows appear twice.
    """
    log.publish_odd()
    log.seal()
    archive_epochs(spark, log.url, log.topic, target)
    file = only_file(target, log, (0, 1))
    file.with_name("left-by-a-killed-run.parquet").write_bytes(file.read_bytes())

    assert archived_rows(target, log) == log.rows()


def test_racing_runs(spark: SparkSession, log: Log, target: Target) -> None:
    """Two runs over the same log epochs: each is committed once, both runs succeed."""
    log.publish_odd()
    log.publish_many(400)
    sealed = log.seal(max_events=100)

    def run(_: int) -> list[Any]:
        return archive_epochs(spark, log.url, log.topic, target)

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(run, range(2)))

    assert [len(copies) for copies in results] == [len(sealed)] * 2
    committed = ArchiveTable(target, log.known_as).committed()
    assert {key: len(files) for key, files in committed.items()} == {
        key_of(epoch): 1 for epoch in sealed
    }
    assert archived_rows(target, log) == log.rows()


def test_a_changed_event_is_not_archived(spark: SparkSession, log: Log, target: Target) -> None:
    """What differs from its seal never gets into the table; the others do.

    Guard: the comparison with the seal before the commit, in ``ArchiveWriter.commit``.
    """
    log.publish_odd()
    log.seal()
    log.connection.execute(
        "UPDATE penstock.events SET payload = 'other' WHERE id = (SELECT min(id) FROM"
        " penstock.events WHERE partition_id & 65535 = 1)"
    )

    with pytest.raises(EpochError, match=r"log epoch 1 of .*/1: the table does not hold it"):
        archive_epochs(spark, log.url, log.topic, target)

    committed = ArchiveTable(target, log.known_as).committed()
    assert committed.keys() == {(0, 1)}
    assert len(list(target.root.rglob("*.parquet"))) == 1
    assert [epoch.targets for epoch in log_epochs(log.connection, log.topic)] == [("local",), ()]


def _truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


@pytest.mark.parametrize("damage", [Path.unlink, _truncate])
def test_lost_files_are_made_again(
    spark: SparkSession, log: Log, target: Target, damage: Callable[[Path], None]
) -> None:
    """A lost or cut file: verify says so, backfill finds and replaces it, nothing is there twice.

    Guard: the removal of the old file in the same commit (`replaces`); without it the table
    names a file that is gone.
    """
    log.publish_odd()
    (first, second) = log.seal()
    archive_epochs(spark, log.url, log.topic, target)
    damage(only_file(target, log, key_of(first)))

    readings = read_by_tasks(spark, log, target)
    made = backfill(spark, log.url, log.topic, target)

    assert [(reading.key, reading.damage != "") for reading in readings] == [
        (key_of(first), True),
        (key_of(second), False),
    ]
    assert [(key_of(copy.epoch), copy.written) for copy in made] == [(key_of(first), True)]
    assert archived_rows(target, log) == log.rows()
    assert log_epochs(log.connection, log.topic)[0].targets == ("local",)


def test_changed_bytes_are_found_and_repaired(
    spark: SparkSession, log: Log, target: Target
) -> None:
    """A file of the right size with other bytes: only reading it back shows it."""
    log.publish_odd()
    (first, _) = log.seal()
    archive_epochs(spark, log.url, log.topic, target)
    file = only_file(target, log, key_of(first))
    content = file.read_bytes()
    file.write_bytes(content[:4] + bytes(byte ^ 0xFF for byte in content[4:400]) + content[400:])

    assert audit_files(log.url, log.topic, target) == []
    read = spark_reader(lambda: spark, log.url)
    (forgotten,) = audit_copies(read, log.url, log.topic, target).forgotten
    assert (forgotten.partition, forgotten.log_epoch) == key_of(first)
    assert len(backfill(spark, log.url, log.topic, target)) == 1
    assert not read_by_tasks(spark, log, target)[0].damage
    assert archived_rows(target, log) == log.rows()


def test_archive_does_not_replace(spark: SparkSession, log: Log, target: Target) -> None:
    """Archiving over a damaged, forgotten copy is an error that names backfill."""
    log.publish_odd()
    (first, _) = log.seal()
    archive_epochs(spark, log.url, log.topic, target)
    only_file(target, log, key_of(first)).unlink()
    assert len(audit_files(log.url, log.topic, target)) == 1

    with pytest.raises(EpochError, match="run backfill"):
        archive_epochs(spark, log.url, log.topic, target)
    assert len(backfill(spark, log.url, log.topic, target)) == 1


def test_the_whole_target_is_lost(spark: SparkSession, log: Log, target: Target) -> None:
    """An archive that was removed as a whole is made again, once somebody says that it is lost.

    Guard: the marker; a disk that is not mounted looks the same, see test_markers.
    """
    log.publish_odd()
    sealed = log.seal()
    archive_epochs(spark, log.url, log.topic, target)
    target.root.rename(target.root.with_name("lost"))
    with pytest.raises(TargetUnavailable, match="penstock target adopt"):
        backfill(spark, log.url, log.topic, target)

    assert adopt_target(log.url, target, even_without_copies=True)
    assert len(backfill(spark, log.url, log.topic, target)) == len(sealed)
    assert archived_rows(target, log) == log.rows()


def test_another_logs_archive_is_not_replaced(
    spark: SparkSession, log: Log, target: Target
) -> None:
    """An old database's archive under the same name: refused, and untouched."""
    log.publish_odd()
    log.seal()
    archive_epochs(spark, log.url, log.topic, target)
    before = archived_rows(target, log)
    log.connection.execute("TRUNCATE penstock.epoch_copies, penstock.log_epochs")
    log.connection.execute("UPDATE penstock.events SET payload = 'another log'")
    log.seal()

    with pytest.raises(EpochError, match="another log"):
        backfill(spark, log.url, log.topic, target)
    assert archived_rows(target, log) == before


def test_a_place_that_cannot_be_written(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    """A target that cannot be written leaves nothing recorded."""
    log.publish_odd()
    log.seal()
    (tmp_path / "file").write_text("not a directory")

    with pytest.raises(TargetUnavailable, match="file is a file, and no directory"):
        archive_epochs(spark, log.url, log.topic, Target("local", str(tmp_path / "file" / "x")))
    assert all(not epoch.targets for epoch in log_epochs(log.connection, log.topic))


@proves("D10 of many")
def test_one_that_cannot_be_made_among_many_stops_no_other(
    spark: SparkSession, log: Log, target: Target
) -> None:
    """The database has dropped the first and no source has it: all others are made."""
    assert _made_without_the_first(spark, log, target, count=8) == 7


@pytest.mark.long
@pytest.mark.timeout(900)
def test_of_100_with_one_that_cannot_be_made_99_are_made(
    spark: SparkSession, log: Log, target: Target
) -> None:
    """The same over several Spark jobs."""
    assert _made_without_the_first(spark, log, target, count=100) == 99


def _made_without_the_first(spark: SparkSession, log: Log, target: Target, count: int) -> int:
    """How many copies a backfill makes of so many log epochs, the first of which is gone."""
    log.publish_many(count)
    sealed = log.seal(max_events=1)
    lost = sealed[0]
    log.connection.execute(
        "UPDATE penstock.partitions SET low_sequence = 2 WHERE number = %s", (lost.partition,)
    )

    with pytest.raises(CopiesFailed, match="no longer in the database") as caught:
        backfill(spark, log.url, log.topic, target)

    assert len(sealed) == count
    assert [key_of(each.epoch) for each in caught.value.failed] == [key_of(lost)]
    assert states(log) == ["verified"] * (count - 1)
    return len(caught.value.made)


@proves("D10 of many")
def test_a_task_that_fails_stops_no_other_log_epoch(
    spark: SparkSession, log: Log, target: Target
) -> None:
    """A failed Spark job is tried in halves, until what is at fault is alone and named.

    Guard: the halves in `_write`.
    """
    log.publish_many(6)
    sealed = log.seal(max_events=3)
    log.connection.execute(
        "DELETE FROM penstock.events WHERE id = (SELECT c.event_ids[2] FROM penstock.chunks AS c"
        " JOIN penstock.partitions AS p ON p.id = c.partition_id WHERE p.number = 0"
        " ORDER BY c.first_sequence LIMIT 1)"
    )
    real = vars(copying)["_write_once"]
    jobs: list[int] = []

    def write_once(job: CopyJob, of: LogEpoch, plans: list[EpochPlan]) -> None:
        jobs.append(len(plans))
        real(job, of, plans)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copying, "_write_once", write_once)
        with pytest.raises(CopiesFailed, match="events from sequence 1 on were dropped") as caught:
            archive_epochs(spark, log.url, log.topic, target)

    assert [key_of(each.epoch) for each in caught.value.failed] == [(0, 1)]
    assert len(caught.value.made) == len(sealed) - 1 == 1
    assert jobs == [2, 1, 1]
