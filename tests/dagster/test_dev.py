"""``dagster dev`` at the root, over GraphQL: it loads, ticks, and works off a backfill."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from dagster_project.assets.epochs import COPIES_VERIFIED
from dagster_project.common import hour_name
from dagster_project.jobs import DAILY
from ops.hours import changed_hours
from ops.seal import log_epochs, seal
from penstock.database import connect, migrate
from penstock.upkeep.sequencing import sequence
from tests.dagster.conftest import TOPIC
from tests.dagster.dev import RELOAD, Dev, duty_config, running

LOADED = """
{ workspaceOrError { ... on Workspace { locationEntries {
    name
    locationOrLoadError { __typename ... on PythonError { message } ... on RepositoryLocation {
        repositories {
            assetNodes { id }
            sensors { name sensorState { status } }
            schedules { name scheduleState { status } }
        } } } } } } }
"""
TICKS = """
{ sensorOrError(sensorSelector: {
    repositoryLocationName: "penstock", repositoryName: "__repository__", sensorName: "backlog"
  }) { ... on Sensor { sensorState { ticks(limit: 5) { status skipReason error { message } } } } } }
"""


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    """``dagster dev`` with the policy file of the tests."""
    with running(tmp_path) as found:
        yield found


@pytest.mark.timeout(300)
def test_dagster_dev_starts_loads_and_ticks(dev: Dev) -> None:
    dev.wait_until_it_answers()
    (entry,) = dev.ask(LOADED)["workspaceOrError"]["locationEntries"]
    location = entry["locationOrLoadError"]
    assert entry["name"] == "penstock"
    assert location["__typename"] == "RepositoryLocation", location
    (repository,) = location["repositories"]
    assert len(repository["assetNodes"]) == 6  # there is no topic yet
    states = [each["sensorState"]["status"] for each in repository["sensors"]]
    states += [each["scheduleState"]["status"] for each in repository["schedules"]]
    assert len(states) == 8 and set(states) == {"RUNNING"}
    ticks = wait_for_a_tick(dev)
    # The embedded database was started and migrated, or the sensor could not have looked.
    assert {(tick["status"], tick["skipReason"]) for tick in ticks} == {("SKIPPED", "no backlog")}
    with connect(dev.embedded.url()) as connection:
        penstock.create_topic(connection, TOPIC, 1, create_namespaces=True)
        penstock.publish(connection, TOPIC, b"x")
        assert dev.refused("sequence", duty_config("sequence", "sparkle"))
        dev.done("sequence", duty_config("sequence", "sql"))
        assert penstock.log.high_watermarks(connection, TOPIC) == {0: 1}
    said = dev.log.read_text()
    assert "the topics of the database are not known" not in said
    assert "Traceback" not in said


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_backfill_of_several_hours_from_the_page(dev: Dev) -> None:
    """Log epochs of three hours, archived by one backfill, as a person asks for it."""
    dev.wait_until_it_answers()
    hours = sealed_hours(dev.embedded.url())
    dev.ask(RELOAD)
    archive = ["penstock", "shop_orders", "orders_archive"]
    states = dev.backfilled(archive, hours)
    assert states["numMaterialized"] == 3 and states["numFailed"] == 0
    # Also the checks in ops of their own. Guard: no_event, the output they wait for.
    assert dev.checked(archive) == dict.fromkeys([COPIES_VERIFIED, *DAILY], "SUCCEEDED")
    with connect(dev.embedded.url()) as connection:
        assert {each.targets for each in log_epochs(connection, TOPIC)} == {("local",)}


def sealed_hours(url: str) -> list[str]:
    """One log epoch in each of the last three hours; the partitions of these."""
    migrate.migrate(url)
    with connect(url) as connection:
        penstock.create_topic(connection, TOPIC, 1, create_namespaces=True)
        for _ in range(3):
            penstock.publish(connection, TOPIC, b"x")
        sequence(url)
        seal(connection, TOPIC, max_events=1)
        connection.execute(
            "UPDATE penstock.log_epochs SET sealed_at = sealed_at - log_epoch * interval '1 hour'"
        )
        return [hour_name(each.hour) for each in changed_hours(connection)]


def wait_for_a_tick(dev: Dev) -> list[dict[str, Any]]:
    """The first ticks of the backlog sensor."""
    deadline = time.monotonic() + 90
    while True:
        ticks = dev.ask(TICKS)["sensorOrError"]["sensorState"]["ticks"]
        if finished := [tick for tick in ticks if tick["status"] != "STARTED"]:
            return finished
        assert time.monotonic() < deadline, dev.log.read_text()
        time.sleep(1)
