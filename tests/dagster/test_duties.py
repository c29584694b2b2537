"""Each of the five duties with its engine: in the process of the run, or in Spark's executors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from dagster_project import duties
from ops.backfill.requests import REHYDRATE, list_backfills, request_backfill
from ops.duties.engine import SPARK, SQL
from ops.duties.work import this_process
from penstock.errors import ConfigurationError
from tests.dagster.conftest import EPOCH_EVENTS, TOPIC, House, failures
from tests.dagster.test_jobs import metadata_of
from tests.dagster.test_load import RELAY, SLUG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The step of each duty, and the asset that says where its units were worked off.
STEPS = {
    "sequence": ("penstock__sequence", "penstock/sequence"),
    "relay": (RELAY.replace("/", "__"), RELAY),
    "sweep": ("penstock__sweep", "penstock/sweep"),
    "clean": (f"{SLUG.replace('/', '__')}__orders_retention", f"{SLUG}/orders_retention"),
}


def config(step: str, engine: str, **more: Any) -> dict[str, Any]:
    """Run config of a duty."""
    return {"ops": {step: {"config": {"engine": engine, **more}}}}


def did(house: House, duty: str, engine: str) -> dict[str, Any]:
    """Run a duty; what its asset says."""
    step, asset = STEPS[duty]
    return metadata_of(house.done(duty, run_config=config(step, engine)), asset)


@pytest.mark.spark
@pytest.mark.timeout(400)
@pytest.mark.parametrize("engine", [SPARK, pytest.param(SQL, marks=pytest.mark.long)])
def test_every_duty_runs_with_every_engine(house: House, spark: SparkSession, engine: str) -> None:
    """The same work is done by the same functions; only who did it differs.

    That `auto` does it in the process of the run is in the other tests of jobs.
    """
    house.create_topic()
    house.done("policies")
    house.publish(2 * EPOCH_EVENTS)
    found = {"sequence": did(house, "sequence", engine)}
    assert found["sequence"]["events"] == 2 * EPOCH_EVENTS
    found["relay"] = did(house, "relay", engine)
    assert found["relay"]["events"] == 2 * EPOCH_EVENTS and found["relay"]["drained"]
    assert found["relay"]["promise"] == "exactly once" and found["relay"]["events a second"] > 0
    found["sweep"] = did(house, "sweep", engine)
    house.done("seal")
    assert all(each.success for each in house.archive())
    found["clean"] = did(house, "clean", engine)
    assert found["clean"]["events removed"] == 2 * EPOCH_EVENTS
    assert house.low_sequences() == [EPOCH_EVENTS + 1] * 2
    for duty, said in found.items():
        assert (this_process() in said["units"]) == (engine == SQL), duty

    brought_back(house, engine)


def brought_back(house: House, engine: str) -> None:
    """What was dropped is back in the database, by a request of its own run."""
    asked = request_backfill(house.connection, TOPIC, REHYDRATE)
    options = config("run_request", engine, request=asked.request)
    done = house.done("backfill", run_config=options)
    (found,) = list_backfills(house.connection)
    assert (found.state, found.done_events) == ("done", 2 * EPOCH_EVENTS)
    assert found.run == f"dagster:{done.run_id}"


def test_a_duty_that_fails_says_which_unit_and_why(
    house: House, environment: pytest.MonkeyPatch
) -> None:
    """Guard: duties.require, without which the run would end as if all were well."""
    house.create_topic()
    house.connection.execute("ALTER TABLE penstock.ticks RENAME TO gone")
    failed = house.job("sequence")
    assert not failed.success
    assert 'sequence: UndefinedTable: relation "ticks" does not exist' in failures(failed)
    environment.setattr(duties, "require", lambda _: None)
    assert "UndefinedTable" not in failures(house.job("sequence"))


def test_an_engine_that_does_not_exist_is_refused_before_a_run(
    house: House, environment: pytest.MonkeyPatch
) -> None:
    with pytest.raises(dg.DagsterInvalidConfigError, match="sparkle"):
        house.job("sequence", run_config=config("penstock__sequence", "sparkle"))
    environment.setenv(duties.VARIABLE, "sparkle")
    with pytest.raises(ConfigurationError, match="sparkle"):
        duties.config()


def test_the_engine_of_runs_that_name_none_is_in_the_environment(
    house: House, environment: pytest.MonkeyPatch
) -> None:
    assert duties.config()["engine"].default_value == "auto"
    environment.setenv(duties.VARIABLE, SQL)
    assert duties.config()["engine"].default_value == SQL
