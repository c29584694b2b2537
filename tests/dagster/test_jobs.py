"""The jobs on a real database, with real sinks and a real Spark."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from dagster_project.naming import epoch_name, epochs_name
from ops.seal import log_epochs
from penstock.archive.markers import adopt_target
from penstock.archive.targets import Target
from penstock.database import call
from penstock.subscriptions import stream
from tests.archive.logs import Log, bring
from tests.dagster.conftest import EPOCH_EVENTS, TOPIC, House
from tests.dagster.test_load import SLUG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "s3cret-word"


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


def test_jobs_of_a_topic_that_is_not_there_yet_do_nothing(house: House) -> None:
    for name in ("sequence", "relay", "sweep", "policies", "seal", "backfill", "tidy", "health"):
        house.done(name)
    assert house.low_sequences_or_none() is None


def test_sequence_tells_how_far_each_log_is(house: House) -> None:
    house.create_topic()
    house.publish(30)
    done = house.job("sequence")
    assert done.success
    assert metadata_of(done, "penstock/sequence")["events"] == 30
    assert metadata_of(done, f"{SLUG}/sequenced")["events in the database"] == 30
    assert all(each.passed for each in done.get_asset_check_evaluations())


def test_a_hole_in_the_log_fails_the_check(house: House) -> None:
    house.create_topic()
    for _ in range(3):
        house.publish(4)
        house.job("sequence")
    house.connection.execute("DELETE FROM penstock.chunks WHERE first_sequence = 3")
    done = house.job("sequence")
    assert not done.success
    (failed,) = [each for each in done.get_asset_check_evaluations() if not each.passed]
    assert failed.check_name == "no_sequence_gap"


def test_sweep_frees_the_leases_of_the_dead(house: House) -> None:
    house.create_topic()
    stream.subscribe(house.connection, "readers", [TOPIC])
    stream.join(house.connection, "readers", "dead")
    house.connection.execute("UPDATE penstock.consumers SET deadline = now() - interval '1 s'")
    assert metadata_of(house.job("sweep"), "penstock/sweep")["expired consumers"] == 1


def test_policies_and_their_drift(house: House) -> None:
    house.create_topic()
    drifted = house.job("health").get_asset_check_evaluations()
    assert {each.check_name: each.passed for each in drifted}["policy_drift"] is False
    assert metadata_of(house.job("policies"), "penstock/policies")["changes"] == 2
    applied = house.job("health").get_asset_check_evaluations()
    assert {each.check_name: each.passed for each in applied} == {
        "policy_drift": True,
        "no_errors": True,
    }


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
    return {"ops": {"relay__shop_file_a6b6e10c": {"config": {"max_seconds": max_seconds}}}}


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
    names = [epoch_name((partition, n)) for partition in (0, 1) for n in (1, 2)]
    assert house.instance.get_dynamic_partitions(epochs_name(TOPIC)) == names

    (archived,) = house.asked(house.sense("sealed_epochs"))
    assert archived.success
    events = archived.get_asset_materialization_events()
    assert sorted(str(event.partition) for event in events) == names
    assert {event.materialization.metadata["dagster/row_count"].value for event in events} == {
        EPOCH_EVENTS
    }
    assert set(house.copies().values()) == {"verified"} and len(house.copies()) == 4

    cleaned = house.job("clean")
    assert cleaned.success
    (check,) = cleaned.get_asset_check_evaluations()
    assert check.passed and check.metadata["copies read"].value == 4
    assert metadata_of(cleaned, f"{SLUG}/retention")["events removed"] == 4 * EPOCH_EVENTS
    assert house.low_sequences() == [2 * EPOCH_EVENTS + 1] * 2
    assert_no_secret(house, archived)
    assert_no_secret(house, cleaned)


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_retention_stops_at_a_copy_that_is_not_there_until_it_is_backfilled(
    house: House, spark: SparkSession
) -> None:
    """The record says that there are copies; the guard reads them back and finds nothing."""
    sealed_with_false_records(house)
    stopped = house.job("clean")
    assert failed_steps(stopped) == {f"{SLUG}__retention"}
    (check,) = stopped.get_asset_check_evaluations()
    assert not check.passed and check.metadata["copies read"].value == 2
    assert house.low_sequences() == [1, 1]
    assert set(house.copies().values()) == {"missing"}

    asked = house.sense("missing_copies")
    (first,) = asked.run_requests or []
    assert house.sense("missing_copies").run_requests == []
    (repaired,) = house.asked(asked)
    events = repaired.get_asset_materialization_events()
    assert sorted(str(event.partition) for event in events) == [
        epoch_name((0, 1)),
        epoch_name((1, 1)),
    ]
    assert set(house.copies().values()) == {"verified"}
    assert house.sense("missing_copies").run_requests == []

    file = house.archived_file()
    file.rename(house.folder / "lost.parquet")
    (second,) = house.sense("missing_copies").run_requests or []
    assert second.run_key != first.run_key
    (house.folder / "lost.parquet").rename(file)
    house.done("backfill")
    assert house.sense("missing_copies").run_requests == []
    house.done("clean")
    assert house.low_sequences() == [EPOCH_EVENTS + 1] * 2


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
    job = dg.define_asset_job("alone", [f"{SLUG}/retention"])
    alone = dg.Definitions.merge(house.defs, dg.Definitions(jobs=[job]))
    alone.resolve_job_def("alone").execute_in_process(instance=house.instance, raise_on_error=False)
    assert house.low_sequences() == [1, 1]
    assert house.copies() == {(0, 1, "local"): "missing", (1, 1, "local"): "verified"}

    # A person backfills the partition on Dagster's page; of the other one, which is recorded as
    # verified, the file is gone without anybody having noticed.
    for other in (house.folder / "archive").glob("*/partition=1/log_epoch=1/*.parquet"):
        other.unlink()
    for partition in (0, 1):
        house.done(f"archive_{SLUG}", partition_key=epoch_name((partition, 1)))
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
    house.asked(house.sense("sealed_epochs"))


def test_a_target_that_is_not_mounted_is_told_and_nothing_goes(house: House) -> None:
    """0 copies forgotten, no table made in the bare mount point; Spark is not started."""
    sealed_with_false_records(house)
    shutil.rmtree(house.folder / "archive")
    (house.folder / "archive").mkdir()
    done = house.done("clean")
    (check,) = done.get_asset_check_evaluations()
    assert check.passed and "not available" in check.metadata
    assert house.low_sequences() == [1, 1]
    assert house.sense("missing_copies").run_requests == []
    assert house.job("backfill").success, "what is not there is not missing"
    assert set(house.copies().values()) == {"verified"}
    assert list((house.folder / "archive").iterdir()) == []


@pytest.mark.spark
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
    asked = house.sense("missing_copies")
    (request,) = asked.run_requests or []
    assert request.run_config["ops"]["backfill_copies"]["config"]["target"] == ""
    house.asked(asked)
    assert house.copies()[1, 1, "second"] == "verified"
    assert house.sense("missing_copies").run_requests == []


def test_nothing_is_removed_while_the_database_follows_another_policy(house: House) -> None:
    """A relay that is written down but not subscribed yet would lose what goes before it starts."""
    house.create_topic()
    house.publish(2 * EPOCH_EVENTS)
    for name in ("sequence", "seal"):
        house.done(name)
    done = house.job("clean")
    assert failed_steps(done) == {f"{SLUG}__retention"}
    assert "the policy file says" in str(done.all_events)


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
