"""Create the environment in ``.penstock/venv`` from the locked requirements, without rights.

`make setup` runs it with the machine's own Python. pip's own configuration stays in force, so a
mirror or a certificate that the machine needs is used. The requirements are pinned with hashes and
carry no address.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tools.debian import DebianUnavailable, unpack

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".penstock" / "venv"
STAMP = VENV / ".complete"
OLDEST, NEWEST = (3, 11), (3, 13)
DEBIAN_SUITE = "bookworm"
MACHINE_WHEELS = Path("/usr/share/python-wheels")


class SetupError(Exception):
    """The environment cannot be made here.  The text says what to do."""


def create() -> None:
    """Make the environment, or bring it up to date."""
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        raise SetupError(
            f"Python {sys.version_info.major}.{sys.version_info.minor} is not supported: "
            "install Python 3.11, 3.12 or 3.13, or name one by `make PYTHON=...`"
        )
    VENV.parent.mkdir(exist_ok=True)
    with (VENV.parent / ".environment.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        STAMP.unlink(missing_ok=True)
        if not _works():
            _make_venv()
        _say("installing the locked packages (the first time takes a minute or two)")
        _pip("install", "--quiet", "--require-hashes", "-r", str(ROOT / "requirements.lock"))
        _pip("install", "--quiet", "--no-deps", "--no-build-isolation", "-e", str(ROOT))
        STAMP.touch()
    _say(f"the environment is ready: {VENV.relative_to(ROOT)}")


def _works() -> bool:
    """Whether the environment's Python runs and has pip.  In a moved checkout it does not."""
    probe = [str(VENV / "bin" / "python"), "-c", "import pip, sys; print(sys.prefix)"]
    try:
        done = subprocess.run(probe, capture_output=True, text=True, check=False)
    except OSError:
        return False
    return done.returncode == 0 and Path(done.stdout.strip()).resolve() == VENV.resolve()


def _make_venv() -> None:
    _say(f"creating {VENV.relative_to(ROOT)} with Python {sys.version.split()[0]}")
    shutil.rmtree(VENV, ignore_errors=True)
    if find_spec("ensurepip") is not None and find_spec("venv") is not None:
        _run([sys.executable, "-m", "venv", str(VENV)])
        return
    # Debian removes ensurepip from python3. The pip that it would install is a separate package.
    _run([sys.executable, "-m", "venv", "--without-pip", str(VENV)])
    wheel = _pip_wheel()
    _run(
        [
            str(VENV / "bin" / "python"),
            f"{wheel}/pip",
            "install",
            "--quiet",
            "--no-index",
            str(wheel),
        ]
    )


def _pip_wheel() -> Path:
    """Debian's wheel of pip: the machine's one, else one unpacked into ``.penstock``."""
    folders = [MACHINE_WHEELS]
    while folders:
        wheels = sorted(folders.pop().glob("pip-*.whl"))
        if wheels:
            return wheels[-1]
        unpacked = VENV.parent / "pip"
        if not unpacked.exists():
            try:
                unpack(["python3-pip-whl"], DEBIAN_SUITE, unpacked)
            except DebianUnavailable as error:
                raise SetupError(
                    f"this Python has no ensurepip ({error}): apt-get install python3-venv"
                ) from error
            folders.append(unpacked / "usr" / "share" / "python-wheels")
    raise SetupError("this Python has no ensurepip: apt-get install python3-venv")


def _pip(*arguments: str) -> None:
    _run([str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", *arguments])


def _run(command: Sequence[str]) -> None:
    # Output is not captured, so that the progress of a download is seen.
    done = subprocess.run(command, check=False, cwd=ROOT, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise SetupError(f"failed with exit code {done.returncode}: {' '.join(command)}")


def _say(text: str) -> None:
    print(f"setup: {text}", flush=True)


def main() -> int:
    """The command line: no arguments."""
    os.environ.setdefault("PIP_ROOT_USER_ACTION", "ignore")
    # Debian's pip would build pyspark the old way and warn at length. Newer pips cannot.
    os.environ.setdefault("PIP_USE_PEP517", "1")
    try:
        create()
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
