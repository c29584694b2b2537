"""Ask Maven for the jars of a pom: the machine's Maven, else one out of Debian packages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tools import java
from tools.debian import DebianUnavailable, unpack
from tools.servers.errors import ServerUnavailable

DIRECTORY = Path(__file__).resolve().parents[2] / ".penstock" / "maven"
SUITE = "bookworm"
PACKAGE = "maven"

_TIMEOUT_SECONDS = 900
_SHOWN = 500


def copy_jars(pom: Path, folder: Path, properties: Mapping[str, str]) -> None:
    """Copy what the pom depends on into a folder.  Maven's own settings say where it comes from."""
    try:
        home = java.home()
        command = [
            *(_program(), "--batch-mode", "--quiet", "--strict-checksums", "--file", str(pom)),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={folder}",
            *(f"-D{name}={value}" for name, value in properties.items()),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False,
            stdin=subprocess.DEVNULL, env={**os.environ, "JAVA_HOME": str(home)},
        )  # fmt: skip
    except java.JavaMissing as error:
        raise ServerUnavailable(f"Maven needs Java: {error}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerUnavailable(f"Maven does not work here: {error}") from error
    if done.returncode != 0:
        raise ServerUnavailable(f"Maven could not fetch: {_reason(done.stdout + done.stderr)}")


def _reason(said: str) -> str:
    """The first error that Maven prints.  What follows is how to make it print more."""
    errors: list[str] = re.findall(r"\[ERROR\] (\S.*)", said)
    return errors[0].partition(" -> [Help")[0] if errors else said.strip()[-_SHOWN:]


def _program() -> str:
    """The `mvn` of MAVEN or on PATH, else an unpacked one."""
    found = shutil.which(os.environ.get("MAVEN") or "mvn")
    if found is not None:
        return found
    try:
        return str(unpack([PACKAGE], SUITE, DIRECTORY) / "usr/share/maven/bin/mvn")
    except DebianUnavailable as error:
        raise ServerUnavailable(
            f"there is no Maven and none could be unpacked ({error})",
            hint="apt-get install maven, or set MAVEN to an mvn",
        ) from error
