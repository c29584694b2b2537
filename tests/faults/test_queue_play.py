"""Queues under random interleavings, and the checker that notices what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.contract.databases import ContractDatabase
from tests.contract.queue import test_model, test_order, test_receive
from tests.faults.queue_play import QueuePlay
from tests.kit.proof import proves
from tests.kit.queue import mutated

NAMES = ["jobs", "keyed"]
_ASKED = "COALESCE(r.token, r.former_token)"
#: What was dealt anew keeps the claim that it was in, and nobody asks for the token.
OLD_RECEIPTS: list[dict[str, Any]] = [
    {
        "postgres": ("lock_receipts", [
            (f"AND {_ASKED} = ANY (tokens)\n                ORDER BY", "ORDER BY"),
            (f"AND {_ASKED} = ANY (tokens));", ");")]),
        "mysql": ("find_claimed", [(f"AND {_ASKED} = g.token", "")]),
    },
    {
        "postgres": ("match_receipts", [(f"AND {_ASKED} = g.token", "")]),
        "mysql": ("match_receipts", [("AND r.token = g.token", "")]),
    },
    {
        "postgres": ("receive", [("former = NULL, former_token = NULL", "former = r.former")]),
        "mysql": ("claim_ranges", [
            ("r.former = NULL,\n                r.former_token = NULL", "r.former = r.former")]),
    },
    {"postgres": ("claim_several", [("former = NULL, former_token = NULL", "former = r.former")])},
]  # fmt: skip
#: The plain receive and the other one.
CLAIMED_IS_FREE: list[dict[str, Any]] = [
    test_receive.MUTANTS["hidden"],
    {"postgres": ("claim_several", [("AND r.token IS NULL", "")])},
]
MUTANTS: dict[str, tuple[list[dict[str, Any]], str, str]] = {
    "a claimed range counts as free": (CLAIMED_IS_FREE, "jobs", "overlap"),
    "nobody looks at deadlines": ([test_receive.MUTANTS["expiry"]], "jobs", "unseen"),
    "old receipts work": (OLD_RECEIPTS, "jobs", "stale-accept"),
    "an expired hand-out is not counted": (
        [test_model.MUTANTS["expired"]], "jobs", "wrong-count",
    ),
    "a failure is not counted": ([test_model.MUTANTS["failed"]], "jobs", "wrong-count"),
    "keys have no order": ([test_order.MUTANTS["behind"]], "keyed", "order-per-key"),
    "the end of an event brings no next one": (
        [test_order.MUTANTS["their end"]], "keyed", "unseen",
    ),
}  # fmt: skip


@proves("D5, D6, D7 in queues under faults", how="random interleavings")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.long_on("mysql")
def test_receipts_hold(db: ContractDatabase, tmp_path: Path, name: str) -> None:
    """Guards: all of them."""
    play = QueuePlay(db, tmp_path, 3, name)
    assert play.run() == []
    for st in ("ok", "fail"):
        assert len(play.world.records("finish", st, how="acknowledge")) >= 3
    assert play.world.records("finish", "ok", how="reject")
    assert play.world.records("sweep")


@proves("D5, D6, D7 in queues under faults", guard="each part of a hand-out")
@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.long_on("mysql", "mariadb")
def test_the_checker_sees_it_gone(db: ContractDatabase, tmp_path: Path, mutant: str) -> None:
    """Mutants: each guard taken out; random interleavings show it, and the checker names it."""
    changes, name, kind = MUTANTS[mutant]
    for change in changes:
        if db.engine == "postgres" or "mysql" in change:
            mutated(db, change)
    assert QueuePlay(db, tmp_path, 3, name).shows(kind)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 30))
@pytest.mark.parametrize("name", NAMES)
def test_receipts_hold_for_long(db: ContractDatabase, tmp_path: Path, name: str, seed: int) -> None:
    """The same, sixty times as long."""
    assert QueuePlay(db, tmp_path, seed, name).run(steps=200) == []
