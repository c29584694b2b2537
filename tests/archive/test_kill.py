"""A killed archive run leaves no half log epoch, and repeating it is safe."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from ops.archive.archiving import archive_epochs, read_archive
from ops.seal import log_epochs
from penstock.archive.copies import key_of
from penstock.archive.table import ArchiveTable
from penstock.archive.targets import Target
from tests.archive.logs import Log, archived_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

#: Two Sparks on a busy machine; a quiet one needs a tenth of it.
_START_SECONDS = 240


@contextlib.contextmanager
def stalled_run(place: str, log: Log, target: Target, marker: Path) -> Iterator[None]:
    """A run in processes of its own that stands at the place; the end kills all of them."""
    arguments = [place, str(marker), log.url, log.topic, target.uri]
    output = marker.with_suffix(".log")
    with output.open("wb") as stream:
        run = subprocess.Popen(
            [sys.executable, "-m", "tests.archive.stalled", *arguments],
            stdout=stream,
            stderr=stream,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + _START_SECONDS
            while not marker.exists():
                assert run.poll() is None, output.read_text()[-4000:]
                assert time.monotonic() < deadline, output.read_text()[-4000:]
                time.sleep(0.05)
            yield
        finally:
            children = psutil.Process(run.pid).children(recursive=True)
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            psutil.wait_procs(children, timeout=10)


@pytest.mark.parametrize(
    ("place", "committed"),
    [
        ("between_commits", {(0, 1)}),
        pytest.param("before_record", {(0, 1), (1, 1)}, marks=pytest.mark.long),
    ],
)
def test_kill(
    spark: SparkSession, log: Log, target: Target, place: str, committed: set[tuple[int, int]]
) -> None:
    """SIGKILL to driver, JVM and workers: what was committed is whole, the rest is not there.

    Guard: nothing is recorded before the commit was read back, and only files that the Delta log
    names are read; a reader of the folder sees the killed run's file of the second log epoch.
    """
    log.publish_odd()
    sealed = log.seal()
    with stalled_run(place, log, target, target.root.with_name("reached")):
        assert len(list(target.root.rglob("*.parquet"))) == len(sealed)

    table = ArchiveTable(target, log.known_as).committed()
    archived = read_archive(spark, target, log.known_as).select("partition", "log_epoch").distinct()
    assert table.keys() == {tuple(row) for row in archived.collect()} == committed
    recorded = {key_of(epoch) for epoch in log_epochs(log.connection, log.topic) if epoch.targets}
    assert recorded == (committed if place == "between_commits" else set())

    copies = archive_epochs(spark, log.url, log.topic, target)

    rewritten = {key_of(copy.epoch) for copy in copies if copy.written}
    assert rewritten == {(0, 1), (1, 1)} - committed
    assert archived_rows(spark, target, log) == log.rows()
    assert all(epoch.targets == ("local",) for epoch in log_epochs(log.connection, log.topic))
