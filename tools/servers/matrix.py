"""`make test-matrix`: the contract on every other version of the databases, one after the other.

    python -m tools.servers.matrix [--only NAME]... [--folder tests/contract] [PYTEST OPTION]...

What `make test` runs on anyway (PostgreSQL 18, the newest MySQL and MariaDB) is not run again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.errors import PenstockError
from tools.servers.catalogue import GROUPS, POSTGRES, fetch

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = "tests/contract"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: 1 when a version fails, or under CI cannot be had."""
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
    """What became of one version, and whether that is good."""
    try:
        version = fetch(name)
    except PenstockError as error:
        return f"NOT TESTED, because missing: {error}", not os.environ.get("CI")
    print(f"\n=== {name}: {version}", flush=True)
    command = [sys.executable, "-m", "pytest", "-m", "not long", *arguments]
    code = subprocess.run(
        command, cwd=ROOT, check=False, env={**os.environ, **environment(name)}
    ).returncode
    return f"{version}: {'passed' if code == 0 else f'FAILED (pytest {code})'}", code == 0


def environment(name: str) -> dict[str, str]:
    """What tells tests/servers.py to run on this version and on nothing else."""
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
