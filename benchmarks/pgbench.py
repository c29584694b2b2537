"""pgbench, the client that comes with the server: many connections, and no cost of Python."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from benchmarks.bench_database import BenchDatabase

CLIENTS = 8
THREADS = max(2, (os.cpu_count() or 2) // 2)
_RATE = re.compile(r"^tps = ([\d.]+) \(without initial connection time\)", re.MULTILINE)


def run_script(
    bench: BenchDatabase, script: str, transactions: int, *, scale: int = 1, clients: int = CLIENTS
) -> float:
    """Run a script until all clients together have run it ``transactions`` times.

    Returns the seconds. The time to connect is not counted. Statements are prepared, as drivers do
    it.
    """
    each = max(1, transactions // clients)
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(script)
        file.flush()
        said = _run(
            bench,
            *("-n", "-M", "prepared", "-f", file.name, "-s", str(scale)),
            *("-c", str(clients), "-j", str(min(clients, THREADS)), "-t", str(each)),
        )
    found = _RATE.search(said)
    if found is None or "number of failed transactions: 0 " not in said:
        raise RuntimeError(f"pgbench: {said.strip()}")
    return transactions / float(found[1])


def initialise(bench: BenchDatabase, scale: int) -> None:
    """Create the tables of TPC-B."""
    _run(bench, "-i", "-q", "-s", str(scale))


def _run(bench: BenchDatabase, *arguments: str) -> str:
    program: Path = bench.server.pgbench
    done = subprocess.run(
        [str(program), *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env=os.environ | _environment(bench.url),
    )
    if done.returncode != 0:
        raise RuntimeError(f"pgbench failed: {done.stderr.strip()}")
    return done.stdout


def _environment(url: str) -> Mapping[str, str]:
    parts = urlsplit(url)
    return {
        "PGHOST": parts.hostname or "",
        "PGPORT": str(parts.port),
        "PGUSER": unquote(parts.username or ""),
        "PGPASSWORD": unquote(parts.password or ""),
        "PGDATABASE": parts.path.lstrip("/"),
    }
