"""An executor is killed in the middle of a unit, and another one does it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ops.duties.units import Outcome
from tests.contract.databases import ContractDatabase
from tests.duties import cluster
from tests.duties.cluster import BEFORE, Job
from tests.duties.kit import SCENARIOS
from tests.kit.interpreter import bare_interpreter

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

#: Which scenario, and where its executor dies: the duty, the statement, when, and which call of it.
DEATHS = {
    "sequenced, and not reported": ("sequence", "sequence", "sequence_and_announce"),
    "before it could free a lease": ("sweep", "sweep", "sweep", BEFORE),
    "in the middle of reading back": ("clean", "read back", "record_reading", BEFORE, 5),
    "dropped, and not reported": ("clean", "clean", "clean"),
    "a block was sent, and not committed": ("relay", "relay", "commit", BEFORE, 2),
    "a log epoch was brought back": ("backfill", "backfill", "progress_backfill", BEFORE, 3),
    "a rollup was not in the manifest yet": ("rollup", "rollup", "move_copy", BEFORE, 4),
}


def on_a_cluster(folder: Path, jobs: Sequence[Job]) -> list[list[Outcome]]:
    """The outcomes of jobs, done by executors that have no checkout."""
    given, results = folder / "jobs", folder / "outcomes"
    # By the name of the module, not as the program that loads them.
    assert Job is cluster.Job
    given.write_bytes(pickle.dumps(list(jobs)))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {
        "PYSPARK_PYTHON": str(bare_interpreter(folder / "python")),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder / "workers"),
        "SPARK_LOCAL_DIRS": str(folder / "scratch"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.duties.cluster", str(given), str(results)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    found: list[list[Outcome]] = pickle.loads(results.read_bytes())
    return found


def _is_done_by_another(db: ContractDatabase, death: str, folder: Path) -> list[Outcome]:
    name, *place = DEATHS[death]
    scenario = SCENARIOS[name](db, folder)
    marker = folder / "marker"
    (outcomes,) = on_a_cluster(folder, [Job(name, scenario.setup, marker, *place)])
    assert marker.read_text() not in {each.worker for each in outcomes}
    scenario.check(outcomes)
    return outcomes


@pytest.mark.parametrize("db", ["postgres"], indirect=True)
def test_another_executor_sequences(db: ContractDatabase, tmp_path: Path) -> None:
    """The dead one had numbered all events: the other one finds none, and numbers none again."""
    (outcome,) = _is_done_by_another(db, "sequenced, and not reported", tmp_path)
    assert outcome.events == 0


@pytest.mark.long
@pytest.mark.parametrize("death", DEATHS)
def test_another_executor_does_the_unit(db: ContractDatabase, death: str, tmp_path: Path) -> None:
    """Guard: what fences the unit in SQL; the work is done once, whatever the first one did."""
    _is_done_by_another(db, death, tmp_path)
