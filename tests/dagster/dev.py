"""A running ``dagster dev`` for tests, and what is asked of it over GraphQL."""

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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from resources.embedded import EmbeddedPostgres
from tests.dagster.conftest import POLICIES
from tests.dagster.test_load import ROOT

START_SECONDS = 600
RUN_SECONDS = 900
_LAST_CHARACTERS = 5_000

LAUNCH = """
mutation Launch($job: String!, $assets: [AssetKeyInput!], $config: RunConfigData) {
  launchRun(executionParams: { runConfigData: $config, selector: {
    repositoryLocationName: "penstock", repositoryName: "__repository__", jobName: $job,
    assetSelection: $assets } }) {
      __typename
      ... on LaunchRunSuccess { run { runId } }
      ... on RunConfigValidationInvalid { errors { message } }
      ... on PythonError { message } } }
"""
RUN = """
query Run($run: ID!) { runOrError(runId: $run) { ... on Run { status } } }
"""
RUNS = """
query Runs($job: String!) { runsOrError(filter: {pipelineName: $job}, limit: 100) {
  ... on Runs { results { runId status tags { key value } } } } }
"""
BACKFILL = """
mutation Launch($hours: [String!], $asset: [String!]!) {
  launchPartitionBackfill(backfillParams: {partitionNames: $hours, assetSelection: [{path: $asset}]}
  ) { __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }
"""
STATUS = """
query Status($id: String!) { partitionBackfillOrError(backfillId: $id) {
  __typename ... on PartitionBackfill { status } ... on PythonError { message } } }
"""
PARTITIONS = """
query Partitions($asset: [String!]!) { assetNodeOrError(assetKey: {path: $asset}) {
  ... on AssetNode { partitionStats { numMaterialized numMaterializing numFailed } } } }
"""
MADE = """
query Made($asset: [String!]!, $hours: [String!]) { assetNodeOrError(assetKey: {path: $asset}) {
  ... on AssetNode { latestMaterializationByPartition(partitions: $hours) { partition } } } }
"""
CHECKS = """
query Checks($asset: [String!]!) { assetNodeOrError(assetKey: {path: $asset}) { ... on AssetNode {
  assetChecksOrError { ... on AssetChecks { checks {
    name executionForLatestMaterialization { status } } } } } } }
"""
RELOAD = """
mutation { reloadRepositoryLocation(repositoryLocationName: "penstock") { __typename } }
"""


