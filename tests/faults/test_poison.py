"""Events that no handler can process, in processes: all end dead, and only they (F16)."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.database import sessions
from penstock.publishing.publish import publish
from penstock.subscriptions import policies
from tests.contract.databases import ContractDatabase
from tests.faults.world import TOPIC, World
from tests.kit.proof import proves

#: What each of them is, by the sequence at which it stands, and what its letter says.
POISON = {
    3: ("raise", "PoisonError"),
    5: ("garbage", "JSONDecodeError"),
    8: ("hang", "HandlerTimedOut"),
    11: ("exit", "its consumer ended while it was handled"),
}
EVENTS = 16
ATTEMPTS = 2


def _published(world: World, connection: Any) -> None:
    """One transaction, written down as a publisher process does it."""
    world.recorder.write("publish", "invoke", tx="all")
    labels = [f"all/{number}" for number in range(1, EVENTS + 1)]
    with sessions.of_connection(connection).transaction(connection):
        for number, label in enumerate(labels, 1):
            poison, _ = POISON.get(number, ("", ""))
            publish(connection, TOPIC, f"{label} {poison}".strip().encode(), key=f"k{number % 5}")
        world.recorder.write("stage", "ok", tx="all", events=labels, undone=[])
    world.recorder.write("publish", "ok", tx="all")


@proves("L7 in streams", how="with processes")
@proves("S16", how="with processes")
@proves("F16")
@pytest.mark.long
@pytest.mark.timeout(300)
def test_poison_ends_in_the_dead_letters(db: ContractDatabase, tmp_path: Path) -> None:
    """F16, S16, L7. Guards: attempts on record; the copy and the position in one transaction."""
    with World(db.url, tmp_path, partitions=1, heartbeat=0.3, lease=1) as world:
        world.set_up()
        pauses = {"first_backoff_seconds": 0.05, "longest_backoff_seconds": 0.1}
        with closing(world.connect()) as own:
            policies.set_policy(own, "retry", pauses | {"max_attempts": ATTEMPTS})
            _published(world, own)
        world.tend = world.revive
        world.start("sequencer", "s1")
        for name in world.subscriptions:
            world.start(
                "consumer", name, "--subscription", name, "--always", "--handler-seconds", "0.5"
            )
        world.drain()
        world.tend = None
        for name in list(world.running):
            assert world.terminate(name) == 0
        assert world.verdict() == []
        dead = world.dump()["dead"]
    assert len(dead) == len(POISON) * len(world.subscriptions)
    for _, _, sequence, attempts, reason in dead:
        kind, wanted = POISON[sequence]
        assert wanted in reason
        assert attempts == ATTEMPTS, kind
