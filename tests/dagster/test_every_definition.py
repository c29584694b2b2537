"""Every asset, check, job, sensor and schedule is driven by the call that Dagster has for tests.

What each of them does is told by the other tests of this folder.  Here none is missing: the lists
are those of the definitions, and what was driven is what Dagster has recorded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.observe import observe

from dagster_project.assets.epochs import AUTOMATIC
from ops.seal import log_epochs
from penstock.archive.targets import Target
from resources.spark import SparkResource
from tests.archive.logs import Log, bring
from tests.dagster.conftest import EPOCH_EVENTS, TOPIC, House, failures
from tests.dagster.test_automation import at
from tests.dagster.test_sensors import tick

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@pytest.mark.timeout(400)
def test_every_definition_is_driven(
    house: House, policy_path: Path, environment: pytest.MonkeyPatch
) -> None:
    """Also one that is added later: what cannot be driven fails here.  None of it starts a Spark.

    Guard: the assertions at the end; without one of the loops they name what was left out.
    """
    environment.setattr(SparkResource, "session", no_session)
    prepared(house, policy_path)
    graph = house.defs.resolve_asset_graph()
    looked = sensed(house) | scheduled(house)
    materialized(house)
    observed = observe(
        [each for each in assets(house) if each.is_observable],
        instance=house.instance,
        resources=house.defs.resources,
        run_config=QUIET,
    )
    assert observed.success, failures(observed)
    jobs = {job.name for job in house.defs.resolve_all_job_defs()} - {"__ASSET_JOB"}
    for name in sorted(jobs):
        house.done(name, **of_partition(house, name))

    shown = house.instance.get_latest_materialization_events(graph.get_all_asset_keys())
    others = {key for key in graph.get_all_asset_keys() if not shown.get(key)}
    assert others == seen_by(observed)
    checked = house.instance.event_log_storage.get_latest_asset_check_execution_by_key(
        [*graph.asset_check_keys]
    )
    assert checked.keys() == graph.asset_check_keys
    assert jobs <= {run.job_name for run in house.instance.get_runs()}
    repository: Any = house.defs.get_repository_def()
    assert looked == {each.name for each in (*repository.sensor_defs, *repository.schedule_defs)}


def no_session(_: SparkResource) -> None:
    """Every copy is whole already, so nobody may need it."""
    raise AssertionError("a Spark was started for nothing")


def prepared(house: House, policy_path: Path) -> None:
    """A topic with log epochs that were sealed yesterday, and copies that no Spark has made."""
    text = policy_path.read_text() + "canary: ops/canary\n"
    policy_path.write_text(text.replace("limits: {", "limits: {end_to_end: 0, "))
    house.create_topic()
    house.publish(2 * EPOCH_EVENTS)
    for name in ("policies", "sequence", "relay", "seal"):
        house.done(name)
    bring(
        Log(house.connection, house.url, TOPIC),
        Target("local", str(house.folder / "archive")),
        log_epochs(house.connection, TOPIC),
    )
    house.connection.execute(
        "UPDATE penstock.log_epochs SET sealed_at = sealed_at - interval '1 d'"
    )
    house.reload()


def materialized(house: House) -> None:
    """Every asset by ``dg.materialize``: a run for those without partitions, one for each kind."""
    graph = house.defs.resolve_asset_graph()
    (hour,) = house.hours()
    partitions = {dg.HourlyPartitionsDefinition: hour, dg.DailyPartitionsDefinition: hour[:10]}
    chosen: dict[str | None, list[dg.AssetKey]] = {}
    for key in graph.materializable_asset_keys:
        made = graph.get(key).partitions_def
        chosen.setdefault(partitions[type(made)] if made else None, []).append(key)
    for partition, keys in chosen.items():
        done = dg.materialize(
            assets(house),
            selection=keys,
            instance=house.instance,
            resources=house.defs.resources,
            partition_key=partition,
            tags={AUTOMATIC: "true"},
            run_config=QUIET,
            raise_on_error=False,
        )
        assert done.success, failures(done)


def assets(house: House) -> list[dg.AssetsDefinition]:
    """The definitions that have something to run."""
    return [each for each in house.defs.assets or [] if isinstance(each, dg.AssetsDefinition)]


def seen_by(observed: dg.ExecuteInProcessResult) -> set[dg.AssetKey]:
    """The assets of which a run has made observations."""
    return {event.asset_key for event in observed.get_asset_observation_events() if event.asset_key}


def of_partition(house: House, job: str) -> dict[str, Any]:
    """What a job with partitions needs to run."""
    if job != "archive":
        return {}
    return {"partition_key": house.hours()[0], "tags": {AUTOMATIC: "true"}}


def sensed(house: House) -> set[str]:
    """Every sensor, after one tick of it."""
    sensors = house.defs.get_repository_def().sensor_defs
    for sensor in sensors:
        if isinstance(sensor, dg.AutomationConditionSensorDefinition):
            house.conditions(at(5))
        else:
            house.sense(sensor.name)
    return {each.name for each in sensors}


def scheduled(house: House) -> set[str]:
    """Every schedule, after one tick of it."""
    schedules = house.defs.get_repository_def().schedule_defs
    in_memory = house.instance
    with dg.instance_for_test() as house.instance:  # a schedule's context takes none in memory
        for each in schedules:
            tick(house, each.name)
    house.instance = in_memory
    return {each.name for each in schedules}
