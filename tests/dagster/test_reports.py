"""What Dagster's pages show of the checks: after a report without a run, beside a missing topic."""

from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import penstock
from dagster_project import checks
from dagster_project.common import hour_name
from penstock.subscriptions import stream
from penstock.upkeep.sequencing import sequence
from resources import webhook
from tests.dagster.conftest import EPOCH_EVENTS, TOPIC, House, failures
from tests.dagster.test_house import context_of
from tests.dagster.test_load import RELAY, SLUG
from tests.kit.proof import proves

SEQUENCED = dg.AssetKey([*SLUG.split("/"), "orders_sequenced"])
LATER = "shop/later"
LATER_POLICY = "{archive: [local], retention: {minimum_age: 0s, copies: 1}}"


def shown(house: House, key: dg.AssetKey) -> dict[str, bool | None]:
    """Each check of an asset as its page shows it: None is 'Not evaluated'."""
    from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecord

    context = context_of(house)

    async def look(check: dg.AssetCheckKey) -> bool | None:
        record = await AssetCheckExecutionRecord.gen(context, check)
        if record is None or not await record.targets_latest_materialization(context):
            return None
        return record.evaluation.passed if record.evaluation else None

    async def all_of_it() -> dict[str, bool | None]:
        found = house.defs.resolve_asset_graph().get_check_keys_for_assets({key})
        return {check.name: await look(check) for check in sorted(found, key=lambda c: c.name)}

    return asyncio.run(all_of_it())


def traffic(house: House, events: int = 4) -> None:
    """Events that a daemon has sequenced, and the tick that reports it."""
    house.publish(events)
    sequence(house.url)
    house.sense("backlog")


def test_a_report_without_a_run_has_its_checks_with_it(house: House) -> None:
    """Dagster shows what was found of the last materialization only.

    Guard: checks.Verdicts, of which the sensor takes the checks of what it reports.
    """
    house.create_topic()
    house.done("policies")
    traffic(house)
    all_pass = dict.fromkeys(
        ("consumer_lag", "dead_letters", "lease_coverage", "no_sequence_gap"), True
    )
    assert shown(house, SEQUENCED) == all_pass
    house.done("relay")
    house.done("health")
    traffic(house)
    assert shown(house, SEQUENCED) == all_pass
    house.done("relay")
    house.sense("backlog")
    relay = dg.AssetKey(RELAY.split("/"))
    assert shown(house, relay) == {"backlog_age": True, "dead_letters": True}


@proves("a failed check stays to be seen")
def test_a_failure_does_not_vanish_with_the_next_report(
    house: House, environment: pytest.MonkeyPatch, policy_path: Path
) -> None:
    """A late consumer and a gap; the gap also where a tick may not look at so many events.

    Guard: checks.Verdicts, which repeats the last failure of a look that it may not make.
    """
    policy_path.write_text(policy_path.read_text().replace("consumer_lag: 1h", "consumer_lag: 0"))
    house.reload()
    house.create_topic()
    stream.subscribe(house.connection, "readers", [TOPIC], start="earliest")
    traffic(house)
    house.connection.execute(
        "UPDATE penstock.chunks SET sequenced_at = now() - interval '1 minute'"
    )
    for _ in range(2):
        traffic(house)
    house.connection.execute("DELETE FROM penstock.chunks WHERE first_sequence = 3")
    with environment.context() as fresh:
        fresh.setattr("ops.probes.WHOLE_LOOK", dt.timedelta(0))
        house.job("health")
    for most in (0, checks.MOST_EVENTS):
        environment.setattr(checks, "MOST_EVENTS", most)
        traffic(house)
        found = shown(house, SEQUENCED)
        assert found["consumer_lag"] is False and found["no_sequence_gap"] is False, found


def test_a_tick_looks_at_a_bounded_part_of_a_log(
    house: House, environment: pytest.MonkeyPatch
) -> None:
    """What is left to a run is not called passed.  Guard: MOST_EVENTS of dagster_project.checks."""
    environment.setattr(checks, "MOST_EVENTS", 3)
    house.create_topic()
    traffic(house)
    assert shown(house, SEQUENCED)["no_sequence_gap"] is None
    house.done("health")
    assert shown(house, SEQUENCED)["no_sequence_gap"] is True
    traffic(house, events=2)
    assert shown(house, SEQUENCED)["no_sequence_gap"] is True


