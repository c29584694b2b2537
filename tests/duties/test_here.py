"""Every duty in this process, on every engine: its work, its report, and a second run."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from ops.duties.units import DONE
from tests.contract.databases import ContractDatabase
from tests.duties.kit import SCENARIOS, do
from tests.kit.proof import proves


def no_session() -> NoReturn:
    """Nobody may ask for one."""
    raise AssertionError("a JVM would have been started")


@proves("a unit is done once")
@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.long_on("mysql")
def test_a_duty_does_its_work_once(db: ContractDatabase, tmp_path: Path, name: str) -> None:
    """With engine=auto a small piece of work starts no JVM, and a second run finds nothing."""
    scenario = SCENARIOS[name](db, tmp_path)
    outcomes = do(name, scenario.setup, engine="auto", spark=no_session)
    scenario.check(outcomes)
    again = do(name, scenario.setup, engine="auto", spark=no_session)
    assert {each.state for each in again} <= {DONE}
    assert not sum(each.events for each in again)
