"""A snapshot of the volume, taken under load and restored at once (F7): nothing is lost."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from penstock.log.histories import histories
from tests import servers
from tests.faults.mixed import Mixed
from tests.faults.snapshots import volume
from tests.faults.world import SEED, World
from tests.kit.log import wait_until
from tests.kit.proof import proves


def _restored_under_load(engine: str, folder: Path, rounds: int) -> None:
    if engine not in servers.chosen():
        pytest.skip(f"this run is about {', '.join(servers.chosen())}")
    with (
        volume(engine, folder / "server") as server,
        World(server.url, folder / "history", target=server.address) as world,
    ):
        mixed = Mixed(world, server, SEED)
        mixed.begin(1, ())
        for round_ in range(1, rounds + 1):
            mixed.play(["crash"])
            begun = _begun(engine, round_)
            wait_until(partial(_has_begun, world, begun), f"history {begun} has begun")
        mixed.progress()
        wait_until(lambda: len(world.records("publish")) > 20, "publishers have gone on", 60)
        mixed.end()
        assert world.verdict() == [], f"seed {SEED}"
        assert server.snapshots == rounds
        with closing(world.connect()) as own:
            assert [each.history for each in histories(own)] == list(
                range(1, _begun(engine, rounds) + 1)
            )


def _begun(engine: str, rounds: int) -> int:
    """A copy of MariaDB's files is told from the original by the time of one of them."""
    return 1 if engine != "mariadb" else rounds + 1


def _has_begun(world: World, history: int) -> bool:
    """A sequencer has had a pass since the last restore: two restores before it count as one."""
    with closing(world.connect()) as own:
        return max(each.history for each in histories(own)) >= history


@proves("F7", how="a snapshot of the volume under load")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", ["postgres", "mysql", "mariadb"])
@pytest.mark.long_on("mysql", "mariadb")
def test_a_snapshot_of_a_running_load_breaks_nothing(engine: str, tmp_path: Path) -> None:
    """Guards: all that is one in the log is one transaction; nothing is known to memory alone."""
    _restored_under_load(engine, tmp_path, 1)


@proves("F7", how="a snapshot of the volume under load")
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("engine", ["postgres", "mysql", "mariadb"])
def test_ten_snapshots_one_behind_the_other(engine: str, tmp_path: Path) -> None:
    """The long form."""
    _restored_under_load(engine, tmp_path, 10)
