"""Erasures in the archive: of every layout, killed anywhere, and beside runs of the archive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pytest

from ops.archive import copying, erasing, tombstones
from ops.archive.archiving import archive_epochs
from ops.archive.auditing import audit_copies
from ops.archive.commits import create_table
from ops.archive.epoch_reader import EpochReader
from ops.archive.read_back import plain_reader
from ops.archive.rollup import rollup
from ops.archive.verify import read_copy as read_back
from ops.archive.writer import ArchiveWriter, WrittenEpochs, write_epoch
from ops.backfill.missing import backfill
from ops.erase import erase, list_erasures
from ops.seal import copies_of, log_epochs
from penstock.archive.copies import key_of
from penstock.archive.format import FOLDERS
from penstock.archive.markers import require_target
from penstock.archive.table import ArchiveTable
from penstock.archive.targets import Target
from penstock.errors import CopyDamaged, EpochError, RetentionRefused, TargetUnavailable
from tests.archive import stalled_erase
from tests.archive.folders import bring_folders
from tests.archive.logs import Log, bring, plan_of, record
from tests.archive.test_rollup import day_files, yesterday
from tests.kit.copies import drop
from tests.kit.erasing import BY_KEY, WHO, WHY, archived, left_in, secret_log
from tests.kit.proof import proves

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def log(connection: psycopg.Connection[tuple[Any, ...]], database_url: str) -> Log:
    """A log with a secret in it, in three log epochs of each partition."""
    found = secret_log(connection, database_url)
    found.seal(max_events=4)
    return found


def _require_erased(log: Log, target: Target, before: list[Any]) -> None:
    """Nothing of the secret is left, all copies are recorded, and the rest is what it was."""
    assert left_in(target) == 0
    assert {each.state for each in copies_of(log.connection, log.topic)} == {"verified"}
    rows = archived(log, target)
    assert [row[:3] for row in rows] == [row[:3] for row in before]
    assert [row for row in rows if row[3] != WHO] == [row for row in before if row[3] != WHO]
    assert [row[7] for row in rows if row[3] == WHO] == [b""] * 6
    (found,) = list_erasures(log.connection)
    assert (found.events, found.finished_at is None) == (6, False)


@proves("what was erased is nowhere")
@pytest.mark.parametrize("dropped", [False, True])
def test_a_file_that_log_epochs_share_is_replaced_as_one(
    log: Log, target: Target, dropped: bool
) -> None:
    """Also those of which nothing was erased are read at their new place; the old file is gone."""
    before = log.rows()
    yesterday(log)
    bring(log, target, log_epochs(log.connection, log.topic))
    assert len(rollup(log.url, log.topic, target)) == 1
    (old,) = day_files(log, target)
    if dropped:
        drop(log.connection, log.topic, [target])
    done = erase(log.url, BY_KEY, WHY, [target])
    assert done.files == 1
    assert day_files(log, target) == list(target.root.rglob("*.parquet")) != [old]
    _require_erased(log, target, before)
    assert rollup(log.url, log.topic, target) == []


@pytest.mark.parametrize("dropped", [False, True])
def test_folders_of_layout_1_become_files_of_layout_2(
    log: Log, target: Target, dropped: bool
) -> None:
    before = log.rows()
    bring_folders(log, target, log_epochs(log.connection, log.topic))
    if dropped:
        drop(log.connection, log.topic, [target])
    assert erase(log.url, BY_KEY, WHY, [target]).files == 6
    assert ArchiveTable(target, log.known_as).committed_folders() == {}
    _require_erased(log, target, before)


@proves("what was erased is nowhere", how="killed anywhere")
@pytest.mark.parametrize("layout", [pytest.param(1, marks=pytest.mark.long), 2])
@pytest.mark.parametrize(
    "place",
    [
        pytest.param("before the check", marks=pytest.mark.long),
        pytest.param("before the commit", marks=pytest.mark.long),
        "after the commit",
        pytest.param("before the removal", marks=pytest.mark.long),
    ],
)
def test_an_erasure_that_is_killed_is_gone_on_with(
    log: Log, target: Target, place: str, layout: int
) -> None:
    """SIGKILL there; what only the archive has is read all the time, and the next run ends it.

    Guards: the commit before the record, the record before the removal.
    """
    before = log.rows()
    if layout == FOLDERS:
        bring_folders(log, target, log_epochs(log.connection, log.topic))
    else:
        yesterday(log)
        bring(log, target, log_epochs(log.connection, log.topic))
        rollup(log.url, log.topic, target)
    drop(log.connection, log.topic, [target])
    with subprocess.Popen(
        [sys.executable, "-m", "tests.archive.stalled_erase", place, log.url, target.uri],
        stdout=subprocess.PIPE, text=True,
    ) as run:  # fmt: skip
        assert run.stdout is not None
        assert run.stdout.readline() == "reached\n"
        os.kill(run.pid, signal.SIGKILL)
    assert {each.state for each in copies_of(log.connection, log.topic)} == {"verified"}
    assert [row[:3] for row in archived(log, target)] == [row[:3] for row in before]
    assert left_in(target) >= 6  # and in the files of before the rollup
    erase(log.url, BY_KEY, WHY, [target])
    _require_erased(log, target, before)


class _KilledError(Exception):
    """The end of a run, here."""


def _killed(log: Log, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """An erasure in a dropped log that ends after its commit, before it is recorded."""
    yesterday(log)
    bring(log, target, log_epochs(log.connection, log.topic))
    drop(log.connection, log.topic, [target])

    def end(*_: object) -> None:
        raise _KilledError

    with monkeypatch.context() as patch:
        patch.setattr(erasing, "_record", end)
        with pytest.raises(_KilledError):
            erase(log.url, BY_KEY, WHY, [target])


@proves("what was erased is nowhere", how="killed anywhere")
def test_what_a_killed_erasure_has_left_is_no_damage(
    log: Log, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are in the table, and the database has the checksums of before: it says so."""
    before = log.rows()
    _killed(log, target, monkeypatch)
    with pytest.raises(EpochError, match="events of it are being erased") as failure:
        audit_copies(plain_reader(log.url), log.url, log.topic, target)
    assert failure.value.hint is not None
    assert f'penstock erase --topic "{log.topic}" --key KEY' in failure.value.hint
    epochs = log_epochs(log.connection, log.topic)
    plans = copying.recorded_plans(log.url, target, epochs)
    readings = {key: read_back(plan, target) for key, plan in plans.items()}
    failed: copying.Failures = {}
    damaged = [each for each in epochs if readings[key_of(each)].damage]
    assert tombstones.not_of_other_logs(log.url, damaged, readings, failed) == []
    assert len(failed) == 6
    assert all("run the same command again" in each for each in failed.values())
    erase(log.url, BY_KEY, WHY, [target])
    _require_erased(log, target, before)


