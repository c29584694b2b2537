"""The attack at scale: 500,000 events on each engine, by processes of every kind, under faults."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests import servers
from tests.faults.attack import Attack
from tests.faults.servers import crashing_server
from tests.faults.world import SEED, World
from tests.kit.proof import proves

#: PENSTOCK_FAULT_EVENTS=100000 is a fifth of the run.
EVENTS = int(os.environ.get("PENSTOCK_FAULT_EVENTS", "500000"))
SMALL = 1_000
FAULTS = [
    "kill", "failpoint", "cut", "pause in the transaction", "commit unknown", "seek", "one way",
    "crash", "terminate", "pause", "slow", "hold up", "cancel", "end sessions",
    "crash behind a commit", "kill", "hold up", "kill",
]  # fmt: skip
#: What :mod:`tests.faults.test_mixed` does not do; servers that are slow to come back stay up.
FEW = ["hold up", "cancel", "kill"]
FEW_ON_POSTGRES = [*FEW, "pause in the transaction", "crash behind a commit"]


def _attacked(engine: str, folder: Path, faults: list[str], events: int, *options: str) -> None:
    """One run on a server of its own; what happened in it is printed."""
    if engine not in servers.chosen():
        pytest.skip(f"this run is about {', '.join(servers.chosen())}")
    is_long = events > SMALL
    with (
        crashing_server(engine, folder / "server") as server,
        World(
            server.url, folder / "history", target=server.address, heartbeat=0.5, lease=3
        ) as world,
    ):
        world.subscriptions = ("exact", "raw")
        attack = Attack(world, server, SEED)
        attack.pace = () if is_long else ("--pause=0.05",)
        begun = time.monotonic()
        attack.begin_attack(3 if is_long else 2, 30 if is_long else 0, *options)
        attack.attack(faults, events, again=is_long)
        attack.end_attack(1200)
        ended = time.monotonic()
        found = world.verdict()
        figures = {
            "engine": engine, "events": attack.published(), "seconds": round(ended - begun),
            "judged in": round(time.monotonic() - ended), "faults": dict(world.done),
            "slices dropped": len(_dropped(world)), "anomalies": len(found),
        }  # fmt: skip
        (folder / "figures.json").write_text(json.dumps(figures))
        print(json.dumps(figures))  # noqa: T201 - make test-long ARGS="-k attack -s" shows it
        assert found == [], f"seed {SEED}: {dict(world.done)}"
        assert world.records("publish", "fail")
        assert _dropped(world) or not is_long


def _dropped(world: World) -> set[object]:
    """Slices of events that went while the attack was on; two cleaners may tell of the same."""
    states = ("dropped", "kept")
    found = [r for state in states for r in world.records("slice", parent="events", state=state)]
    return {each["slice"] for each in found}


@proves("S1 to S6, S9 to S13, D9 under attack")
@proves("F5", how="killed and paused under load")
@proves("F11", how="settled by a coin after crashes")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", servers.DATABASES)
@pytest.mark.long_on("mysql", "postgres")
def test_an_attack_in_small(engine: str, tmp_path: Path) -> None:
    """Guards: those of test_mixed, with publishers in two phases, strict, by keys; S1 to S6, D9."""
    faults = FEW_ON_POSTGRES if engine == "postgres" else FEW
    _attacked(engine, tmp_path, faults, SMALL, "--largest=100", "--pause=0.02")


@proves("S1 to S6, S9 to S13, D9 under attack")
@proves("F10", how="30 seconds under attack")
@proves("F11", how="settled by a coin after crashes")
@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("engine", servers.DATABASES)
def test_an_attack_at_scale(engine: str, tmp_path: Path) -> None:
    """Every fault, over again; some transactions are open for 30 seconds."""
    _attacked(engine, tmp_path, FAULTS, EVENTS, "--largest=600", "--pause=0.1")