@dataclass
class Dev:
    """A running ``dagster dev``."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path
    embedded: EmbeddedPostgres

    def said(self) -> str:
        """The last lines of its log."""
        return self.log.read_text()[-_LAST_CHARACTERS:]

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
            assert self.process.poll() is None, self.said()
            try:
                with urllib.request.urlopen(f"{self.url}/server_info", timeout=10) as answer:
                    assert "dagster_webserver_version" in json.load(answer)
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                assert time.monotonic() < deadline, self.said()
                time.sleep(0.5)

    def launch(self, job: str, config: dict[str, Any] | None = None) -> str:
        """Launch a job; the id of its run."""
        done = self.ask(LAUNCH, job=job, config=config or {})["launchRun"]
        assert done["__typename"] == "LaunchRunSuccess", done
        return str(done["run"]["runId"])

    def refused(self, job: str, config: dict[str, Any]) -> bool:
        """Whether a launch is refused because of its config."""
        done = self.ask(LAUNCH, job=job, config=config)["launchRun"]
        return bool(done["__typename"] == "RunConfigValidationInvalid")

    def ended(self, run: str) -> str:
        """How a run has ended."""
        deadline = time.monotonic() + RUN_SECONDS
        while True:
            status = str(self.ask(RUN, run=run)["runOrError"]["status"])
            if status in {"SUCCESS", "FAILURE", "CANCELED"}:
                return status
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.5)

    def done(self, job: str, config: dict[str, Any] | None = None) -> None:
        """Launch a job that has to succeed."""
        assert self.ended(self.launch(job, config)) == "SUCCESS", self.said()

    def runs(self, job: str) -> list[dict[str, Any]]:
        """The runs of a job, the newest first."""
        found: list[dict[str, Any]] = self.ask(RUNS, job=job)["runsOrError"]["results"]
        return found

    def backfilled(self, asset: list[str], hours: list[str]) -> dict[str, int]:
        """Backfill hours of an asset, as the page does it; how many partitions it has then."""
        launched = self.ask(BACKFILL, hours=hours, asset=asset)["launchPartitionBackfill"]
        assert launched["__typename"] == "LaunchBackfillSuccess", launched
        deadline = time.monotonic() + RUN_SECONDS + len(hours) * 60
        while True:
            found = self.ask(STATUS, id=launched["backfillId"])["partitionBackfillOrError"]
            if found["status"].startswith("COMPLETED"):
                break
            assert time.monotonic() < deadline, self.said()
            time.sleep(2)
        assert found["status"] == "COMPLETED_SUCCESS", self.said()
        while True:
            stats = self.partitions(asset)
            if not stats["numMaterializing"]:
                return stats
            # What the automation has asked for meanwhile is under way.
            assert time.monotonic() < deadline, stats
            time.sleep(2)

    def partitions(self, asset: list[str]) -> dict[str, int]:
        """How many partitions of an asset are made, under way and failed, as the page counts."""
        found: dict[str, int] = self.ask(PARTITIONS, asset=asset)["assetNodeOrError"][
            "partitionStats"
        ]
        return found

    def made(self, asset: list[str], hours: list[str]) -> list[str]:
        """Those of the hours that a run has made, as Dagster's event log has it."""
        found = self.ask(MADE, asset=asset, hours=hours)["assetNodeOrError"]
        return [each["partition"] for each in found["latestMaterializationByPartition"] if each]

    def checked(self, asset: list[str]) -> dict[str, str]:
        """How each check of an asset has ended for its last materialization."""
        found = self.ask(CHECKS, asset=asset)["assetNodeOrError"]["assetChecksOrError"]["checks"]
        return {
            each["name"]: (each["executionForLatestMaterialization"] or {}).get("status", "NONE")
            for each in found
        }


#: The steps of each duty, for topics of the namespace `shop` and the relay `shop-file`.
_STEPS = {
    "sequence": ["penstock__sequence"],
    "relay": ["penstock__relay__shop_file"],
    "sweep": ["penstock__sweep"],
    "clean": [f"penstock__shop_{each}__{each}_retention" for each in ("orders", "returns")],
    "backfill": ["run_request"],
}


def duty_config(duty: str, engine: str, **more: Any) -> dict[str, Any]:
    """Run config of a duty."""
    return {"ops": {step: {"config": {"engine": engine, **more}} for step in _STEPS[duty]}}


@contextmanager
def running(folder: Path, text: str = POLICIES, **more: str) -> Iterator[Dev]:
    """``dagster dev`` on a port of the kernel's choice, with an embedded database of its own.

    ``text`` is the policy file; ``more`` goes into the environment.
    """
    home = folder / "dagster"
    home.mkdir()
    shutil.copy(ROOT / "tools" / "dagster.yaml", home / "dagster.yaml")
    embedded = EmbeddedPostgres(folder / "postgres")
    policies = folder / "policies.yaml"
    policies.write_text(text, encoding="utf-8")
    unset = {"PENSTOCK_DATABASE_URL", "DB_NAME", "DB_HOST"}
    environment = {name: value for name, value in os.environ.items() if name not in unset} | {
        "DAGSTER_HOME": str(home),
        "PENSTOCK_POLICIES": str(policies),
        "PENSTOCK_EMBEDDED": "1",
        "PENSTOCK_EMBEDDED_DIRECTORY": str(embedded.directory),
        **more,
    }
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = folder / "dev.log"
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
