"""The demo can fail: with a guard taken out it ends with exit code 1, because balances differ."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
SHORT = ("--transactions", "6000", "--rate", "400", "--no-platform")


def _play(directory: Path, *arguments: str) -> tuple[int, str]:
    return _run("--directory", str(directory), *SHORT, *arguments)


def _run(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tools.demo", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=280,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_whole_demo(tmp_path: Path, java_home: Path) -> None:
    """With relay, seal, archive and clean by Dagster, as `make demo` plays it."""
    code, said = _run("--directory", str(tmp_path))
    assert "All balances are equal" in said, said[-2000:]
    assert re.search(r"(\d+) of \1 log epochs dropped, the storage of \d+ ids given back", said)
    assert re.search(r"by FETCH over hot and cold equals the log: [1-9]\d* events", said)
    assert code == 0


@pytest.mark.timeout(300)
def test_all_balances_are_equal(tmp_path: Path) -> None:
    code, said = _play(tmp_path)
    assert "All balances are equal" in said
    assert code == 0
    assert _figure(said, "take-overs of leases") >= 1
    assert _figure(said, "stale commits that were refused") >= 1
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
@pytest.mark.long
def test_without_its_guard_the_demo_fails(tmp_path: Path, mutant: str) -> None:
    code, said = _play(tmp_path, "--mutant", mutant)
    assert re.search(r"\d+ accounts differ", said), said
    assert code == 1


def _figure(said: str, name: str) -> int:
    found = re.search(rf"{re.escape(name)}\D+([\d,]+)", said)
    assert found is not None, said
    return int(found[1].replace(",", ""))


@pytest.mark.timeout(120)
@pytest.mark.long
def test_sigterm_leaves_nothing_running(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.demo", "--no-platform", "--directory", str(tmp_path)]
    with (tmp_path / "said").open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT,
            env=os.environ | {"STARTED_BY_TEST": str(tmp_path)},
        )  # fmt: skip
    traffic = tmp_path / "logs" / "pgbench.log"
    try:
        deadline = time.monotonic() + 60
        while not traffic.exists():
            assert process.poll() is None and time.monotonic() < deadline, "the bank never opened"
            time.sleep(0.1)
        process.terminate()
        assert process.wait(timeout=30) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
    assert _of(tmp_path) == []


def _of(directory: Path) -> list[str]:
    """The processes whose command, or whose environment, names this directory."""
    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(directory) in " ".join([*each.cmdline(), *each.environ().values()]):
                found.append(str(each))
    return found
