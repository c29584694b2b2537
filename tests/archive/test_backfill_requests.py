"""Backfill requests of the kind copy: missing and damaged copies are made again by Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ops.backfill import requests as requests
from ops.backfill.missing import audit_files
from ops.backfill.requests import COPY
from ops.backfill.running import run_due
from ops.backfill.workers import workers
from ops.seal import log_epochs
from penstock.archive.table import ArchiveTable
from penstock.archive.targets import Target
from tests.archive.logs import Log, bring
from tests.kit.backfill import DONE, EPOCHS, EVENTS, filled, places, state_of, target
from tests.kit.log import Connection, known_as
from tests.kit.stream import STREAM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
#: Each log epoch is a job of Spark.
FEW = 3


def _archived(url: str, connection: Any, folder: Path, epochs: int) -> None:
    """A log that the database has dropped, and its archive on one target."""

    def copy(own: Any, topic: str, place: Target) -> object:
        return bring(Log(own, url, topic), place, log_epochs(own, topic))

    filled(connection, folder, dropped=True, epochs=epochs, copy=copy)


def _lose(connection: Any, place: Target, log_epoch: int) -> None:
    """The file of a log epoch is gone."""
    table = ArchiveTable(place, known_as(connection, STREAM))
    committed = table.committed()
    (entry,) = committed[0, log_epoch]
    paths = [(key, each.path) for key, found in committed.items() for each in found]
    assert [key for key, path in paths if path == entry.path] == [(0, log_epoch)]
    place.store.delete(table.file(entry))


def _ask(connection: Any, name: str = "two") -> int:
    return requests.request_backfill(connection, STREAM, COPY, name).request


def test_what_a_target_lacks_is_made_there(
    spark: SparkSession, database_url: str, connection: Connection, tmp_path: Path
) -> None:
    """From another target, because the database has dropped it; then a file is lost."""
    _archived(database_url, connection, tmp_path, FEW)
    dry = requests.request_backfill(connection, STREAM, COPY, "two", dry_run=True)
    asked = _ask(connection)
    (result,) = run_due(database_url, workers(places(tmp_path)))
    assert (result.state, result.done_events) == ("done", dry.total_events)
    assert state_of(connection, asked) == ("done", FEW, FEW * EVENTS)
    assert {each.targets for each in log_epochs(connection, STREAM)} == {("one", "two")}
    two = Target("two", str(tmp_path / "two"))
    _lose(connection, two, 2)
    assert len(audit_files(database_url, STREAM, two)) == 1
    again = requests.request_backfill(connection, STREAM, COPY, "two")
    assert (again.units, again.total_events) == (1, EVENTS)
    (result,) = run_due(database_url, workers(places(tmp_path)))
    assert (result.state, result.done_events) == ("done", EVENTS)
    assert audit_files(database_url, STREAM, two) == []


def test_what_cannot_be_made_stops_no_other(
    spark: SparkSession, database_url: str, connection: Connection, tmp_path: Path
) -> None:
    """Of one log epoch there is no copy any more: all others are made."""
    _archived(database_url, connection, tmp_path, FEW)
    _lose(connection, target(tmp_path), 2)
    asked = _ask(connection)
    (result,) = run_due(database_url, workers(places(tmp_path)))
    assert result.state == "waiting"
    assert "partition 0, 8 to 14" in result.error
    assert state_of(connection, asked) == ("waiting", FEW - 1, (FEW - 1) * EVENTS)


@pytest.mark.long
def test_a_killed_runner_repeats_one_copy_at_most(
    spark: SparkSession, database_url: str, connection: Connection, tmp_path: Path
) -> None:
    """SIGKILL at 40 %, after the copy is recorded and before the range is."""
    _archived(database_url, connection, tmp_path, EPOCHS)
    asked = _ask(connection)
    program = [sys.executable, "-m", "tests.kit.backfill", database_url, str(tmp_path)]
    killed = subprocess.run([*program, "one-runner", DONE, "4"], cwd=ROOT, check=False)
    assert killed.returncode == -9
    assert state_of(connection, asked)[:2] == ("running", 3)
    connection.execute("UPDATE penstock.backfill_requests SET deadline = '2020-01-01'")
    before = _changed(connection)
    assert len(before) == 4
    subprocess.run([*program, "another"], cwd=ROOT, check=True)
    assert state_of(connection, asked) == ("done", EPOCHS, EPOCHS * EVENTS)
    begun = [(tmp_path / name).read_bytes().count(b"begun") for name in ("one-runner", "another")]
    assert begun == [4, 7]
    after = _changed(connection)
    assert len({key for key in before if before[key] != after[key]}) <= 1


def _changed(connection: Connection) -> dict[int, Any]:
    """When the copy of each log epoch on the second target was recorded."""
    rows = connection.execute(
        "SELECT log_epoch, changed_at FROM penstock.epoch_copies WHERE target = 'two'"
    )
    return dict(rows.fetchall())
