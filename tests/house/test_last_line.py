"""A run ends with what it could not test, also when other processes ran the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: There is no such server to be had.
MISSING = {"PENSTOCK_TEST_POSTGRES_URL": "", "PENSTOCK_TEST_POSTGRES_MAJOR": "13"}


@pytest.mark.parametrize(
    ("ci", "processes", "code", "last"),
    [
        ("", "1", 0, "NOT TESTED, because missing: PostgreSQL (PostgreSQL 13 is not"),
        ("1", "0", 1, "1 error in"),
    ],
    ids=["elsewhere", "on CI"],
)
def test_a_missing_server_is_a_named_gap_and_on_ci_an_error(
    tmp_path: Path, ci: str, processes: str, code: int, last: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", processes, "-o", f"cache_dir={tmp_path / 'cache'}",
         f"--basetemp={tmp_path / 'run'}", "tests/contract/pages/test_readme.py",
         "-k", "quickstart_delivers and postgres"],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, **MISSING, "CI": ci},
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert last in done.stdout.splitlines()[-1]
