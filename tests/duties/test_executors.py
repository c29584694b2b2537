"""An executor is killed in the middle of a unit, and another one does it.

What `make test` has of this is in test_spreading, with a process of one executor.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ops.duties.code import write_archive
from ops.duties.units import DutyOutcome
from tests.contract.databases import ContractDatabase
from tests.duties.cluster import ANY_UNIT, BEFORE, Job
from tests.duties.kit import JOBS, SCENARIOS
from tests.kit.interpreter import bare_interpreter
from tests.kit.proof import proves

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]

#: Which scenario, and where its executor dies: the duty, the statement, when, and which call of it.
DEATHS: dict[str, tuple[Any, ...]] = {
    "sequenced, and not reported": ("sequence", "sequence", "sequence_and_announce"),
    "before it could free a lease": ("sweep", "sweep", "sweep", BEFORE),
    "in the middle of reading back": ("clean", "read back", "record_reading", BEFORE, 5),
    "dropped, and not reported": ("clean", "clean", "clean"),
    "a block was sent, and not committed": ("relay", "relay", "commit", BEFORE, 2),
    "a log epoch was brought back": ("backfill", "backfill", "progress_backfill", BEFORE, 3),
    "a file of the archive was written": ("archive", "archive", ""),
    "in the middle of an audit": ("audit", "audit", ""),
}


@pytest.fixture(scope="module")
def clusters(
    java_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """The cluster for an engine; one for all of them gives no executors after 15 deaths."""
    running: dict[str, subprocess.Popen[str]] = {}
    with contextlib.ExitStack() as stack:

        def of(engine: str) -> subprocess.Popen[str]:
            if engine not in running:
                stack.close()
                running.clear()
                running[engine] = stack.enter_context(_cluster(tmp_path_factory.mktemp("cluster")))
            return running[engine]

        yield of


@contextlib.contextmanager
def _cluster(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Two executors, whose Python has no checkout, and the driver that gives them work."""
    code = folder / "code.zip"
    write_archive(code)
    environment = os.environ | {
        # For the driver's own Python processes, in which data sources are planned.
        "PYTHONPATH": str(code),
        "PYSPARK_PYTHON": str(bare_interpreter(folder / "python")),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder / "workers"),
        "SPARK_LOCAL_DIRS": str(folder / "scratch"),
    }
    with (folder / "log").open("wb") as stream:
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.duties.cluster"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
            start_new_session=True,
        )
        try:
            yield driver
        finally:
            children = psutil.Process(driver.pid).children(recursive=True)
            os.killpg(driver.pid, signal.SIGKILL)
            driver.communicate()
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()


def outcomes_of(cluster: subprocess.Popen[str], job: Job, file: Path) -> list[DutyOutcome]:
    """What the driver reports of a job."""
    assert cluster.stdin is not None
    assert cluster.stdout is not None
    file.write_bytes(pickle.dumps(job))
    cluster.stdin.write(f"{file}\n")
    cluster.stdin.flush()
    assert cluster.stdout.readline() == "done\n"
    found: list[DutyOutcome] = pickle.loads(file.with_suffix(".done").read_bytes())
    return found


@proves("a unit is done once")
@pytest.mark.parametrize("death", DEATHS)
def test_another_executor_does_the_unit(
    clusters: Callable[[str], subprocess.Popen[str]],
    db: ContractDatabase,
    death: str,
    tmp_path: Path,
) -> None:
    """Guard: what fences the unit in SQL; the work is done once, whatever the first one did."""
    name, *place = DEATHS[death]
    scenario = (SCENARIOS | JOBS)[name](db, tmp_path)
    marker = tmp_path / "marker"
    cluster = clusters(db.engine)
    outcomes = outcomes_of(cluster, Job(name, scenario.setup, marker, *place), tmp_path / "job")
    dead, unit = marker.read_text().split("\n")
    # It may have done a whole unit before: on a busy machine the other one comes late.
    done = [
        each
        for each in outcomes
        if each.unit.duty == place[0] and unit in {ANY_UNIT, str(each.unit)}
    ]
    assert done and dead not in {each.worker for each in done}
    scenario.check(outcomes)
