"""`make test-matrix`: the contract on every other version of the databases, one after the other.

    python -m tools.servers.matrix [--only NAME]... [--folder tests/contract] [PYTEST OPTION]...

What `make test` runs on anyway (PostgreSQL 18, the newest MySQL and MariaDB) is not run again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from penstock.errors import PenstockError
from tools.servers.catalogue import GROUPS, POSTGRES, fetch

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = "tests/contract"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line.  1 when a version fails, or when under CI one cannot be fetched."""
    parser = argparse.ArgumentParser(prog="python -m tools.servers.matrix", description=__doc__)
    parser.add_argument("--only", action="append", choices=GROUPS["matrix"], metavar="NAME")
    parser.add_argument("--folder", default=CONTRACT)
    options, for_pytest = parser.parse_known_args(arguments)
    if not (ROOT / options.folder).exists():
        print(f"error: there is no {options.folder} to run", file=sys.stderr)
        return 1
    results = {
        name: _run(name, [options.folder, *for_pytest]) for name in options.only or GROUPS["matrix"]
    }
    print("\ntest-matrix:")
    for name, (result, _) in results.items():
        print(f"  {name:15} {result}")
    return 0 if all(good for _, good in results.values()) else 1


def _run(name: str, arguments: Sequence[str]) -> tuple[str, bool]:
    """The result of one version in words, and whether it is good."""
    try:
        version = fetch(name)
    except PenstockError as error:
        return f"NOT TESTED, because missing: {error}", not os.environ.get("CI")
    return run_tests(name, version, arguments)


def run_tests(name: str, version: str, arguments: Sequence[str]) -> tuple[str, bool]:
    """Run pytest on a version that is here."""
    print(f"\n=== {name}: {version}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command = [
            *(sys.executable, "-m", "pytest", "-m", "not long", f"--junitxml={report}"),
            *arguments,
        ]
        code = subprocess.run(
            command, cwd=ROOT, check=False, env={**os.environ, **environment(name)}
        ).returncode
        passed, skipped = counts(report)
    # A run that skipped everything proves nothing about this version.
    good = code == 0 and passed > 0
    said = f"{passed} passed, {skipped} skipped"
    return f"{version}: {said if good else f'FAILED (pytest {code}), {said}'}", good


def counts(report: Path) -> tuple[int, int]:
    """How many tests passed and how many were skipped; none when there is no report."""
    try:
        suites = ElementTree.parse(report).getroot().iter("testsuite")
    except (OSError, ElementTree.ParseError):
        return 0, 0
    numbers = [{k: int(v) for k, v in each.items() if v.isdecimal()} for each in suites]
    passed = sum(n["tests"] - n["skipped"] - n["failures"] - n["errors"] for n in numbers)
    return max(passed, 0), sum(n["skipped"] for n in numbers)


def environment(name: str) -> dict[str, str]:
    """The variables that tell tests/servers.py to run on this version and on nothing else."""
    if name in POSTGRES:
        return {
            "PENSTOCK_TEST_DATABASES": "postgres",
            "PENSTOCK_TEST_POSTGRES_MAJOR": str(POSTGRES[name]),
        }
    database, _, version = name.partition("-")
    return {
        "PENSTOCK_TEST_DATABASES": database,
        f"PENSTOCK_TEST_{database.upper()}_VERSION": version,
    }


if __name__ == "__main__":
    sys.exit(main())
