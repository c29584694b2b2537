"""The demo can fail: with a guard taken out it ends with exit code 1, because balances differ."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHORT = ("--transactions", "6000", "--rate", "400", "--no-platform")


def _play(directory: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tools.demo", *SHORT, "--directory", str(directory), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=280,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.timeout(300)
def test_all_balances_are_equal(tmp_path: Path) -> None:
    code, said = _play(tmp_path)
    assert "All balances are equal" in said
    assert code == 0
    assert _figure(said, "take-overs of leases") >= 1
    assert _figure(said, "stale commits that the database rejected") >= 1
    assert _figure(said, "open transactions that the database ended") >= 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "mutant",
    [
        # The guard: hold_leases() of commit, which locks the lease row and looks at its holder.
        "unfenced",
        # The guard: the projection and the position in one transaction.
        "outside",
    ],
)
def test_without_its_guard_the_demo_fails(tmp_path: Path, mutant: str) -> None:
    code, said = _play(tmp_path, "--mutant", mutant)
    assert re.search(r"\d+ accounts differ", said), said
    assert code == 1


def _figure(said: str, name: str) -> int:
    found = re.search(rf"{re.escape(name)}\D+([\d,]+)", said)
    assert found is not None, said
    return int(found[1].replace(",", ""))
