"""An audit of real logs, hot and cold, by FETCH on every engine and by Spark; and broken ones."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from ops.duties.audit import audit
from ops.duties.setup import Setup
from ops.duties.units import DONE, FAILED, DutyOutcome
from penstock import log
from penstock.errors import BeyondHighWatermark, InvalidArgument, InvalidPartition
from tests.contract.databases import ContractDatabase
from tests.contract.log.test_sequence import MUTANTS
from tests.contract.stream_kit import dialect, without
from tests.duties.kit import EVENTS, to_audit
from tests.kit.log import put, topic
from tests.kit.proof import proves
from tests.kit.stream import STREAM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEALED, HOT = EVENTS, 30


def no_session() -> NoReturn:
    """Nobody may ask for one."""
    raise AssertionError("a JVM would have been started")


def hot(db: ContractDatabase) -> Setup:
    """Three passes of five events each, all in the database."""
    with closing(db.connect()) as own:
        topic(own, 1, STREAM)
        for number in range(3):
            for _ in range(5):
                put(own, str(number), name=STREAM)
            log.sequence(own)
    return Setup.of_url(db.url)


def gap(db: ContractDatabase) -> None:
    """The second pass is no longer in the index."""
    db.run("DELETE FROM penstock.chunks WHERE first_sequence = 6")


def doubled(db: ContractDatabase) -> None:
    """An event has two sequences."""
    if dialect(db) == "postgres":
        db.run("UPDATE penstock.chunks SET event_ids[2] = event_ids[1] WHERE first_sequence = 6")
        return
    without(db, MUTANTS["doubles"])
    with closing(db.connect()) as own:
        put(own, "again", name=STREAM)
        assert log.sequence(own).sequenced == log.sequence(own).sequenced == 1


def unordered(db: ContractDatabase) -> None:
    """Events were created after they were numbered."""
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
    if dialect(db) != "postgres":
        later = later.replace(tzinfo=None)
    db.run("UPDATE penstock.events SET created_at = %(later)s", {"later": later})


BROKEN: dict[str, tuple[Callable[[ContractDatabase], None], str]] = {
    "gap": (gap, "BelowLowSequence"),
    "double": (doubled, "is at 0/"),
    "order": (unordered, "numbered before its event was created"),
}


def _states(outcomes: list[DutyOutcome]) -> list[tuple[str, int]]:
    return [(each.state, each.events) for each in outcomes]


@proves("an audit finds what is wrong")
def test_a_whole_log_is_found_whole(db: ContractDatabase, tmp_path: Path) -> None:
    setup = to_audit(db, tmp_path, HOT).setup
    found = audit(setup, STREAM, spark=no_session)
    assert _states(found) == [(DONE, SEALED + HOT)] * 2, found
    (part,) = audit(setup, STREAM, partition=1, first=SEALED - 3, last=SEALED + 3)
    assert (part.unit.partition, part.state, part.events) == (1, DONE, 7)


@proves("an audit finds what is wrong")
def test_what_cannot_be_read_is_a_fault(db: ContractDatabase, tmp_path: Path) -> None:
    to_audit(db, tmp_path, HOT)
    found = audit(Setup.of_url(db.url), STREAM)
    assert _states(found) == [(FAILED, 0)] * 2
    assert all("EpochMissing" in each.error for each in found)


@proves("an audit finds what is wrong", guard="each check of the proof")
@pytest.mark.parametrize("name", BROKEN)
def test_a_fault_is_found(db: ContractDatabase, name: str) -> None:
    setup = hot(db)
    assert _states(audit(setup, STREAM)) == [(DONE, 15)]
    breaks, said = BROKEN[name]
    breaks(db)
    (found,) = audit(setup, STREAM)
    assert found.state == FAILED
    assert said in found.error


def test_a_range_that_is_none_is_refused(db: ContractDatabase) -> None:
    setup = hot(db)
    refused: list[tuple[type[Exception], dict[str, Any]]] = [
        (InvalidPartition, {"partition": 1}),
        (InvalidArgument, {"first": 0}),
        (InvalidArgument, {"first": 5, "last": 4}),
        (BeyondHighWatermark, {"last": 16}),
    ]
    for error, given in refused:
        with pytest.raises(error):
            audit(setup, STREAM, **given)


@proves("an audit finds what is wrong")
@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("db", ["postgres"], indirect=True)
def test_spark_finds_the_same(db: ContractDatabase, spark: SparkSession, tmp_path: Path) -> None:
    setup = to_audit(db, tmp_path, HOT).setup
    found = audit(setup, STREAM, engine="spark", spark=lambda: spark)
    assert _states(found) == [(DONE, SEALED + HOT)] * 2, found


@proves("an audit finds what is wrong", guard="each check of the proof")
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("name", BROKEN)
def test_spark_finds_a_fault(db: ContractDatabase, spark: SparkSession, name: str) -> None:
    setup = hot(db)
    breaks, said = BROKEN[name]
    breaks(db)
    (found,) = audit(setup, STREAM, engine="spark", spark=lambda: spark)
    assert found.state == FAILED
    assert said in found.error