@proves("what was erased is nowhere", guard="nobody forgets what it has written")
def test_without_the_guard_an_audit_takes_the_copies_from_an_erasure(
    log: Log, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: it forgets them, and the erasure finds nothing to go on with."""
    _killed(log, target, monkeypatch)
    monkeypatch.setattr(tombstones, "require_ended", lambda *_: None)
    assert len(audit_copies(plain_reader(log.url), log.url, log.topic, target).forgotten) == 6
    with pytest.raises(EpochError, match="no target gives log epoch"):
        erase(log.url, BY_KEY, WHY, [target])


def test_the_places_are_those_of_the_program() -> None:
    assert all(hasattr(erasing, name) for name in stalled_erase.PLACES.values())


def _slow_archive(log: Log, target: Target, *, written: bool) -> Callable[[], None]:
    """A run of the archive that has read a log epoch, or written it too; the call goes on."""
    (plan,) = map(plan_of, log_epochs(log.connection, log.topic)[:1])
    installation = require_target(log.url, target, write=True)
    create_table(target, log.known_as)
    reader = EpochReader(log.url, log.topic)
    writer = ArchiveWriter(target, installation, log.known_as, [plan], reader)
    batches = list(reader.read(plan))

    def write() -> WrittenEpochs:
        return WrittenEpochs((write_epoch(target, log.known_as, plan, iter(batches)),))

    files = [write()] if written else []

    def go_on() -> None:
        writer.commit([*(files or [write()])])

    return go_on


@proves("no copy with old bytes counts")
def test_a_slower_run_of_the_archive_brings_nothing_back(log: Log, target: Target) -> None:
    """Its copy is not recorded, and it replaces what it has committed."""
    before = log.rows()
    epochs = log_epochs(log.connection, log.topic)
    go_on = _slow_archive(log, target, written=False)
    erase(log.url, BY_KEY, WHY, [target])
    go_on()
    with pytest.raises(RetentionRefused):
        record(log, target, epochs[:1])
    assert left_in(target) == 1
    assert copies_of(log.connection, log.topic) == []
    job = copying.CopyJob(cast("SparkSession", None), log.url, target, "")
    copying._rewrite_erased(job, epochs[:1])
    assert left_in(target) == 0
    bring(log, target, log_epochs(log.connection, log.topic)[1:])
    _require_erased(log, target, before)


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("written", [False, True])
def test_the_next_run_mends_what_a_slower_one_has_committed(
    log: Log, target: Target, spark: SparkSession, written: bool
) -> None:
    """A file that was there when the events were erased is gone: then backfill makes it again."""
    before = log.rows()
    go_on = _slow_archive(log, target, written=written)
    erase(log.url, BY_KEY, WHY, [target])
    go_on()
    assert left_in(target) == (0 if written else 1)
    if written:
        with pytest.raises(copying.CopiesFailed, match="run backfill"):
            archive_epochs(spark, log.url, log.topic, target)
        backfill(spark, log.url, log.topic, target)
    else:
        assert len(archive_epochs(spark, log.url, log.topic, target)) == 6
    _require_erased(log, target, before)


def test_a_damaged_or_missing_copy_stops_it_and_nothing_is_lost(
    log: Log, target: Target, tmp_path: Path
) -> None:
    """What only that copy had is not erased; another target helps."""
    before = log.rows()
    second = Target("second", str(tmp_path / "second"))
    epochs = log_epochs(log.connection, log.topic)
    bring(log, target, epochs)
    bring(log, second, epochs)
    drop(log.connection, log.topic, [target])
    path = day_files(log, target)[0]
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TargetUnavailable, match="second"):
        erase(log.url, BY_KEY, WHY, [target])
    with pytest.raises(EpochError, match="no target gives log epoch"):
        erase(log.url, BY_KEY, WHY, [target], without=["second"])
    assert list_erasures(log.connection) == []
    with pytest.raises(CopyDamaged):
        erase(log.url, BY_KEY, WHY, [second, target])
    assert left_in(second) == 0
    path.write_bytes(whole)
    erase(log.url, BY_KEY, WHY, [second, target])
    assert left_in(second, target) == 0
    _require_erased(log, target, before)
