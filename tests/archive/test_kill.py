"""A killed archive run leaves no half log epoch, and repeating it is safe.

Each test starts a second Spark.  What `make test` has of this is in test_kill_story, where the
processes of one Spark are killed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ops.archive.archiving import archive_epochs
from ops.seal import log_epochs
from penstock.archive.copies import key_of
from penstock.archive.table import ArchiveTable
from penstock.archive.targets import Target
from tests.archive.logs import Log, archived_rows, archived_table
from tests.kit.proof import proves
from tests.kit.standing import standing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]


@proves("D10 under kills")
@pytest.mark.parametrize(
    ("place", "committed"),
    [("between_commits", {(0, 1)}), ("before_record", {(0, 1), (1, 1)})],
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
    reached = target.root.with_name("reached")
    arguments = [place, str(reached), log.url, log.topic, target.uri]
    with standing("tests.archive.stalled", *arguments, marker=reached):
        assert len(list(target.root.rglob("*.parquet"))) == len(sealed)

    table = ArchiveTable(target, log.known_as).committed()
    archived = archived_table(target, log.known_as).select(["partition", "log_epoch"])
    assert table.keys() == {tuple(row.values()) for row in archived.to_pylist()} == committed
    recorded = {key_of(epoch) for epoch in log_epochs(log.connection, log.topic) if epoch.targets}
    assert recorded == (committed if place == "between_commits" else set())

    copies = archive_epochs(spark, log.url, log.topic, target)

    rewritten = {key_of(copy.epoch) for copy in copies if copy.written}
    assert rewritten == {(0, 1), (1, 1)} - committed
    assert archived_rows(target, log) == log.rows()
    assert all(epoch.targets == ("local",) for epoch in log_epochs(log.connection, log.topic))
