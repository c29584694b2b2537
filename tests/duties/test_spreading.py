"""Units as tasks of Spark: errors, deaths, secrets, the report."""

from __future__ import annotations

import os
import signal
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ops.duties import spreading
from ops.duties.code import write_archive
from ops.duties.running import run
from ops.duties.setup import Setup
from ops.duties.spreading import spread
from ops.duties.units import DONE, FAILED, LOST, DutyOutcome, DutyUnit
from ops.duties.work import do_unit
from penstock.errors import ConfigurationError
from penstock.spark.options import DatabaseAddress
from tests.contract.databases import ContractDatabase
from tests.duties.kit import to_sequence
from tests.kit.proof import proves

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SECRET = "postgresql://someone:hunter2@127.0.0.1:1/nowhere"


def test_an_error_is_reported_and_not_tried_again(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no report, plan or error tells the address."""
    setup = Setup({"a": DatabaseAddress(SECRET), "b": DatabaseAddress(variable="NO_SUCH_VARIABLE")})
    units = [DutyUnit("sweep", "a"), DutyUnit("sweep", "b"), DutyUnit("sweep", "c")]
    plans: list[str] = []
    job = spreading._job

    def looked(session: SparkSession, *given: Any) -> object:
        numbers = session.range(0, 1, 1, 1)
        task = spreading._task(*given)
        shown = numbers.mapInArrow(task, spreading._SCHEMA)
        plans.append(shown._jdf.queryExecution().toString())
        return job(session, *given)

    monkeypatch.setattr(spreading, "_job", looked)
    outcomes = run(units, setup, engine="spark", spark=lambda: spark)
    assert [each.state for each in outcomes] == [FAILED] * 3
    assert len(plans) == 1
    assert "NO_SUCH_VARIABLE" in outcomes[1].error
    report = [each.row() for each in outcomes]
    assert [row["state"] for row in report] == [FAILED] * 3
    told = f"{outcomes}{setup}{report}{plans}"
    assert "hunter2" not in told
    assert "someone" not in told
    assert {each.worker for each in outcomes}.isdisjoint({"", f":{os.getpid()}"})


def test_a_unit_that_kills_its_process_is_lost_alone(spark: SparkSession) -> None:
    """Guard: the halving; without it the job takes the others along."""

    def work(unit: DutyUnit) -> DutyOutcome:
        if unit.subject == "3":
            os.kill(os.getpid(), signal.SIGKILL)
        return DutyOutcome(unit, DONE, 1, 0.0)

    units = [DutyUnit("sweep", subject=str(number)) for number in range(5)]
    outcomes = spread(spark, units, work)
    assert [each.unit for each in outcomes] == units
    assert [each.state for each in outcomes] == [DONE, DONE, DONE, LOST, DONE]


@proves("a unit is done once")
@pytest.mark.parametrize("db", ["postgres"], indirect=True)
def test_a_unit_whose_process_dies_is_done_by_another_one(
    spark: SparkSession, db: ContractDatabase, tmp_path: Path
) -> None:
    """The dead one had numbered all events: the other one finds none, and numbers none again.

    Guard: what fences the unit in SQL.  Whole executors are killed in test_executors.
    """
    scenario = to_sequence(db, tmp_path)
    setup, marker = scenario.setup, tmp_path / "marker"

    def work(unit: DutyUnit) -> DutyOutcome:
        outcome = do_unit(unit, setup)
        if unit.duty == "sequence" and not marker.exists():
            marker.write_text(f"{outcome.worker} {outcome.events}")
            os.kill(os.getpid(), signal.SIGKILL)
        return outcome

    sequenced, swept = spread(spark, [DutyUnit("sequence"), DutyUnit("sweep")], work)
    assert marker.read_text().split()[1:] == ["50"]
    assert sequenced.worker not in marker.read_text()
    assert (sequenced.events, swept.state) == (0, DONE)
    scenario.check([sequenced])


def test_a_duty_that_does_not_exist_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="no duty 'dance'"):
        run([DutyUnit("dance")], Setup({}), engine="spark")


def test_the_code_travels_with_its_sql(tmp_path: Path) -> None:
    """As the wheel lays it out, and the same code is the same archive."""
    first, second = tmp_path / "a.zip", tmp_path / "b.zip"
    for place in (first, second):
        write_archive(place)
    assert first.read_bytes() == second.read_bytes()
    names = set(zipfile.ZipFile(first).namelist())
    assert {"penstock/__init__.py", "ops/duties/work.py"} <= names
    assert any(name.startswith("penstock/sql/postgres/log/") for name in names)
    assert not any(name.endswith(".pyc") for name in names)
