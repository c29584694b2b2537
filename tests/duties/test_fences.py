"""What keeps a unit from doing harm when it is repeated, left out, or done by two at once."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ops.duties import verbs
from ops.duties.engine import SQL
from ops.duties.running import run
from ops.duties.setup import Setup
from ops.duties.units import DONE, FAILED, LEFT, DutyUnit
from ops.duties.verbs import DutyPlace
from ops.retention.clean import BegunClean
from penstock import database
from tests.contract.databases import ContractDatabase
from tests.contract.ops.test_guarded_drops import NO_READING
from tests.contract.stream_kit import without
from tests.duties.kit import EVENTS, to_clean
from tests.kit import backfill
from tests.kit.proof import proves
from tests.kit.stream import STREAM

BEGIN = DutyUnit("begin clean", topic=STREAM)


def _lows(db: ContractDatabase) -> list[int]:
    with closing(db.connect()) as own:
        return [low for _, low in database.call(own, "low_sequences", topic=STREAM)]


def _begun(setup: Setup) -> BegunClean:
    (begun,) = run([BEGIN], setup, engine=SQL)
    found: BegunClean = begun.result
    return found


def _read(begun: BegunClean, partition: int, last: int) -> DutyUnit:
    due = tuple(
        each for each in begun.due if each.partition == partition and each.log_epoch <= last
    )
    return DutyUnit("read back", topic=STREAM, partition=partition, run=begun.run, due=due)


@proves("a unit is done once", guard="the run token of clean")
@pytest.mark.long_on("mariadb")
def test_what_was_not_read_is_not_dropped(db: ContractDatabase, tmp_path: Path) -> None:
    """As when the units of a partition, and half of the other's, are lost."""
    setup = to_clean(db, tmp_path).setup
    begun = _begun(setup)
    (read,) = run([_read(begun, 0, 5)], setup)
    assert (read.state, read.events) == (DONE, 5 * backfill.EVENTS)
    run([DutyUnit("clean", topic=STREAM, run=begun.run)], setup)
    assert _lows(db) == [5 * backfill.EVENTS + 1, 1]


@pytest.mark.long_on("mysql")
def test_without_the_token_it_would_be(db: ContractDatabase, tmp_path: Path) -> None:
    """Guard: retention_hold counts only what was read under the token of this run."""
    setup = to_clean(db, tmp_path).setup
    without(db, NO_READING)
    run([DutyUnit("clean", topic=STREAM, run=_begun(setup).run)], setup)
    assert _lows(db) == [EVENTS + 1] * 2


@proves("a unit is done once", guard="the run token of clean")
def test_a_repeated_drop_is_refused(db: ContractDatabase, tmp_path: Path) -> None:
    """What was read under one token cannot be used twice, nor under another one."""
    setup = to_clean(db, tmp_path).setup
    begun = _begun(setup)
    run([_read(begun, 0, 1)], setup)
    drop = DutyUnit("clean", topic=STREAM, run=begun.run)
    states = [each.state for each in run([drop], setup) + run([drop], setup)]
    assert states == [DONE, LEFT]
    (late,) = run([_read(begun, 0, 5)], setup)
    assert late.state == FAILED
    run([replace(drop, run=_begun(setup).run)], setup)
    assert _lows(db) == [backfill.EVENTS + 1, 1]


def test_a_damaged_copy_stops_its_topic(db: ContractDatabase, tmp_path: Path) -> None:
    """Also what other units of the run have found whole."""
    setup = to_clean(db, tmp_path).setup
    begun = _begun(setup)
    (file, *_) = sorted((tmp_path / "one").rglob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-9])
    outcomes = run([_read(begun, part, 10) for part in (0, 1)], setup)
    assert sorted(each.state for each in outcomes) == [DONE, FAILED]
    assert "is damaged" in "".join(each.error for each in outcomes)
    run([DutyUnit("clean", topic=STREAM, run=begun.run)], setup)
    assert _lows(db) == [1, 1]


def test_two_runs_at_once_drop_once(db: ContractDatabase, tmp_path: Path) -> None:
    """As two attempts of all units: four threads work on both runs."""
    setup = to_clean(db, tmp_path).setup
    both = [_begun(setup), _begun(setup)]
    run([_read(begun, part, 10) for begun in both for part in (0, 1)], setup)
    outcomes = run([DutyUnit("clean", topic=STREAM, run=begun.run) for begun in both], setup)
    assert sum(each.events for each in outcomes) == 2 * EVENTS
    assert _lows(db) == [EVENTS + 1] * 2


@pytest.mark.parametrize("db", ["postgres"], indirect=True)
def test_a_run_asks_once_what_is_due(
    db: ContractDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its units read that, and do not ask again: there may be a hundred of them."""
    scenario = to_clean(db, tmp_path)
    asked: list[str] = []

    def call(connection: Any, name: str, **binds: Any) -> Any:
        asked.append(name)
        return database.call(connection, name, **binds)

    monkeypatch.setattr("ops.seal.call", call)
    scenario.check(verbs.clean_topics(scenario.setup, [DutyPlace(STREAM)], engine=SQL))
    assert asked.count("log_epochs_due") == 1


def test_an_error_stops_no_other_unit(db: ContractDatabase, tmp_path: Path) -> None:
    setup = to_clean(db, tmp_path).setup
    units = [
        DutyUnit("sweep", "nowhere"),
        DutyUnit("begin clean", topic="no/such"),
        DutyUnit("sweep"),
    ]
    outcomes = run(units, setup)
    assert [each.state for each in outcomes] == [FAILED, FAILED, DONE]
    assert "no database 'nowhere'" in outcomes[0].error
    assert "TopicNotFound" in outcomes[1].error
