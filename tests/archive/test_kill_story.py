"""Many log epochs, archived while tasks, commits, jobs and drivers are killed: the log, once."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import pytest

from ops.archive import copying, manifest
from ops.archive.archiving import CopiesFailed, archive_epochs
from ops.seal import log_epochs
from penstock.archive.copies import Copy, key_of
from penstock.archive.table import ArchiveTable
from penstock.archive.targets import Target
from tests.archive.fuses import PLACES, FusedSink, fuse
from tests.archive.logs import Log, archived_rows, read_by_tasks
from tests.kit.proof import proves
from tests.kit.standing import standing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

EVENTS = 5
#: The small form has two jobs of Spark, if none is killed.
SMALL = 8
EPOCHS_PER_JOB = 4


class Killed(BaseException):
    """The driver ends here; no handler of the program sees it as an error."""


def _archived(spark: SparkSession, log: Log, target: Target, at: Collection[int], runs: int) -> int:
    """Archive until nothing is left to do; returns how many runs did not come to their end."""
    recorded = 0
    real = manifest.record

    def record(connection: Any, topic: str, copy: Copy) -> None:
        nonlocal recorded
        recorded += 1
        if recorded in at:
            raise Killed
        real(connection, topic, copy)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copying, "ArchiveSink", FusedSink)
        patch.setattr(copying, "EPOCHS_PER_JOB", EPOCHS_PER_JOB)
        patch.setattr(manifest, "record", record)
        for died in range(runs):
            try:
                archive_epochs(spark, log.url, log.topic, target)
            except (Killed, CopiesFailed):
                continue
            return died
    raise AssertionError("it does not come to an end")


@proves("D10 under kills")
@pytest.mark.parametrize(
    ("epochs", "fuses", "seed"),
    [
        (SMALL, 1, 5),
        pytest.param(200, 12, 11, marks=[pytest.mark.long, pytest.mark.timeout(7_200)]),
    ],
)
def test_the_archive_equals_the_log_whatever_is_killed(
    spark: SparkSession, log: Log, target: Target, *, epochs: int, fuses: int, seed: int
) -> None:
    """SIGKILL of tasks, of commits before and after, and the driver's end while it records.

    The long form begins with a SIGKILL of driver, JVM and workers between commit and record.

    Guards: only files that the Delta log names are read; a commit never takes a log epoch twice;
    an abort takes out nothing that was committed; nothing is recorded that was not read back.
    """
    rng = random.Random(seed)
    log.publish_many(epochs * EVENTS)
    sealed = log.seal(max_events=EVENTS)
    assert len(sealed) == epochs
    if epochs > SMALL:
        marker = target.root.with_name("reached")
        arguments = ["before_record", str(marker), log.url, log.topic, target.uri]
        with standing("tests.archive.stalled", *arguments, marker=marker):
            pass
    done = ArchiveTable(target, log.known_as).committed()
    left = [epoch for epoch in sealed if key_of(epoch) not in done]
    assert len(left) == epochs if epochs == SMALL else SMALL < len(left) < epochs
    target.root.with_name("fuses").mkdir()
    places = [fuse(target, place, key_of(epoch)) for place in PLACES
              for epoch in rng.sample(left, fuses)]  # fmt: skip
    for place in places:
        place.touch()
    died = _archived(spark, log, target, rng.sample(range(1, epochs), fuses), 10 * fuses)

    assert died >= fuses
    assert not any(place.exists() for place in places)
    committed = ArchiveTable(target, log.known_as).committed()
    assert {key: len(files) for key, files in committed.items()} == {
        key_of(epoch): 1 for epoch in sealed
    }
    readings = read_by_tasks(spark, log, target)
    assert [each.damage for each in readings] == [""] * epochs
    assert {each.checksum for each in readings} == {epoch.checksum for epoch in sealed}
    assert archived_rows(target, log) == log.rows()
    assert all(each.targets == ("local",) for each in log_epochs(log.connection, log.topic))
