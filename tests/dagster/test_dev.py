"""``dagster dev`` at the root, over GraphQL: it loads, ticks, and works off a backfill."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

import penstock
from dagster_project.common import hour_name
from ops.hours import changed_hours
from ops.seal import log_epochs, seal
from penstock.database import connect, migrate
from penstock.upkeep.sequencing import sequence
from resources.embedded import EmbeddedPostgres
from tests.dagster.conftest import POLICIES, TOPIC
from tests.dagster.test_load import ROOT

START_SECONDS = 150

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
BACKFILL = """
mutation Launch($hours: [String!]) {
  launchPartitionBackfill(backfillParams: {
    partitionNames: $hours, assetSelection: [{path: ["penstock", "shop_orders", "archive"]}]
  }) { __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }
"""
STATUS = """
query Status($id: String!) { partitionBackfillOrError(backfillId: $id) {
  __typename ... on PartitionBackfill { status } ... on PythonError { message } } }
"""
PARTITIONS = """
{ assetNodeOrError(assetKey: {path: ["penstock", "shop_orders", "archive"]}) {
  ... on AssetNode { partitionStats { numMaterialized numFailed } } } }
"""
RELOAD = """
mutation { reloadRepositoryLocation(repositoryLocationName: "penstock") { __typename } }
"""
TICKS = """
{ sensorOrError(sensorSelector: {
    repositoryLocationName: "penstock", repositoryName: "__repository__", sensorName: "backlog"
  }) { ... on Sensor { sensorState { ticks(limit: 5) { status skipReason error { message } } } } } }
"""


@dataclass
class Dev:
    """A running ``dagster dev``."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path
    embedded: EmbeddedPostgres

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """The answer to a GraphQL query."""
        request = urllib.request.Request(
            f"{self.url}/graphql",
            data=json.dumps({"query": query, "variables": variables}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
        assert "errors" not in found, found
        data: dict[str, Any] = found["data"]
        return data

    def wait_until_it_answers(self) -> None:
        """Until the web server says who it is."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            assert self.process.poll() is None, self.log.read_text()
            try:
                with urllib.request.urlopen(f"{self.url}/server_info", timeout=10) as answer:
                    assert "dagster_webserver_version" in json.load(answer)
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                assert time.monotonic() < deadline, self.log.read_text()
                time.sleep(0.5)


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    """``dagster dev`` on a port of the kernel's choice, with an embedded database of its own."""
    home = tmp_path / "dagster"
    home.mkdir()
    shutil.copy(ROOT / "tools" / "dagster.yaml", home / "dagster.yaml")
    embedded = EmbeddedPostgres(tmp_path / "postgres")
    policies = tmp_path / "policies.yaml"
    policies.write_text(POLICIES, encoding="utf-8")
    unset = {"PENSTOCK_DATABASE_URL", "DB_NAME", "DB_HOST"}
    environment = {name: value for name, value in os.environ.items() if name not in unset} | {
        "DAGSTER_HOME": str(home),
        "PENSTOCK_POLICIES": str(policies),
        "PENSTOCK_EMBEDDED": "1",
        "PENSTOCK_EMBEDDED_DIRECTORY": str(embedded.directory),
    }
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path / "dev.log"
    command = [sys.executable, "-m", "dagster", "dev", "-h", "127.0.0.1", "-p", str(port)]
    # dagster-webserver and dagster-daemon are looked up on the PATH.
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True, preexec_fn=_default_signals,
        )  # fmt: skip
    try:
        yield Dev(f"http://127.0.0.1:{port}", process, log, embedded)
    finally:
        stop(process)
        embedded.stop()


def _default_signals() -> None:
    """Dagster takes over how SIGINT is handled: ignored, it could only be killed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, time to leave, and then every process that is left, by its id."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    process.terminate()
    _, left = psutil.wait_procs([psutil.Process(process.pid), *family], timeout=30)
    for each in left:
        each.kill()
    psutil.wait_procs(left, timeout=10)
    process.wait(timeout=10)


@pytest.mark.timeout(300)
def test_dagster_dev_starts_loads_and_ticks(dev: Dev) -> None:
    dev.wait_until_it_answers()
    (entry,) = dev.ask(LOADED)["workspaceOrError"]["locationEntries"]
    location = entry["locationOrLoadError"]
    assert entry["name"] == "penstock"
    assert location["__typename"] == "RepositoryLocation", location
    (repository,) = location["repositories"]
    assert len(repository["assetNodes"]) >= 10
    states = [each["sensorState"]["status"] for each in repository["sensors"]]
    states += [each["scheduleState"]["status"] for each in repository["schedules"]]
    assert len(states) == 15 and set(states) == {"RUNNING"}
    ticks = wait_for_a_tick(dev)
    # The embedded database was started and migrated, or the sensor could not have looked.
    assert {(tick["status"], tick["skipReason"]) for tick in ticks} == {("SKIPPED", "no backlog")}
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
    launched = dev.ask(BACKFILL, hours=hours)["launchPartitionBackfill"]
    assert launched["__typename"] == "LaunchBackfillSuccess", launched
    deadline = time.monotonic() + 600
    while True:
        found = dev.ask(STATUS, id=launched["backfillId"])["partitionBackfillOrError"]
        if found["status"].startswith("COMPLETED"):
            break
        assert time.monotonic() < deadline, dev.log.read_text()
        time.sleep(2)
    assert found["status"] == "COMPLETED_SUCCESS", dev.log.read_text()
    states = dev.ask(PARTITIONS)["assetNodeOrError"]["partitionStats"]
    assert states["numMaterialized"] == 3 and states["numFailed"] == 0
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
