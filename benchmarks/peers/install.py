"""The peers, fetched by name from the package registries into ``.penstock/peers``.

The repository keeps nothing of theirs.  A peer that cannot be fetched is a gap that the run names.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PEERS = Path(__file__).resolve().parents[2] / ".penstock" / "peers"
PYTHON_PEERS = ("procrastinate==3.10.0", "pgqueuer[asyncpg]==1.6.0", "psycopg[binary,pool]==3.3.9")
PGMQ_VERSION = "0.33.7"  # of the crate, which contains the SQL of pgmq
#: A project that needs nothing but the crate.
_MANIFEST = f"""
[package]
name = "peers"
version = "0.0.0"
edition = "2021"
[dependencies]
pgmq = "={PGMQ_VERSION}"
"""


class PeerMissing(Exception):
    """A peer cannot be fetched here.  The text says why, in one line."""


def python_with_peers() -> Path:
    """A Python whose environment has procrastinate and pgqueuer, and nothing of Penstock."""
    return _installed("venv", " ".join(PYTHON_PEERS), _make_venv) / "bin" / "python"


def pgmq_sql() -> str:
    """The SQL that installs pgmq, out of its crate.  cargo fetches the crate; nothing is built."""
    return (_installed("pgmq-sql", PGMQ_VERSION, _fetch_pgmq) / "pgmq.sql").read_text()


def _installed(name: str, wanted: str, make: Callable[[Path], None]) -> Path:
    target = PEERS / name
    stamp = target / ".complete"
    with _locked():
        if not (stamp.exists() and stamp.read_text() == wanted):
            shutil.rmtree(target, ignore_errors=True)
            make(target)
            stamp.write_text(wanted)
    return target


def _make_venv(target: Path) -> None:
    print("  installing procrastinate and pgqueuer from the package index", flush=True)
    # Our own pip installs into it, because some of Debian's Pythons cannot install pip there.
    _run([sys.executable, "-m", "venv", "--without-pip", str(target)])
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    python = str(target / "bin" / "python")
    _run([*pip, "--python", python, "install", "--quiet", *PYTHON_PEERS])


def _fetch_pgmq(target: Path) -> None:
    cargo = shutil.which("cargo")
    if cargo is None:
        raise PeerMissing("there is no cargo to fetch pgmq's crate with")
    (target / "src").mkdir(parents=True)
    (target / "src" / "lib.rs").touch()
    (target / "Cargo.toml").write_text(_MANIFEST)
    manifest = ["--manifest-path", str(target / "Cargo.toml")]
    _run([cargo, "fetch", "--quiet", *manifest])
    described = json.loads(_run([cargo, "metadata", "--format-version", "1", *manifest]))
    (crate,) = (each for each in described["packages"] if each["name"] == "pgmq")
    sql = Path(crate["manifest_path"]).parent / "src" / "install" / "embedded" / "sql" / "pgmq.sql"
    shutil.copyfile(sql, target / "pgmq.sql")


@contextmanager
def _locked() -> Iterator[None]:
    PEERS.mkdir(parents=True, exist_ok=True)
    with (PEERS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason given"]
        raise PeerMissing(f"{Path(command[0]).name} failed: {said[-1]}")
    return done.stdout
