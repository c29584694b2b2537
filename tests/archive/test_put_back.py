"""The database is put back to an earlier state during a run of the archive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from ops.archive import copying
from ops.archive.archiving import archive_epochs
from ops.backfill.missing import backfill
from ops.seal import log_epochs
from penstock.archive.table import ArchiveTable, Committed
from penstock.archive.targets import Target
from penstock.errors import EpochError, LogBehind
from penstock.log.histories import restore_status
from tests.archive.logs import TOPIC, Log
from tests.kit.log import topic as create_topic
from tests.kit.proof import proves
from tests.relay.test_put_back import Restored
from tests.support import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def restored(postgres_server: PostgresServer, database_url: str) -> Iterator[Restored]:
    """What puts the test's database back: to 200 events in a log epoch of each partition."""
    made = Restored(postgres_server, database_url)
    _grow(database_url, 200, new=True)
    made.take()
    _grow(database_url, 200)
    yield made
    made.drop()


def _grow(url: str, events: int, *, new: bool = False) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        if new:
            create_topic(connection, 2, TOPIC)
        log = Log(connection, url, TOPIC)
        if events:
            log.publish_many(events)
            log.seal()


def _at(place: str, before: bool, happens: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    """Once, before or after a step of the run that comes to it."""
    step: Callable[..., Any] = getattr(copying, place)
    left = [happens]

    def stepped(*given: Any, **named: Any) -> Any:
        if before and left:
            left.pop()()
        found = step(*given, **named)
        if left:
            left.pop()()
        return found

    patch.setattr(copying, place, stepped)


def _held(target: Target) -> Committed:
    return ArchiveTable(target, f"{TOPIC}//1").committed()


def _recorded(url: str) -> dict[tuple[int, int], int]:
    with psycopg.connect(url, autocommit=True) as connection:
        return {
            (each.partition, each.log_epoch): each.last_sequence
            for each in log_epochs(connection, TOPIC)
            if each.targets
        }


@proves("D10 over a restore")
@pytest.mark.parametrize("events", [0, 20, 400], ids=["behind", "sealed anew", "grown beyond"])
def test_what_was_written_of_the_lost_time_is_not_recorded(
    spark: SparkSession, database_url: str, target: Target, restored: Restored, events: int
) -> None:
    """Guards: record_copy compares with the seal of the log that there is; the next run stops.

    Nothing that the target holds is written over, by no run.
    """

    def put_back() -> None:
        restored.come_back()
        _grow(database_url, events)

    with pytest.MonkeyPatch.context() as patch:
        _at("_write", False, put_back, patch)
        with pytest.raises(EpochError, match="the seal says" if events else None):
            archive_epochs(spark, database_url, TOPIC, target)
    held = _held(target)
    assert {key: entries[0].last_sequence for key, entries in held.items()} == {
        (0, 1): 100,
        (1, 1): 100,
        (0, 2): 200,
        (1, 2): 200,
    }
    for run in (archive_epochs, backfill):
        with pytest.raises(EpochError if events == 400 else LogBehind):
            run(spark, database_url, TOPIC, target)
    assert _held(target) == held
    assert set(_recorded(database_url)) <= {(0, 1), (1, 1)}
    with psycopg.connect(database_url, autocommit=True) as connection:
        assert bool(restore_status(connection)) is (events != 400)


def _put_back_before_reading(
    spark: SparkSession, database_url: str, target: Target, restored: Restored
) -> set[tuple[int, int]]:
    """The plan is of the lost log, the events are of the restored one; what the target says."""

    def put_back() -> None:
        restored.come_back()
        _grow(database_url, 400)

    with pytest.MonkeyPatch.context() as patch:
        _at("_write", True, put_back, patch)
        with pytest.raises(EpochError):
            archive_epochs(spark, database_url, TOPIC, target)
    return set(_held(target))


@proves("D10 over a restore")
def test_what_is_read_after_the_restore_is_not_claimed_for_the_lost_time(
    spark: SparkSession, database_url: str, target: Target, restored: Restored
) -> None:
    """Guard: WrittenEpoch.equals, of Spark's writer. The next run finds no trace."""
    found = _put_back_before_reading(spark, database_url, target, restored)
    assert found == {(0, 1), (1, 1)}
    archive_epochs(spark, database_url, TOPIC, target)
    assert _recorded(database_url) == {(0, 1): 100, (1, 1): 100, (0, 2): 300, (1, 2): 300}
