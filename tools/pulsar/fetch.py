"""Fetches the broker's jars into `.penstock/pulsar/lib` with Maven, once."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from tools.pulsar.errors import PulsarUnavailable

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HOME = ROOT / ".penstock" / "pulsar"
POM = HERE / "pom.xml"

_TIMEOUT_SECONDS = 1500
_SHOWN_LINES = 8


def stamp_of_pom() -> str:
    """A mark of the pom.  When the pom changes, the jars are fetched again."""
    return hashlib.sha256(POM.read_bytes()).hexdigest()


def fetched(home: Path = HOME) -> bool:
    """Whether the jars of this pom are there."""
    stamp = home / "lib.stamp"
    return stamp.is_file() and stamp.read_text().strip() == stamp_of_pom()


def find_maven() -> str:
    """The `mvn` program: of MAVEN, or on PATH."""
    found = shutil.which(os.environ.get("MAVEN") or "mvn")
    if found is None:
        raise PulsarUnavailable("there is no Maven; `apt-get install maven` (or set MAVEN to mvn)")
    return found


def fetch(home: Path = HOME) -> Path:
    """The folder of jars, fetched now if it is missing.  Two runs at once are safe."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "fetch.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not fetched(home):
            _copy_dependencies(find_maven(), home)
    return home / "lib"


def _copy_dependencies(maven: str, home: Path) -> None:
    fresh, lib = home / "lib.new", home / "lib"
    shutil.rmtree(fresh, ignore_errors=True)
    command = [
        *(maven, "--batch-mode", "--quiet", "--file", str(POM)),
        "dependency:copy-dependencies",
        "-DincludeScope=runtime",
        f"-DoutputDirectory={fresh}",
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise PulsarUnavailable(f"Maven took longer than {_TIMEOUT_SECONDS} s") from error
    if done.returncode != 0 or not any(fresh.glob("pulsar-broker-*.jar")):
        shown = (done.stdout + done.stderr).strip().splitlines()[-_SHOWN_LINES:]
        raise PulsarUnavailable("Maven could not fetch the jars of Pulsar:\n" + "\n".join(shown))
    shutil.rmtree(lib, ignore_errors=True)
    fresh.rename(lib)
    (home / "lib.stamp").write_text(stamp_of_pom())