def skipped(done: dg.ExecuteInProcessResult) -> list[str]:
    """The steps that Dagster has skipped."""
    return [each.step_key or "" for each in done.all_events if each.is_step_skipped]


def told(done: dg.ExecuteInProcessResult) -> set[tuple[str, str]]:
    """Of which assets which checks were evaluated."""
    return {
        ("/".join(each.asset_key.path[1:]), each.check_name)
        for each in done.get_asset_check_evaluations()
    }


def beside_a_missing_topic(house: House, policy_path: Path) -> None:
    """A topic, and another one with an archive and a relay, deleted since Dagster has loaded."""
    text = policy_path.read_text()
    text = text.replace("topics:\n", f"topics:\n  {LATER}: {LATER_POLICY}\n")
    relay = f'  later: {{topic: {LATER}, sink: "jsonl:relayed"}}\n'
    policy_path.write_text(text.replace("relays:\n", f"relays:\n{relay}"))
    penstock.create_topic(house.connection, LATER, 1, create_namespaces=True)
    house.create_topic()
    penstock.delete_topic(house.connection, LATER)


def this_hour() -> str:
    """A partition in which nothing was sealed, so its run starts no Spark."""
    return hour_name(dt.datetime.now(dt.UTC))


@proves("a failed check stays to be seen")
def test_a_topic_that_is_missing_skips_no_check_of_the_others(
    house: House, policy_path: Path
) -> None:
    """And nothing is told of it: nothing was looked at.

    Guards: no_event, the output that the op of checks waits for, and World.is_there.
    """
    beside_a_missing_topic(house, policy_path)
    house.publish(4)
    done = house.done("sequence")
    assert told(done) == {("shop_orders/orders_sequenced", "no_sequence_gap")}
    assert "shop_later" not in str([e.asset_key for e in done.get_asset_materialization_events()])
    house.done("policies")
    relayed = house.done("relay")
    assert told(relayed) == {("relay/shop_file", each) for each in ("backlog_age", "dead_letters")}
    archived = house.job("archive", partition_key=this_hour())
    assert archived.success, failures(archived)
    own = {("shop_orders/orders_archive", each) for each in ("readable", "schema_drift")}
    assert own <= told(archived)
    healthy = house.job("health")
    assert not any("later" in asset for asset, _ in told(healthy))
    for each in (done, relayed, archived, healthy):
        assert skipped(each) == []


def test_the_checks_of_a_removal_say_that_the_topic_is_missing(
    house: House, policy_path: Path
) -> None:
    """Dagster asks for a verdict of a check that stands in the op of its asset."""
    beside_a_missing_topic(house, policy_path)
    house.publish(4)
    sequence(house.url)
    house.done("policies")
    for name, options in (
        ("clean", {}), ("archive", {"partition_key": this_hour()}),
    ):  # fmt: skip
        found: dict[str, Any] = {
            each.asset_key.path[1]: each.metadata.get("note")
            for each in house.job(name, **options).get_asset_check_evaluations()
            if each.check_name in {"guarded_drop", "copies_verified"}
        }
        assert found["shop_orders"] is None and "does not exist yet" in str(found["shop_later"])


IDLE = ("backlog", "seal", "sealed", "backfills", "lost_copies", "run_failures")


def test_an_idle_tick_opens_no_storage_of_dagster(
    house: House, environment: pytest.MonkeyPatch
) -> None:
    """Opening it costs more than all that an idle tick does.

    Guards: skip_while_down gives the database, which is no resource; Shown, Verdicts and the sensor
    of failed runs ask for the instance only when they need it.  Here asking for it is an error.
    """
    environment.delenv(webhook.VARIABLE, raising=False)
    house.create_topic()
    house.publish(2 * EPOCH_EVENTS)
    for name in ("sequence", "seal"):
        house.done(name)
    for _ in range(2):
        for name in IDLE:
            house.sense(name)
    repository = house.defs.get_repository_def()
    for name in IDLE:
        sensor = repository.get_sensor_def(name)
        assert not sensor.required_resource_keys
        with dg.build_sensor_context(
            cursor=house.cursors[name], sensor_name=name, repository_def=repository
        ) as context:
            done = sensor.evaluate_tick(context)
        assert done.skip_message and not done.asset_events, name
