"""Both layouts in one archive: read, verified, mended; and files that hold many log epochs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ops.archive.archiving import CopiesFailed, archive_epochs
from ops.archive.auditing import audit_copies
from ops.archive.read_back import plain_reader, spark_reader
from ops.archive.rollup import rollup
from ops.backfill.missing import audit_files, backfill, tidy
from ops.seal import copies_of, log_epochs
from penstock.archive.copies import key_of
from penstock.archive.table import ArchiveTable
from penstock.archive.targets import Target
from tests.archive.folders import bring_folders
from tests.archive.logs import Log, archived_rows, bring, flip, only_file, read_by_tasks, states
from tests.archive.test_rollup import manifest_rows, yesterday
from tests.kit.proof import proves

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def layouts(log: Log) -> list[int]:
    """The layout of each copy."""
    return [each.layout for each in copies_of(log.connection, log.topic)]


@pytest.fixture
def mixed(log: Log, target: Target) -> Log:
    """Two log epochs of each partition in layout 1, and two in layout 2, sealed yesterday."""
    log.publish_odd()
    log.publish_many(36)
    log.seal(max_events=6)
    yesterday(log)
    epochs = log_epochs(log.connection, log.topic)
    bring_folders(log, target, [each for each in epochs if each.log_epoch <= 2])
    bring(log, target, [each for each in epochs if each.log_epoch > 2])
    return log


@proves("D10 of two layouts")
def test_copies_of_both_layouts_are_read_verified_and_kept(
    spark: SparkSession, mixed: Log, target: Target
) -> None:
    assert sorted(set(layouts(mixed))) == [1, 2]
    assert archived_rows(target, mixed) == manifest_rows(mixed, target) == mixed.rows()
    readings = read_by_tasks(spark, mixed, target)
    assert [each.damage for each in readings] == [""] * 8
    assert audit_files(mixed.url, mixed.topic, target) == []
    read = spark_reader(lambda: spark, mixed.url)
    assert audit_copies(read, mixed.url, mixed.topic, target).forgotten == ()
    before = set(target.root.rglob("*.parquet"))
    assert [copy.written for copy in archive_epochs(spark, mixed.url, mixed.topic, target)] == [
        False
    ] * 8
    assert backfill(spark, mixed.url, mixed.topic, target) == []
    tidy(mixed.url, mixed.topic, target, hours=0)
    assert set(target.root.rglob("*.parquet")) == before


@proves("D10 of two layouts")
def test_a_damaged_copy_of_layout_1_is_mended_into_layout_2(
    spark: SparkSession, mixed: Log, target: Target
) -> None:
    """It is in one of the tables, never in both: guard, `_take_out_folders`."""
    only_file(target, mixed, (0, 1)).unlink()
    file = only_file(target, mixed, (1, 2))
    file.write_bytes(file.read_bytes()[:-50])
    assert len(audit_files(mixed.url, mixed.topic, target)) == 2
    made = backfill(spark, mixed.url, mixed.topic, target)
    assert sorted(key_of(each.epoch) for each in made) == [(0, 1), (1, 2)]
    committed = ArchiveTable(target, mixed.known_as).committed()
    assert [len(files) for files in committed.values()] == [1] * 8
    assert sorted(layouts(mixed)) == [1] * 2 + [2] * 6
    assert archived_rows(target, mixed) == manifest_rows(mixed, target) == mixed.rows()


@proves("D10 of two layouts")
@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_a_damaged_file_with_many_log_epochs_is_mended(
    spark: SparkSession, log: Log, target: Target, damage: Callable[[Path], None]
) -> None:
    """All that lay in it is written again, in one commit; nothing is lost and nothing twice.

    Guards: `together` of the plans, and the manifest that says what a lost file held.
    """
    log.publish_odd()
    log.publish_many(36)
    log.seal(max_events=6)
    yesterday(log)
    epochs = log_epochs(log.connection, log.topic)
    bring(log, target, epochs)
    (made,) = rollup(log.url, log.topic, target)
    damage(only_file(target, log, (0, 1)))

    found = audit_copies(plain_reader(log.url), log.url, log.topic, target).forgotten
    assert found
    assert states(log).count("missing") == len(found)
    backfill(spark, log.url, log.topic, target)

    committed = ArchiveTable(target, log.known_as).committed()
    assert {key: len(files) for key, files in committed.items()} == {key_of(e): 1 for e in epochs}
    assert made.file not in {each.path for files in committed.values() for each in files}
    assert set(states(log)) == {"verified"}
    assert archived_rows(target, log) == manifest_rows(log, target) == log.rows()
    assert len(rollup(log.url, log.topic, target)) == 1
    assert archived_rows(target, log) == manifest_rows(log, target) == log.rows()


@proves("D10 of two layouts")
def test_a_damaged_file_is_not_replaced_while_a_part_of_it_cannot_be_made(
    spark: SparkSession, log: Log, target: Target
) -> None:
    """What is lost for good keeps its file: the others in it are not thrown away with it."""
    log.publish_many(24)
    log.seal(max_events=6)
    yesterday(log)
    bring(log, target, log_epochs(log.connection, log.topic))
    rollup(log.url, log.topic, target)
    file = only_file(target, log, (0, 1))
    flip(file)
    log.connection.execute("UPDATE penstock.partitions SET low_sequence = 7 WHERE id & 65535 = 0")
    audit_copies(plain_reader(log.url), log.url, log.topic, target)
    before = ArchiveTable(target, log.known_as).committed()
    with pytest.raises(CopiesFailed, match="no whole copy of them is left on any target"):
        backfill(spark, log.url, log.topic, target)
    assert ArchiveTable(target, log.known_as).committed() == before
    assert file.exists()
