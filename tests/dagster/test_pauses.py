"""After a run that failed a sensor waits, longer each time, and says which work waits and why."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import dagster as dg
import pytest

import penstock
from dagster_project import jobs
from dagster_project.sensors import backfills, backlog, sealing
from dagster_project.triggers import FAILED_TAG, OURS, Pause, pause_after
from ops import seal as ops_seal
from ops.backfill.requests import claim_backfill
from ops.health import health
from penstock.database import call
from penstock.errors import PenstockError
from penstock.upkeep.sequencing import sequence
from tests.dagster.conftest import EPOCH_EVENTS, TOPIC, House
from tests.dagster.test_sensors import requested
from tests.kit.proof import proves

Clock = Callable[[float], None]


def clock_of(module: ModuleType, environment: pytest.MonkeyPatch) -> Clock:
    """Sets the time of a sensor, in seconds from now."""
    begun = time.time()
    now = [begun]
    fake = SimpleNamespace(time=lambda: now[0], monotonic=time.monotonic)
    environment.setattr(module, "time", fake)

    def set_to(seconds: float) -> None:
        now[0] = begun + seconds

    return set_to


def fail(house: House, request: dg.RunRequest, job: str = "", **tags: str) -> str:
    """A run as it was asked for, which has failed without doing anything."""
    run = dg.DagsterRun(
        job_name=request.job_name or job,
        tags={**OURS, **request.tags, **tags},
        run_config=dict(request.run_config),
        status=dg.DagsterRunStatus.FAILURE,
    )
    house.instance.add_run(run)
    return run.run_id


def asked(house: House, sensor: str) -> list[dg.RunRequest]:
    """What one tick asks for."""
    return [*(house.sense(sensor).run_requests or [])]


def test_each_failure_in_a_row_makes_the_pause_longer() -> None:
    first = Pause.after(None, "a", 1000.0)
    assert first == Pause("a", 1, 1060.0)
    assert Pause.after(first.dump(), "a", 1059.0) == first
    assert Pause.after(first.dump(), "b", 1070.0) == Pause("b", 2, 1190.0)
    assert Pause.after(["a", 90, 0.0], "b", 0.0) == Pause("b", 91, 3600.0)


@proves("what fails is tried less often")
def test_a_dead_sink_is_tried_less_and_less_often(
    house: House, environment: pytest.MonkeyPatch
) -> None:
    """Guard: Pauses in the backlog sensor.  A run that succeeds ends it."""
    set_to = clock_of(backlog, environment)
    house.create_topic()
    house.publish(4)
    sequence(house.url)
    house.done("policies")
    for number, begin in enumerate((0.0, 61.0, 182.0), 1):
        set_to(begin)
        (request,) = asked(house, "backlog")
        assert request.job_name == "relay"
        failed = fail(house, request)
        said = house.sense("backlog")
        assert said.run_requests == []
        assert failed in (said.skip_message or "") and f"{number} in a row" in said.skip_message
        set_to(begin + pause_after(number) - 1)
        assert asked(house, "backlog") == []
    set_to(10_000)
    house.asked(house.sense("backlog"))
    house.publish(4)
    sequence(house.url)
    assert len(asked(house, "backlog")) == 1


def test_sequencing_that_fails_waits_and_a_failed_check_of_it_does_not(
    house: House, environment: pytest.MonkeyPatch
) -> None:
    """A hole in one topic must not slow down the others.  Guard: triggers.failed_step."""
    set_to = clock_of(backlog, environment)
    house.create_topic()
    house.publish(4)
    (request,) = asked(house, "backlog")
    fail(house, request)
    assert asked(house, "backlog") == []
    set_to(61)
    house.asked(house.sense("backlog"))
    for _ in range(2):
        house.publish(4)
        house.asked(house.sense("backlog"))
    house.connection.execute("DELETE FROM penstock.chunks WHERE first_sequence = 3")
    house.publish(4)
    environment.setattr("ops.probes.WHOLE_LOOK", dt.timedelta(days=-1))
    assert not house.job("sequence").success
    house.publish(4)
    assert [each.job_name for each in asked(house, "backlog")] == ["sequence"]


@proves("what fails is tried less often")
def test_a_topic_that_cannot_be_sealed_does_not_hold_up_the_others(
    house: House, environment: pytest.MonkeyPatch
) -> None:
    """Guards: the tag in which a run names what has failed, and sealing._learn."""
    set_to = clock_of(sealing, environment)
    house.create_topic()
    penstock.create_topic(house.connection, "shop/broken", 2)
    path = house.folder / "policies.yaml"
    policy = f"{{seal: {{max_events: {EPOCH_EVENTS}, max_age: 0s}}}}"
    path.write_text(path.read_text().replace("topics:\n", f"topics:\n  shop/broken: {policy}\n"))
    house.reload()

    def seal(connection: Any, topic: str, **options: Any) -> Any:
        if topic == "shop/broken":
            raise PenstockError("this topic's own trouble")
        return ops_seal.seal(connection, topic, **options)

    environment.setattr(jobs, "seal", seal)

    def topics() -> list[str]:
        """Those for which a tick asks; a run of them has come to its end."""
        penstock.publish(house.connection, "shop/broken", b"x")
        house.publish(2)
        sequence(house.url)
        requests = asked(house, "seal")
        for request in requests:
            house.job("seal", run_config=request.run_config)
        return [
            name
            for each in requests
            for name in each.run_config["ops"]["seal_log_epochs"]["config"]["topics"]
        ]

    assert sorted(topics()) == ["shop/broken", TOPIC]
    (run,) = house.instance.get_runs(dg.RunsFilter(job_name="seal"))
    assert json.loads(run.tags[FAILED_TAG]) == ["shop/broken"]
    assert topics() == [TOPIC]
    assert topics() == [TOPIC]
    set_to(61)
    assert sorted(topics()) == ["shop/broken", TOPIC]
    set_to(180)
    assert topics() == [TOPIC]


@proves("what fails is tried less often")
def test_a_run_that_died_before_it_claimed_is_started_again_with_growing_pauses(
    house: House, environment: pytest.MonkeyPatch
) -> None:
    """What waits is said, with what a person can do, and it never waits for ever.

    Guard: backfills._why_rests.
    """
    (request,) = requested(house, 1)
    set_to = clock_of(backfills, environment)
    for number in range(6):
        (run,) = asked(house, "backfills")
        assert run.run_key == f"backfill:{request}:1" + (f":{number}" if number else "")
        died = fail(house, run)
        said = house.sense("backfills")
        assert said.run_requests == []
        for part in (
            f"request {request} waits until", f"{number + 1} runs have died", died,
            f"penstock backfill run --request {request}",
        ):  # fmt: skip
            assert part in (said.skip_message or "")
        set_to(pause_after(number + 1) + 5)
    # A person need not wait: the request is not taken by anybody.
    assert claim_backfill(house.connection, "a person", request=request) is not None


def test_health_names_a_request_that_nobody_claims(house: House) -> None:
    """Guard: REQUEST_WAITS_SECONDS in ops.health."""
    (request,) = requested(house, 1)

    def findings() -> list[str]:
        with_name = f"backfill request {request}"
        policies = house.defs.resources["database"].policies()  # type: ignore[index]
        found = health(house.connection, policies)
        return [each.command for each in found if each.check == with_name]

    assert findings() == []
    house.connection.execute(
        "UPDATE penstock.backfill_requests SET not_before = now() - interval '11 minutes'"
    )
    assert findings() == [f"penstock backfill run --request {request}"]
    call(house.connection, "cancel_backfill", request=request)
    assert findings() == []
