"""Sensors and schedules against real states of the database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import penstock
from dagster_project import sensors
from dagster_project.naming import epoch_name, epochs_name
from dagster_project.sensors import Attempt, _ranges
from ops.seal import log_epochs
from penstock.archive.markers import adopt_target
from penstock.archive.targets import Target
from penstock.database import call
from penstock.subscriptions import stream
from penstock.upkeep.sequencing import sequence
from tests.dagster.conftest import EPOCH_EVENTS, TOPIC, House
from tests.dagster.test_load import DOWN, SLUG
from tests.kit.log import part


def test_neighbours_are_archived_in_one_run() -> None:
    order = [epoch_name((0, n)) for n in range(1, 41)]
    assert _ranges(order, order) == [
        (order[0], order[15]),
        (order[16], order[31]),
        (order[32], order[39]),
    ]
    due = [order[1], order[2], order[5], order[9], order[10]]
    assert _ranges(order, due) == [(due[0], due[1]), (due[2], due[2]), (due[3], due[4])]
    assert _ranges(order, []) == []


def test_attempts_pause_longer_and_longer_and_new_work_begins_anew() -> None:
    first = Attempt.next_of(None, "a", 1000.0)
    assert first == Attempt("a", 1, 1060.0)
    assert Attempt.next_of(first.dump(), "a", 1059.0) is None
    second = Attempt.next_of(first.dump(), "a", 1060.0)
    assert second == Attempt("a", 2, 1180.0)
    assert Attempt.next_of(second.dump(), "b", 1061.0) == Attempt("b", 1, 1121.0)
    assert Attempt.next_of(["a", 90, 0.0], "a", 0.0) == Attempt("a", 91, 3600.0)


def test_the_backlog_sensor_steps_in_only_when_nobody_moves_the_log(house: House) -> None:
    quiet = house.sense("backlog")
    assert quiet.run_requests == [] and quiet.skip_message == "no backlog"
    house.create_topic()
    house.publish(10)
    asked = house.sense("backlog")
    assert [each.job_name for each in asked.run_requests or []] == ["sequence"]
    house.asked(asked)
    house.done("policies")
    asked = house.sense("backlog")
    assert [each.job_name for each in asked.run_requests or []] == ["relay"]
    member = stream.join(house.connection, "shop-file", "a daemon")
    assert len(stream.check_in(house.connection, member)) == 2
    assert house.sense("backlog").run_requests == []
    stream.leave(house.connection, member)
    house.asked(house.sense("backlog"))
    assert house.sense("backlog").run_requests == []
    assert sum(1 for file in (house.folder / "relayed").iterdir() for _ in file.open()) == 10


def test_the_backlog_sensor_records_how_far_the_logs_are(house: House) -> None:
    house.create_topic()
    events = house.sense("backlog").asset_events
    assert [each.asset_key.to_user_string() for each in events] == [f"{SLUG}/log"]
    assert house.sense("backlog").asset_events == []
    house.publish(4)
    sequence(house.url)
    (event,) = house.sense("backlog").asset_events
    assert event.metadata["events ever"].value == 4
    first = part(house.connection, 0, TOPIC)
    assert event.tags == {"dagster/data_version": f"{first}:1.2,{first + 1}:1.2"}


def test_new_log_epochs_become_partitions_and_are_archived_once(house: House) -> None:
    house.create_topic()
    house.publish(4 * EPOCH_EVENTS)
    sequence(house.url)
    for partition in (0, 1):
        for _ in range(2):
            call(house.connection, "seal", topic=TOPIC, partition=partition,
                 max_events=EPOCH_EVENTS, max_age_seconds=None)  # fmt: skip
    found = house.sense("sealed_epochs")
    names = [epoch_name((partition, n)) for partition in (0, 1) for n in (1, 2)]
    assert house.instance.get_dynamic_partitions(epochs_name(TOPIC)) == names
    assert [each.partition for each in found.asset_events] == names
    (request,) = found.run_requests or []
    assert request.job_name == f"archive_{SLUG}"
    assert request.tags["dagster/asset_partition_range_start"] == names[0]
    assert request.tags["dagster/asset_partition_range_end"] == names[-1]
    again = house.sense("sealed_epochs")
    assert again.run_requests == [] and again.asset_events == []


def test_a_database_that_is_down_is_one_line_and_no_error(
    house: House, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("PENSTOCK_DATABASE_URL", DOWN)
    for name in ("backlog", "sealed_epochs", "missing_copies"):
        done = house.sense(name)
        assert "cannot connect to" in (done.skip_message or "")
        assert "s3cret-word" not in (done.skip_message or "")
    assert "cannot connect to" in tick(house, "relay_every_minute")


@pytest.mark.parametrize("sensor", ["sealed_epochs", "missing_copies"])
def test_one_failing_topic_does_not_end_the_tick(
    house: House, environment: pytest.MonkeyPatch, policy_path: Path, sensor: str
) -> None:
    """The others are looked at, and asked for; a database that is down ends it, see above.

    Guard: others_go_on.
    """
    house.create_topic()
    penstock.create_topic(house.connection, "shop/aaa", 1)
    text = policy_path.read_text()
    policy_path.write_text(text.replace("topics:", "topics:\n  shop/aaa: {archive: [local]}"))
    house.reload()
    house.publish(2 * EPOCH_EVENTS)
    sequence(house.url)
    call(house.connection, "seal", topic=TOPIC, partition=0,
         max_events=EPOCH_EVENTS, max_age_seconds=None)  # fmt: skip
    (epoch,) = log_epochs(house.connection, TOPIC)
    if sensor == "missing_copies":
        target = Target("local", str(house.folder / "archive"))
        adopt_target(house.url, target, even_without_copies=True)
        copy = {"event_count": epoch.event_count, "checksum": epoch.checksum, "location": "none"}
        call(house.connection, "record_copy", topic=TOPIC, partition=0, log_epoch=1, target="local",
             layout=1, first_row=0, **copy)  # fmt: skip
    real = vars(sensors)["copies_of"]

    def copies_of(connection: Any, topic: str) -> object:
        if topic == "shop/aaa":
            raise RuntimeError("this topic's own trouble")
        return real(connection, topic)

    environment.setattr(sensors, "copies_of", copies_of)
    done = house.sense(sensor)
    assert len(done.run_requests or []) == 1
    assert TOPIC in str(done) or SLUG in str(done)


def tick(house: House, name: str) -> str:
    """One evaluation of a schedule: the reason why it skips, or '' when it asks for a run."""
    repository = house.defs.get_repository_def()
    definition = repository.get_schedule_def(name)
    resources = dict(house.defs.resources or {})
    with dg.build_schedule_context(
        instance=house.instance, repository_def=repository, resources=resources
    ) as context:
        done = definition.evaluate_tick(context)
    assert bool(done.run_requests) != bool(done.skip_message)
    return done.skip_message or ""


def test_schedules_ask_for_runs_only_when_there_is_work(house: House) -> None:
    assert tick(house, "relay_every_minute") == "every relay has sent all there is"
    assert tick(house, "seal_every_five_minutes") == "every event that is in a log is sealed"
    assert tick(house, "policies_every_five_minutes") == "the database follows the policy file"
    house.create_topic()
    house.publish(10)
    sequence(house.url)
    assert tick(house, "policies_every_five_minutes") == ""
    house.done("policies")
    assert tick(house, "policies_every_five_minutes") == "the database follows the policy file"
    assert tick(house, "relay_every_minute") == ""
    assert tick(house, "seal_every_five_minutes") == ""
    assert tick(house, "sweep_every_five_minutes") == ""
    assert tick(house, "clean_every_hour") == ""
    member = stream.join(house.connection, "shop-file", "a daemon")
    stream.check_in(house.connection, member)
    assert "a daemon holds" in tick(house, "relay_every_minute")
