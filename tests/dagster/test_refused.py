"""Runs whose configuration cannot be meant fail, and say why: a green run has done something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import penstock
from dagster_project import common
from tests.dagster.conftest import TOPIC, House, failures


def run(house: House, job: str, step: str, **config: Any) -> dg.ExecuteInProcessResult:
    """A run of a job with the config of its one step."""
    return house.job(job, run_config={"ops": {step: {"config": config}}})


@pytest.mark.parametrize("seconds", [0, -5])
def test_a_relay_runs_for_a_second_at_least(
    house: House, environment: pytest.MonkeyPatch, seconds: int
) -> None:
    """It sent nothing and was green.  Guard: relays._seconds; to repeat the run mends nothing."""
    environment.setattr(common, "RETRY", dg.RetryPolicy(max_retries=2, delay=60))
    house.reload()
    house.create_topic()
    house.publish(2)
    house.done("sequence")
    done = run(house, "relay", "penstock__relay__shop_file", max_seconds=seconds)
    assert not done.success
    said = failures(done)
    assert "InvalidArgument" in said and f"cannot run for {seconds} seconds" in said
    assert "at least 1" in said


@pytest.mark.parametrize("request_", [999, -1])
def test_a_request_that_is_not_there_is_an_error(house: House, request_: int) -> None:
    """Guard: request_of in verbs.backfill_units."""
    done = run(house, "backfill", "run_request", request=request_)
    assert not done.success
    assert f"there is no backfill request {request_}" in failures(done)
    assert "ConfigurationError" in failures(done)


def test_a_topic_that_nobody_knows_is_not_sealed(house: House) -> None:
    """Guard: jobs._require_known, before any topic; one that is only in the policy is known."""
    assert run(house, "seal", "seal_log_epochs", topics=[TOPIC]).success
    house.create_topic()
    penstock.create_topic(house.connection, "shop/extra")
    assert run(house, "seal", "seal_log_epochs", topics=["shop/extra"]).success
    for number in range(30):
        penstock.create_topic(house.connection, f"shop/t{number:02}")
    house.publish(2)
    house.done("sequence")
    done = run(house, "seal", "seal_log_epochs", topics=[TOPIC, "shop/typo"])
    said = failures(done)
    assert not done.success and "InvalidArgument" in said
    assert "there is no topic shop/typo" in said
    assert f"{TOPIC}, shop/t00" in said and "and 12 more" in said and "shop/t29" not in said
    assert house.connection.execute("SELECT count(*) FROM penstock.log_epochs").fetchone() == (0,)


def retried(done: dg.ExecuteInProcessResult) -> int:
    """How often a step was to be repeated."""
    return sum(event.event_type_value == "STEP_UP_FOR_RETRY" for event in done.all_events)


def test_what_cannot_heal_is_not_repeated(
    house: House, environment: pytest.MonkeyPatch, policy_path: Path
) -> None:
    """A sink that is not set up right, and what the run itself raises; what may heal is repeated.

    Guards: `lasts` of the outcome in duties.require, and _at_once of of_database.
    """
    environment.setattr(common, "RETRY", dg.RetryPolicy(max_retries=2, delay=0))
    house.reload()
    house.create_topic()
    house.publish(2)
    house.done("sequence")
    (house.folder / "relayed").write_text("no directory")
    done = house.job("relay")
    assert "SinkMisconfigured" in failures(done)
    assert (done.success, retried(done)) == (False, 0)
    policies = policy_path.read_text()
    policy_path.write_text("topics: [")
    done = house.job("relay")
    assert (done.success, retried(done)) == (False, 0)
    assert "ParserError" in failures(done)
    policy_path.write_text(policies)
    environment.setenv("PENSTOCK_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    done = house.job("relay")
    assert (done.success, retried(done)) == (False, 2)
