"""The jobs on a real database, with real sinks and a real Spark."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

import penstock
from dagster_project import jobs
from dagster_project.assets import archiving
from dagster_project.common import DATA_VERSION
from ops import probes
from ops.backfill.requests import list_backfills
from ops.hours import data_version
from ops.seal import log_epochs
from penstock.archive.markers import adopt_target
from penstock.archive.targets import Target
from penstock.database import call
from penstock.errors import TargetUnavailable
from penstock.subscriptions import stream
from penstock.upkeep.sequencing import sequence
from tests.archive.logs import Log, bring
from tests.dagster.conftest import EPOCH_EVENTS, TOPIC, House, failures
from tests.dagster.test_load import SLUG
from tests.kit.proof import proves

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "s3cret-word"
RETENTION_STEP = f"{SLUG.replace('/', '__')}__orders_retention"


def metadata_of(done: dg.ExecuteInProcessResult, asset: str) -> dict[str, Any]:
    """What the one materialization of an asset says."""
    (found,) = [
        event.materialization.metadata
        for event in done.get_asset_materialization_events()
        if event.asset_key is not None and event.asset_key.to_user_string() == asset
    ]
    return {name: value.value for name, value in found.items()}


def failed_steps(done: dg.ExecuteInProcessResult) -> set[str]:
    """The steps that failed by themselves."""
    return {event.step_key or "" for event in done.all_events if event.is_step_failure}


@pytest.mark.timeout(400)
def test_jobs_of_a_topic_that_is_not_there_any_more_do_nothing(house: House) -> None:
    house.create_topic()
    penstock.delete_topic(house.connection, TOPIC)
    house.done("archive", partition_key=f"{dt.datetime.now(dt.UTC):%Y-%m-%d-%H:00}")
    for name in (
        "sequence", "relay", "sweep", "storage", "policies", "seal", "backfill", "audit", "tidy",
        "inspect", "health",
    ):  # fmt: skip
        house.done(name)
    assert house.low_sequences_or_none() is None


def test_sequence_tells_how_far_each_log_is(house: House) -> None:
    house.create_topic()
    house.publish(30)
    done = house.job("sequence")
    assert done.success
    assert metadata_of(done, "penstock/sequence")["events"] == 30
    assert metadata_of(done, f"{SLUG}/orders_sequenced")["events ever"] == 30
    assert all(each.passed for each in done.get_asset_check_evaluations())


def test_a_hole_in_the_log_fails_the_check(house: House) -> None:
    house.create_topic()
    for _ in range(3):
        house.publish(4)
        sequence(house.url)
    house.connection.execute("DELETE FROM penstock.chunks WHERE first_sequence = 3")
    done = house.job("sequence")
    assert not done.success
    (failed,) = [each for each in done.get_asset_check_evaluations() if not each.passed]
    assert failed.check_name == "no_sequence_gap"


@proves("a daemon's work stays its own")
def test_a_check_of_the_log_goes_on_where_the_last_one_ended(
    house: House, environment: pytest.MonkeyPatch
) -> None:
    """What was whole is looked at again once a day; after a failure, and without a memory, all is.

    Guard: checks.kept, and WHOLE_LOOK in ops.probes.
    """

    def look(job: str) -> tuple[bool, int]:
        found = house.job(job).get_asset_check_evaluations()
        (check,) = [each for each in found if each.check_name == "no_sequence_gap"]
        return check.passed, int(str(check.metadata["events looked at"].value))

    house.create_topic()
    for count in (4, 8):
        house.publish(count)
        assert look("sequence") == (True, count)
    house.connection.execute("DELETE FROM penstock.chunks WHERE first_sequence = 1")
    assert look("health") == (True, 0)
    with environment.context() as later:
        later.setattr(probes, "WHOLE_LOOK", dt.timedelta(0))
        assert look("health") == (False, 12)
    assert look("health") == (False, 12)


def test_sweep_frees_the_leases_of_the_dead(house: House) -> None:
    house.create_topic()
    stream.subscribe(house.connection, "readers", [TOPIC])
    stream.join(house.connection, "readers", "dead")
    house.connection.execute("UPDATE penstock.consumers SET deadline = now() - interval '1 s'")
    assert metadata_of(house.job("sweep"), "penstock/sweep")["expired consumers"] == 1


def test_policies_and_their_drift(house: House) -> None:
    house.create_topic()
    drifted = house.job("health").get_asset_check_evaluations()
    assert verdicts(drifted)["policies:policy_drift"] is False
    assert metadata_of(house.job("policies"), "penstock/policies")["changes"] == 2
    applied = house.job("health").get_asset_check_evaluations()
    assert len(applied) == 11 and all(each.passed for each in applied), verdicts(applied)


def verdicts(found: Any) -> dict[str, bool]:
    """Each check of an asset, and whether it passed."""
    return {f"{each.asset_key.path[-1]}:{each.check_name}": each.passed for each in found}


def test_a_relay_that_fails_says_why_without_its_secrets(
    house: House, environment: pytest.MonkeyPatch
) -> None:
    house.create_topic()
    house.publish(4)
    house.job("sequence")
    (house.folder / "relayed").write_text("no folder")
    environment.setenv("PENSTOCK_PULSAR_TOKEN", SECRET)
    done = house.job("relay", run_config=relay_config(max_seconds=1))
    assert not done.success
    assert "cannot be made" in str(done.all_events) or "relayed" in str(done.all_events)
    assert_no_secret(house, done)


def relay_config(max_seconds: int) -> dict[str, Any]:
    """Run configuration of the one relay."""
    return {"ops": {"penstock__relay__shop_file": {"config": {"max_seconds": max_seconds}}}}


def assert_no_secret(house: House, done: dg.ExecuteInProcessResult) -> None:
    """Neither the password of the database nor a token is in what Dagster has stored."""
    password = house.connection.info.password
    stored = "".join(repr(record) for record in house.instance.all_logs(done.run_id))
    for secret in filter(None, (SECRET, password)):
        assert secret not in stored


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_the_whole_road(house: House, spark: SparkSession) -> None:
    """Publish, sequence, relay, seal, archive, clean: each a job, asked for as Dagster asks."""
    house.create_topic()
    house.done("policies")
    house.publish(4 * EPOCH_EVENTS)
    for name in ("sequence", "relay", "seal"):
        house.done(name)
    relayed = [
        json.loads(line)
        for file in sorted((house.folder / "relayed").iterdir())
        for line in file.read_text().splitlines()
    ]
    assert len(relayed) == 4 * EPOCH_EVENTS
    (hour,) = house.hours()
    (archived,) = house.archive()
    assert archived.success, failures(archived)
    (event,) = archived.get_asset_materialization_events()
    materialization = event.materialization
    assert event.partition == hour and materialization.metadata["verified"].value == "4 of 4"
    assert materialization.metadata["dagster/row_count"].value == 4 * EPOCH_EVENTS
    version = data_version(log_epochs(house.connection, TOPIC))
    assert (materialization.tags or {})[DATA_VERSION] == version
    made = verdicts(archived.get_asset_check_evaluations())
    assert made == {f"orders_archive:{name}": True for name in ("copies_verified", *jobs.DAILY)}
    assert set(house.copies().values()) == {"verified"} and len(house.copies()) == 4
    # The sensor reports nothing that the runs have reported.
    assert house.sense("sealed").asset_events == []
    inspected = house.done("inspect").get_asset_check_evaluations()
    assert verdicts(inspected) == {f"orders_archive:{name}": True for name in jobs.DAILY}

    cleaned = house.job("clean")
    assert cleaned.success
    (check,) = cleaned.get_asset_check_evaluations()
    assert check.passed and check.metadata["copies read"].value == 4
    assert metadata_of(cleaned, f"{SLUG}/orders_retention")["events removed"] == 4 * EPOCH_EVENTS
    assert house.low_sequences() == [2 * EPOCH_EVENTS + 1] * 2
    assert_no_secret(house, archived)
    assert_no_secret(house, cleaned)


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(400)
def test_retention_stops_at_a_copy_that_is_not_there_until_it_is_backfilled(
    house: House, spark: SparkSession
) -> None:
    """The record says that there are copies; the guard reads them back and finds nothing."""
    sealed_with_false_records(house)
    stopped = house.job("clean")
    assert failed_steps(stopped) == {RETENTION_STEP}
    (check,) = stopped.get_asset_check_evaluations()
    assert not check.passed and check.metadata["copies read"].value == 2
    assert house.low_sequences() == [1, 1]
    assert set(house.copies().values()) == {"missing"}

    house.sense("lost_copies")
    house.asked(house.sense("backfills"))
    assert set(house.copies().values()) == {"verified"}
    (event,) = house.sense("sealed").asset_events
    assert isinstance(event, dg.AssetMaterialization) and event.partition == house.hours()[0]

    house.archived_file().rename(house.folder / "lost.parquet")
    house.done("audit")
    assert "missing" in set(house.copies().values())
    house.sense("lost_copies")
    house.asked(house.sense("backfills"))
    assert [each.state for each in list_backfills(house.connection)] == ["done", "done"]
    house.done("clean")
    assert house.low_sequences() == [EPOCH_EVENTS + 1] * 2


@proves("D9 at a damaged copy")
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_retention_alone_over_a_copy_with_a_flipped_bit_removes_nothing(
    house: House, spark: SparkSession
) -> None:
    """The asset reads back what it removes, whatever else was run; the page's repair mends it.

    Guard: ops.retention.clean; the check only reports what it has found.
    """
    archived(house)
    file = house.archived_file()
    whole = file.read_bytes()
    place = len(whole) // 3
    file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    job = dg.define_asset_job("alone", [f"{SLUG}/orders_retention"])
    alone = dg.Definitions.merge(house.defs, dg.Definitions(jobs=[job]))
    alone.resolve_job_def("alone").execute_in_process(instance=house.instance, raise_on_error=False)
    assert house.low_sequences() == [1, 1]
    assert house.copies() == {(0, 1, "local"): "missing", (1, 1, "local"): "verified"}

    # A person backfills the hour on Dagster's page; of the other one, which is recorded as
    # verified, the file is gone without anybody having noticed.
    for other in (house.folder / "archive").glob("*/partition=1/log_epoch=1/*.parquet"):
        other.unlink()
    (hour,) = house.hours()
    house.done("archive", partition_key=hour)
    assert set(house.copies().values()) == {"verified"}
    house.done("clean")
    assert house.low_sequences() == [EPOCH_EVENTS + 1] * 2


def test_what_killed_runs_left_goes_after_a_week(house: House) -> None:
    """The job looks at every table of the policy file; what a commit names always stays."""
    house.create_topic()
    house.publish(2 * EPOCH_EVENTS)
    for name in ("policies", "sequence", "seal"):
        house.done(name)
    target = Target("local", str(house.folder / "archive"))
    log = Log(house.connection, house.url, TOPIC)
    bring(log, target, log_epochs(house.connection, TOPIC))
    named = house.archived_file()
    old, new = named.with_name("old.parquet"), named.with_name("new.parquet")
    for path in (named, old, new):
        path.write_bytes(named.read_bytes())
        week = time.time() - 8 * 86_400
        os.utime(path, None if path == new else (week, week))
    house.done("tidy")
    assert [path.exists() for path in (named, old, new)] == [True, False, True]


def archived(house: House) -> None:
    """One log epoch in each partition, relayed and archived."""
    house.create_topic()
    house.publish(2 * EPOCH_EVENTS)
    for name in ("policies", "sequence", "relay", "seal"):
        house.done(name)
    assert all(each.success for each in house.archive())


def test_a_target_that_is_not_mounted_is_told_and_nothing_goes(house: House) -> None:
    """0 copies forgotten, no table made in the bare mount point; Spark is not started."""
    sealed_with_false_records(house)
    shutil.rmtree(house.folder / "archive")
    (house.folder / "archive").mkdir()
    done = house.done("clean")
    (check,) = done.get_asset_check_evaluations()
    assert check.passed and "not available" in check.metadata
    assert house.low_sequences() == [1, 1]
    failed = house.job("audit")
    assert "is not available" in failures(failed)
    house.sense("lost_copies")
    assert list_backfills(house.connection) == []
    assert set(house.copies().values()) == {"verified"}
    assert list((house.folder / "archive").iterdir()) == []


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_target_that_is_new_gets_what_the_database_has_dropped(
    house: House, spark: SparkSession, policy_path: Path
) -> None:
    """From the other target; and a target that cannot be used holds up neither."""
    archived(house)
    house.done("clean")
    assert house.low_sequences() == [EPOCH_EVENTS + 1] * 2
    text = policy_path.read_text()
    text = text.replace("{local: archive}", "{local: archive, away: '${NOT_SET}', second: second}")
    policy_path.write_text(text.replace("[local]", "[away, second, local]"))
    house.reload()
    house.done("policies")
    assert "away" in failures(house.job("audit"))
    (request,) = list_backfills(house.connection)
    assert request.target == "second"
    house.asked(house.sense("backfills"))
    assert house.copies()[1, 1, "second"] == "verified"
    house.job("audit")
    assert len(list_backfills(house.connection)) == 1


def test_nothing_is_removed_while_the_database_follows_another_policy(house: House) -> None:
    """A relay that is written down but not subscribed yet would lose what goes before it starts."""
    house.create_topic()
    house.publish(2 * EPOCH_EVENTS)
    for name in ("sequence", "seal"):
        house.done(name)
    done = house.job("clean")
    assert failed_steps(done) == {RETENTION_STEP}
    assert "the policy file says" in str(done.all_events)


@proves("Dagster shows what is")
def test_a_log_epoch_that_fails_stops_no_other_and_the_hour_stays_due(
    house: House, environment: pytest.MonkeyPatch
) -> None:
    """3 of 4 are shown as verified; the run fails, and the hour is missing until it is whole.

    Guard: the archive's run reports what the database has recorded, whatever was raised.
    """
    house.create_topic()
    house.publish(4 * EPOCH_EVENTS)
    for name in ("policies", "sequence", "seal"):
        house.done(name)
    target = Target("local", str(house.folder / "archive"))
    log = Log(house.connection, house.url, TOPIC)
    epochs = log_epochs(house.connection, TOPIC)

    def all_but_one(*_: Any, **__: Any) -> list[Exception]:
        bring(log, target, epochs[:3])
        return [TargetUnavailable("one could not be copied", hint="mend it")]

    environment.setattr("dagster_project.assets.epochs.bring", all_but_one)
    house.reload()
    (failed,) = house.archive()
    assert not failed.success and "one could not be copied" in failures(failed)
    assert failed.get_asset_materialization_events() == []
    (seen,) = failed.get_asset_observation_events()
    assert seen.asset_observation_data.asset_observation.metadata["verified"].value == "3 of 4"
    assert not failed.get_asset_check_evaluations()[0].passed


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_target_that_fails_stops_no_other(
    house: House, spark: SparkSession, policy_path: Path
) -> None:
    """Guard: archiving.bring."""
    assert archiving.bring is not None
    (house.folder / "second").write_text("no folder")
    text = policy_path.read_text()
    text = text.replace("{local: archive}", "{away: '${NOT_SET}', second: second, local: archive}")
    policy_path.write_text(text.replace("[local]", "[away, second, local]"))
    house.reload()
    house.create_topic()
    house.publish(2 * EPOCH_EVENTS)
    for name in ("policies", "sequence", "seal"):
        house.done(name)
    (failed,) = house.archive()
    assert not failed.success
    assert {place[2]: state for place, state in house.copies().items()} == {"local": "verified"}


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_a_closed_day_is_rolled_up(house: House, spark: SparkSession) -> None:
    """As a run of its partition does it; the clock of the log epochs is set back by a day."""
    archived(house)
    house.connection.execute(
        "UPDATE penstock.log_epochs SET sealed_at = sealed_at - interval '1 d'"
    )
    house.reload()
    day = f"{dt.datetime.now(dt.UTC) - dt.timedelta(days=1):%Y-%m-%d}"
    job = dg.define_asset_job("alone", [f"{SLUG}/orders_rollup"])
    alone = dg.Definitions.merge(house.defs, dg.Definitions(jobs=[job]))
    done = alone.resolve_job_def("alone").execute_in_process(
        instance=house.instance, raise_on_error=False, partition_key=day
    )
    assert done.success, failures(done)
    assert verdicts(done.get_asset_check_evaluations()) == {"orders_rollup:rows_unchanged": True}


def sealed_with_false_records(house: House) -> None:
    """One log epoch in each partition, relayed; the database believes in copies that are not."""
    house.create_topic()
    house.publish(2 * EPOCH_EVENTS)
    for name in ("policies", "sequence", "relay", "seal"):
        house.done(name)
    target = Target("local", str(house.folder / "archive"))
    adopt_target(house.url, target, even_without_copies=True)
    for epoch in log_epochs(house.connection, TOPIC):
        call(
            house.connection,
            "record_copy",
            topic=TOPIC,
            partition=epoch.partition,
            log_epoch=epoch.log_epoch,
            target="local",
            location="nowhere",
            event_count=epoch.event_count,
            checksum=epoch.checksum,
            layout=1,
            first_row=0,
        )
