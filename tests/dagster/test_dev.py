"""A bare ``dagster dev`` at the root: it starts the embedded database and works."""

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

from resources.embedded import EmbeddedPostgres
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

    def ask(self, query: str) -> dict[str, Any]:
        """The answer to a GraphQL query."""
        request = urllib.request.Request(
            f"{self.url}/graphql",
            data=json.dumps({"query": query}).encode(),
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
    unset = {"PENSTOCK_DATABASE_URL", "PENSTOCK_POLICIES", "DB_NAME", "DB_HOST"}
    environment = {name: value for name, value in os.environ.items() if name not in unset} | {
        "DAGSTER_HOME": str(home),
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
        yield Dev(f"http://127.0.0.1:{port}", process, log)
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
def test_a_bare_dagster_dev_starts_loads_and_ticks(dev: Dev) -> None:
    dev.wait_until_it_answers()
    (entry,) = dev.ask(LOADED)["workspaceOrError"]["locationEntries"]
    location = entry["locationOrLoadError"]
    assert entry["name"] == "penstock"
    assert location["__typename"] == "RepositoryLocation", location
    (repository,) = location["repositories"]
    assert len(repository["assetNodes"]) >= 10
    states = [each["sensorState"]["status"] for each in repository["sensors"]]
    states += [each["scheduleState"]["status"] for each in repository["schedules"]]
    assert len(states) == 10 and set(states) == {"RUNNING"}
    ticks = wait_for_a_tick(dev)
    # The embedded database was started and migrated, or the sensor could not have looked.
    assert {(tick["status"], tick["skipReason"]) for tick in ticks} == {("SKIPPED", "no backlog")}
    said = dev.log.read_text()
    assert "the topics of the database are not known" not in said
    assert "Traceback" not in said


def wait_for_a_tick(dev: Dev) -> list[dict[str, Any]]:
    """The first ticks of the backlog sensor."""
    deadline = time.monotonic() + 90
    while True:
        ticks = dev.ask(TICKS)["sensorOrError"]["sensorState"]["ticks"]
        if finished := [tick for tick in ticks if tick["status"] != "STARTED"]:
            return finished
        assert time.monotonic() < deadline, dev.log.read_text()
        time.sleep(1)
