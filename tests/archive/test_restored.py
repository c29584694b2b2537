"""The archive of a log that was restored to an earlier state: it stops before it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from ops.archive import archiving as archive
from ops.archive.archiving import archive_epochs, require_archived
from ops.backfill import missing as backfill
from penstock.archive.table import ArchiveTable
from penstock.archive.targets import Target
from penstock.errors import EpochError, LogBehind
from penstock.log.histories import reconcile, restore_status
from penstock.topics import names
from tests.archive.logs import TOPIC, Log, archived_table
from tests.kit.log import topic as create_topic
from tests.kit.proof import proves
from tests.support import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def copy(
    spark: SparkSession, database_url: str, target: Target, postgres_server: PostgresServer
) -> Iterator[str]:
    """A clone of the database, half of whose archive it has not come to; with ten others."""
    name = database_url.rpartition("/")[2]
    with psycopg.connect(database_url, autocommit=True) as connection:
        create_topic(connection, 2, TOPIC)
        log = Log(connection, database_url, TOPIC)
        log.publish_many(200)
        log.seal()
    url = postgres_server.create(f"{name}_copy", name)
    with psycopg.connect(database_url, autocommit=True) as connection:
        log = Log(connection, database_url, TOPIC)
        log.publish_many(200)
        log.seal()
    archive_epochs(spark, database_url, TOPIC, target)
    with psycopg.connect(url, autocommit=True) as connection:
        log = Log(connection, url, TOPIC)
        log.publish_many(10)
        log.seal()
    yield url
    postgres_server.drop(f"{name}_copy")


def test_it_stops(spark: SparkSession, copy: str, target: Target) -> None:
    """Guards: require_archived, of archive and of backfill; the history in the Delta log."""
    before = ArchiveTable(target, f"{TOPIC}//1").committed()
    for run in (archive_epochs, backfill.backfill):
        with pytest.raises(LogBehind, match="the archive local"):
            run(spark, copy, TOPIC, target)
    assert ArchiveTable(target, f"{TOPIC}//1").committed() == before
    with psycopg.connect(copy, autocommit=True) as connection:
        found = restore_status(connection)
        assert [(each.partition, each.sequence, each.history) for each in found] == [
            (0, 200, 1),
            (1, 200, 1),
        ]
        assert {each.source for each in found} == {"the archive local"}
        reconcile(connection, "a test")
    require_archived(copy, TOPIC, target)


@proves("D10 over a restore", guard="require_archived")
def test_without_it_nobody_is_stopped(
    spark: SparkSession, copy: str, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the archive is not compared; it has another log epoch under the same number."""
    monkeypatch.setattr(archive, "require_archived", lambda *_: None)
    with pytest.raises(EpochError):
        archive_epochs(spark, copy, TOPIC, target)
    with psycopg.connect(copy, autocommit=True) as connection:
        assert restore_status(connection) == []


def test_a_topic_made_anew_has_a_table_of_its_own(
    spark: SparkSession, database_url: str, target: Target
) -> None:
    """Guards: known_as names the table; a rename changes nothing of what lies there."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        create_topic(connection, 2, TOPIC)
        log = Log(connection, database_url, TOPIC)
        log.publish_many(40)
        log.seal()
        archive_epochs(spark, database_url, TOPIC, target)
        renamed = names.rename_topic(connection, TOPIC, "renamed")
        assert archive_epochs(spark, database_url, renamed, target)[0].written is False
        assert backfill.audit_files(database_url, renamed, target) == []
        names.create_topic(connection, TOPIC, 2)
        other = Log(connection, database_url, TOPIC)
        other.publish_many(10)
        other.seal()
        assert all(copy.written for copy in archive_epochs(spark, database_url, TOPIC, target))
        first = Log(connection, database_url, renamed)
        assert archived_table(target, first.known_as).num_rows == 40
        assert archived_table(target, other.known_as).num_rows == 10
        assert restore_status(connection) == []
