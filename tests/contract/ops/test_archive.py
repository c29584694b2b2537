"""The archive on every engine: what lies on a target is the log, byte for byte.

tests/archive goes on from here on PostgreSQL, with kills, restores and whatever may lie in a table.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ops.archive.archiving import CopiesFailed, archive_epochs
from ops.archive.auditing import audit_copies
from ops.archive.epoch_reader import EpochReader
from ops.archive.read_back import spark_reader
from ops.archive.rollup import rollup
from ops.backfill.missing import backfill
from ops.retention.clean import drop_slices
from ops.seal import copies_of, log_epochs
from penstock import database
from penstock.archive import database_reader
from penstock.archive.checksum import EpochChecksum
from penstock.archive.copies import key_of
from penstock.archive.targets import Target
from penstock.errors import BelowLowSequence
from penstock.log import fetch
from tests.archive.logs import (
    TOPIC,
    Log,
    archived,
    archived_rows,
    bring,
    only_file,
    plan_of,
    states,
)
from tests.contract.databases import ContractDatabase
from tests.kit.cleaning import clean
from tests.kit.log import topic
from tests.kit.proof import proves

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture
def log(db: ContractDatabase) -> Log:
    """A topic of two partitions, without events yet."""
    own = db.connect()
    topic(own, 2, TOPIC)
    return Log(own, db.url, TOPIC)


@pytest.fixture
def target(tmp_path: Path) -> Target:
    """An empty archive target."""
    return Target("local", str(tmp_path / "archive"))


def _keep(log: Log, *targets: str) -> None:
    policy = {"minimum_age_seconds": 0, "copies": 1, "origin": "hand"}
    database.call(
        log.connection,
        "set_retention",
        max_bytes=None,
        topic=TOPIC,
        targets=list(targets),
        **policy,
    )


@proves("D10 on every engine")
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("db", ["mysql", "mariadb"], indirect=True)  # PostgreSQL: tests/archive
@pytest.mark.long_on("mysql")
def test_from_the_log_to_a_new_target_when_the_database_has_dropped_it(
    log: Log, target: Target, tmp_path: Path, spark: SparkSession
) -> None:
    """Archive, read back, clean, and backfill from one target to the next: always the log."""
    log.publish_odd()
    log.publish_many(300)
    sealed = log.seal(max_events=100)
    rows = log.rows()

    made = archive_epochs(spark, log.url, TOPIC, target)

    assert [copy.epoch.checksum for copy in made] == [
        each.checksum for each in sorted(sealed, key=key_of)
    ]
    assert archived_rows(target, log) == rows
    _keep(log, "local")
    by_tasks = audit_copies(spark_reader(lambda: spark, log.url), log.url, TOPIC, target)
    assert (by_tasks.copies, by_tasks.forgotten) == (4, ())
    run = clean(log.url, TOPIC, target)
    assert run.read.copies == 4
    assert [each.low_sequence for each in run.partitions] == [157, 157]
    drop_slices(log.url)
    second = Target("second", str(tmp_path / "second"))
    with pytest.raises(CopiesFailed, match="no longer in the database"):
        backfill(spark, log.url, TOPIC, second)
    assert len(backfill(spark, log.url, TOPIC, second, sources=[target])) == 4
    assert archived_rows(second, log) == rows
    assert {each.targets for each in log_epochs(log.connection, TOPIC)} == {("local", "second")}


@proves("D10 on every engine")
def test_the_checksum_of_what_is_written_is_the_seal_s(log: Log, target: Target) -> None:
    """Guard: the comparison before the commit; here without Spark, by the tasks' own code."""
    sealed = archived(log, target)
    assert states(log) == ["verified", "verified"]
    for epoch in sealed:
        checksum = EpochChecksum()
        for batch in _read(log, epoch):
            checksum.add(batch)
        assert (checksum.hexdigest(), checksum.event_count) == (epoch.checksum, 6)
        assert only_file(target, log, key_of(epoch)).is_file()


@pytest.mark.long_on("mysql")
def test_a_rollup_is_done_once(db: ContractDatabase, log: Log, target: Target) -> None:
    """Small files of a day that is over become one; a second run finds nothing to do."""
    log.publish_many(20)
    sealed = log.seal(max_events=5)
    days_ago = dt.datetime.now(dt.UTC) - dt.timedelta(days=3)
    at = days_ago if db.engine == "postgres" else days_ago.replace(tzinfo=None)
    db.run("UPDATE penstock.log_epochs SET sealed_at = %(at)s", {"at": at})
    bring(log, target, log_epochs(log.connection, TOPIC))
    (made,) = rollup(log.url, TOPIC, target)
    assert (made.replaced_files, made.events) == (len(sealed), 20)
    assert len({each.location for each in copies_of(log.connection, TOPIC)}) == 1
    assert rollup(log.url, TOPIC, target) == []


def _read(log: Log, epoch: Any) -> Iterator[Any]:
    return EpochReader(log.url, TOPIC).read(plan_of(epoch))


@proves("D10 on every engine", guard="the checksum")
def test_an_event_that_was_changed_is_noticed(db: ContractDatabase, log: Log) -> None:
    """The seal was computed by the database: what is read now has another checksum."""
    log.publish_odd()
    first, second = log.seal()
    db.run("UPDATE penstock.events SET payload = 'other'")
    for epoch in (first, second):
        checksum = EpochChecksum()
        for batch in _read(log, epoch):
            checksum.add(batch)
        assert checksum.hexdigest() != epoch.checksum


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of five events, read two at a time."""
    monkeypatch.setattr(database_reader, "_FIRST_ROWS", 5)
    monkeypatch.setattr(database_reader, "_MOST_ROWS", 5)
    monkeypatch.setattr(database_reader, "_ROWS_PER_READ", 2)


@proves("D10 on every engine")
@pytest.mark.usefixtures("small_pages")
def test_pages_meet_and_hold_nothing_between_them(db: ContractDatabase, log: Log) -> None:
    """Each event once, and after each page no transaction is open: none keeps the database back."""
    log.publish_many(26)
    (epoch, _) = log.seal()
    sequences: list[int] = []
    for batch in _read(log, epoch):
        sequences += batch.column("sequence").to_pylist()
        if len(sequences) in (5, 10, 13):
            assert _open_transactions(db) == 0
    assert sequences == list(range(1, 14))


def _open_transactions(db: ContractDatabase) -> int:
    """How many the reader has open."""
    if db.engine == "postgres":
        query = (
            "SELECT COUNT(*) FROM pg_stat_activity"
            " WHERE application_name = 'penstock archive' AND xact_start IS NOT NULL"
        )
    else:
        query = "SELECT COUNT(*) FROM information_schema.INNODB_TRX"
    ((found,),) = db.run(query)
    return int(found)


@proves("D10 on every engine")
@pytest.mark.usefixtures("small_pages")
def test_what_the_database_lacks_is_an_error_and_no_shorter_epoch(
    db: ContractDatabase, log: Log
) -> None:
    """The function counts what it has read; on MySQL the error comes after the last row."""
    log.publish_many(26)
    (epoch, _) = log.seal()
    victim = fetch(log.connection, TOPIC, 0, 7, 1)[0].event_id
    value = "%(id)s" if db.engine == "postgres" else "UNHEX(REPLACE(%(id)s, '-', ''))"
    db.run(f"DELETE FROM penstock.events WHERE event_id = {value}", {"id": str(victim)})
    with pytest.raises(BelowLowSequence, match="were dropped"):
        list(_read(log, epoch))
