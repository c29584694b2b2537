"""Queues under faults at scale: every job once or a dead letter, also where the log is dropped."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from tests import servers
from tests.faults.queue_attack import CleanedWorld, QueueAttack
from tests.faults.servers import crashing_server
from tests.faults.world import SEED
from tests.kit.proof import proves

#: PENSTOCK_FAULT_JOBS=20000 is a fifth of the run.
JOBS = int(os.environ.get("PENSTOCK_FAULT_JOBS", "100000"))
SMALL = 200
FAULTS = [
    "crash", "kill", "late worker", "pause worker", "crash", "cut", "commit unknown",
    "worker at a place", "late worker in its transaction", "crash", "kill", "crash",
]  # fmt: skip
FEW = ["crash"]


def _attacked(engine: str, folder: Path, faults: list[str], jobs: int) -> None:
    if engine not in servers.chosen():
        pytest.skip(f"this run is about {', '.join(servers.chosen())}")
    is_long = jobs > SMALL
    with (
        crashing_server(engine, folder / "server") as server,
        CleanedWorld(server.url, folder / "history", target=server.address) as world,
    ):
        world.epoch_events = 500 if is_long else 20
        attack = QueueAttack(world, server, SEED, workers=3 if is_long else 1, shell=False)
        attack.begin_attack(0.02 if is_long else 0.05)
        attack.begin_late()
        attack.attack(faults, jobs)
        attack.end()
        found = world.verdict()
        figures = {"engine": engine, **attack.numbers(), "anomalies": len(found)}
        print(json.dumps(figures))  # noqa: T201 - make test-long ARGS="-k queue_attack -s" shows it
        assert found == [], f"seed {SEED}: {dict(world.done)}"
        assert set(world.begins) == set(range(world.partitions))
        assert min(world.begins.values()) > 1, "it begins where something was dropped"
        assert world.done["crash"]


@proves("D5, D6, D7, D9 in queues at scale")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", servers.DATABASES)
@pytest.mark.long_on("mysql", "mariadb")
def test_an_attack_on_queues_in_small(engine: str, tmp_path: Path) -> None:
    """Guards: D5 to D7 of queues, D9; a queue cannot begin below the low sequence."""
    _attacked(engine, tmp_path, FEW, SMALL)


@proves("D5, D6, D7, D9 in queues at scale")
@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("engine", servers.DATABASES)
def test_an_attack_on_queues_at_scale(engine: str, tmp_path: Path) -> None:
    """100,000 jobs under faults in an order that the seed draws."""
    _attacked(engine, tmp_path, random.Random(SEED).sample(FAULTS, len(FAULTS)), JOBS)
