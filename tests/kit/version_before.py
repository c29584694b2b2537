"""The version before this one: its wheel, and programs of it that run beside this one's.

It is that of the commit before. A checkout without history, or one whose commit before began with
other tables (possible until the first release), takes the commit itself, and else its own files.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

from penstock.database import catalog

ROOT = Path(__file__).resolve().parents[2]

_CHECKSUMS = """
from penstock.database import catalog
for dialect in ("postgres", "mysql"):
    print(*(each.checksum for each in catalog.migrations(dialect)))
"""


@dataclass(frozen=True, slots=True)
class VersionBefore:
    """Which commit it is, its files, and its unpacked wheel."""

    what: str
    tree: Path
    wheel: Path


def version_before(folder: Path) -> VersionBefore:
    """Take it out of the repository and build its wheel."""
    for commit in ("HEAD~1", "HEAD"):
        tree = folder / commit
        if _take_out(commit, tree) and _leads_here(tree):
            return VersionBefore(commit, tree, _wheel(tree, folder))
    return VersionBefore("this checkout", ROOT, _wheel(ROOT, folder))


def _take_out(commit: str, tree: Path) -> bool:
    packed = subprocess.run(
        ["git", "archive", commit], cwd=ROOT, capture_output=True, check=False
    )  # without history there is no such commit
    if packed.returncode == 0:
        with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
            archive.extractall(tree, filter="data")
    return packed.returncode == 0


def _leads_here(tree: Path) -> bool:
    """Whether its migrations are the first ones of this version's."""
    told = _run(tree, sys.executable, "-c", _CHECKSUMS)
    for dialect, line in zip(("postgres", "mysql"), told.splitlines(), strict=True):
        theirs = line.split()
        ours = [each.checksum for each in catalog.migrations(dialect)]
        if ours[: len(theirs)] != theirs:
            return False
    return True


def _wheel(tree: Path, folder: Path) -> Path:
    _run(
        folder, sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(folder),
        str(tree),
    )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    unpacked = folder / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    return unpacked


def _run(cwd: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass
class Program:
    """A program of it in a process of its own.  What it writes goes to two files."""

    name: str
    #: Where its modules are: the wheel, or the whole tree.
    code: Path
    folder: Path
    url: str
    script: str
    arguments: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        """Start it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.written, self.told = self.folder / f"{self.name}.out", self.folder / f"{self.name}.err"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "DB_"))}
        environment = kept | {"PENSTOCK_DATABASE_URL": self.url, "PYTHONPATH": str(self.code)}
        with self.written.open("wb") as written, self.told.open("wb") as told:
            self.process = subprocess.Popen(
                [sys.executable, "-c", self.script, *self.arguments],
                cwd=self.folder,
                env=environment,
                stdout=written,
                stderr=told,
            )

    def lines(self) -> list[str]:
        """The whole lines that it has written, while it runs."""
        assert self.process.poll() in {None, 0}, f"{self.name} has failed: {self.told.read_text()}"
        return self.written.read_text().rpartition("\n")[0].splitlines()

    def end(self) -> str:
        """Ask it to end, which it does well; returns what it has logged."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0, f"{self.name}: {self.told.read_text()}"
        return self.told.read_text()

    def kill(self) -> None:
        """For the end of a test that has failed."""
        self.process.kill()
        self.process.wait(30)
