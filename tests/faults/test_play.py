"""The fence under random interleavings, and the checker that notices its absence (S9 to S13)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.databases import ContractDatabase
from tests.contract.leases.test_check_in import EVERYBODY_IS_DEAD
from tests.contract.stream_guards import NO_FENCE, NO_LIMIT, NO_LOCK, NOT_FORWARD
from tests.contract.stream_kit import Guard
from tests.faults.play import Play
from tests.kit.proof import proves

SAME_EPOCH: Guard = {
    "postgres": ("acquire", "lease_epoch = l.lease_epoch + 1", "lease_epoch = l.lease_epoch"),
    "mysql": (
        "acquire",
        "IF free_epoch IS NOT NULL THEN",
        "SET free_epoch = free_epoch - 1; IF free_epoch IS NOT NULL THEN",
    ),
}
LEAVES_OUT: Guard = dict.fromkeys(
    ("postgres", "mysql"), ("poll", "1000000000000000000) + 1", "1000000000000000000) + 2")
)


def _all(*guards: Guard) -> dict[str, list[tuple[str, str, str]]]:
    return {engine: [guard[engine] for guard in guards] for engine in ("postgres", "mysql")}


MUTANTS = {
    "an unfenced commit": (_all(NO_FENCE, NO_LIMIT), "stale-accept"),
    "a fence without a lock": (_all(NO_LOCK), "stale-accept"),
    "lease_epoch is not raised": (_all(SAME_EPOCH), "overlap"),
    "a live lease is stolen": (_all(EVERYBODY_IS_DEAD), "overlap"),
    "a late commit moves back": (NOT_FORWARD, "backward-position"),
    "reads leave one out": (_all(LEAVES_OUT), "poll-skip"),
}


@proves("S9 to S13 on SQL", how="random interleavings")
def test_the_fence_holds(db: ContractDatabase, tmp_path: Path) -> None:
    """Guards: all of them."""
    play = Play(db, tmp_path, seed=3)
    assert play.run() == []
    assert len(play.world.records("commit")) >= 3
    assert len(play.world.records("commit", "fail")) >= 3


@proves("S9 to S13 on SQL", guard="each part of the fence")
@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.long_on("mysql")
def test_the_checker_sees_it_gone(db: ContractDatabase, tmp_path: Path, mutant: str) -> None:
    """Mutants: each guard taken out; random interleavings show it, and the checker names it."""
    guards, kind = MUTANTS[mutant]
    for guard in guards["postgres" if db.engine == "postgres" else "mysql"]:
        db.without_guard(*guard)
    assert Play(db, tmp_path, seed=3).shows(kind)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 40))
def test_the_fence_holds_for_long(db: ContractDatabase, tmp_path: Path, seed: int) -> None:
    """The same, thirty times as long."""
    assert Play(db, tmp_path, seed).run(steps=200) == []
