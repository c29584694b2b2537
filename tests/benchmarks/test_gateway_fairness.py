"""The measurement of a noisy tenant runs, in a tiny size: what it prints, not the figures."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.long
def test_it_measures_both_kinds_of_calls() -> None:
    options = ["--rounds", "1", "--seconds", "1", "--share", "0.1"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gateway_fairness", *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    rows = [each for each in done.stdout.splitlines() if each.startswith("gateway_fairness ")]
    assert [each.split()[1] for each in rows] == ["publish:", "receive:"]
