"""Everything at once, with real processes and a database that is killed (F1 to F3, F6, F8, F24)."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from tests import servers
from tests.faults.queues import MixedQueues, QueueWorld
from tests.faults.servers import crashing_server
from tests.faults.world import SEED
from tests.kit.proof import proves

#: Consumers of each kind in the small form.
FEW_CONSUMERS = 2
#: How often the full form has each fault: PENSTOCK_FAULT_ROUNDS=20 is an hour's run.
ROUNDS = int(os.environ.get("PENSTOCK_FAULT_ROUNDS", "4"))


def _judged(mixed: MixedQueues) -> None:
    """No anomaly; and the run was one: the void is sound too."""
    world = mixed.world
    found = world.verdict()
    print(json.dumps(mixed.figures()))  # noqa: T201 - pytest -s shows it
    assert found == [], f"seed {SEED}: {dict(world.done)}"
    assert len(world.records("publish")) > 50
    assert len(world.records("publish", "fail")) > 5
    assert len(world.records("commit")) > 50
    calls = [each["how"] for each in world.records("finish")]
    assert min(calls.count("acknowledge"), calls.count("reject")) > 3
    assert world.records("finish", "fail", error="StaleReceipt")


FAULTS = [
    "kill", "failpoint", "cut", "pause in the transaction", "commit unknown", "seek", "one way",
    "late worker", "crash", "worker at a place", "terminate",
]  # fmt: skip
#: What goes by another way through each engine: the rest is about processes.
FEW = ["commit unknown", "pause in the transaction", "late worker", "crash"]
ALL = [
    *FAULTS, "pause", "slow", "kill", "failpoint", "commit unknown", "pause worker",
    "late worker in its transaction", "worker at a place",
]  # fmt: skip


def _run(engine: str, folder: Path, consumers: int, faults: list[str], *poison: str) -> None:
    if engine not in servers.chosen():
        pytest.skip(f"this run is about {', '.join(servers.chosen())}")
    with (
        crashing_server(engine, folder / "server") as server,
        QueueWorld(server.url, folder / "history", target=server.address) as world,
    ):
        is_long = consumers > FEW_CONSUMERS
        workers = 2 if is_long else 1
        mixed = MixedQueues(world, server, SEED, workers=workers, shell=is_long)
        mixed.pace = () if is_long else ("--pause=0.05",)
        mixed.begin(consumers, poison)
        mixed.play(faults)
        mixed.end()
        _judged(mixed)


@proves("S9 to S13 on SQL", how="processes under faults")
@proves("D5, D6, D7 in queues under faults", how="processes")
@proves("S24", how="COMMITs whose answer a proxy loses")
@proves("L6")
@proves("F1")
@proves("F2")
@proves("F3")
@proves("F6")
@proves("F8")
@proves("F9")
@proves("F19, F21")
@proves("F20")
@proves("F24")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", servers.DATABASES)
@pytest.mark.long_on("mysql", "mariadb")
def test_nothing_is_lost_or_done_twice(engine: str, tmp_path: Path) -> None:
    """Guards: all of the protocol; S1 to S6, S9 to S13, S24, L6, L8; D5 to D7 of queues."""
    faults = FAULTS if engine == "postgres" else FEW
    _run(engine, tmp_path, FEW_CONSUMERS, faults, "raise", "exit")


@proves("D5, D6, D7 in queues under faults", how="processes")
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("engine", servers.DATABASES)
def test_nothing_is_lost_or_done_twice_for_long(engine: str, tmp_path: Path) -> None:
    """Every fault several times, in an order that the seed draws; handlers hang, too."""
    drawn = random.Random(SEED)
    faults = [each for _ in range(ROUNDS) for each in drawn.sample(ALL, len(ALL))]
    _run(engine, tmp_path, 3, faults, "raise", "exit", "hang")
