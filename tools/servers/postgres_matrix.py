"""Older PostgreSQL versions, from Maven, below ``.penstock/servers``.

The newest one comes with the environment (:mod:`resources.embedded`). These are for the tests that
show on which other versions Penstock works.  The newest one is here too, of the same builder, to be
measured beside them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from resources.embedded import EmbeddedPostgres
from tools.servers.distribution import HOME, locked
from tools.servers.errors import ServerUnavailable
from tools.servers.maven import copy_jars

POM = Path(__file__).resolve().parent / "pom.xml"
VERSIONS = {14: "14.24.0", 15: "15.19.0", 16: "16.15.0", 17: "17.11.0", 18: "18.6.0"}
NEWEST = max(VERSIONS)
PLATFORMS = {"x86_64": "linux-amd64", "aarch64": "linux-arm64v8"}
STAMP = ".unpacked"

# initdb has them since version 17. Before it the C library gives the same order of characters.
_NEWER_OPTIONS = ("--locale-provider", "--builtin-locale")
_BUILTIN_LOCALE = 17


class MatrixPostgres(EmbeddedPostgres):
    """The embedded PostgreSQL, of another major version.  It brings no pgbench."""

    def __init__(
        self,
        major: int,
        directory: Path | str,
        *,
        settings: Mapping[str, str] | None = None,
        home: Path = HOME,
    ) -> None:
        programs = bin_dir(major, home)
        super().__init__(directory, settings=settings)
        self.bin_dir = programs
        self.major = major

    def _run(self, program: str, *arguments: Path | str) -> subprocess.CompletedProcess[str]:
        if program == "initdb" and self.major < _BUILTIN_LOCALE:
            kept = [each for each in arguments if not str(each).startswith(_NEWER_OPTIONS)]
            arguments = (*kept, "--lc-ctype=C.UTF-8")
        return super()._run(program, *arguments)


def fetched(major: int, home: Path = HOME) -> bool:
    """Whether this version is unpacked already."""
    stamp = home / f"postgres-{major}" / STAMP
    return stamp.is_file() and stamp.read_text() == VERSIONS.get(major)


def bin_dir(major: int, home: Path = HOME) -> Path:
    """The programs of a major version, fetched now if they are missing."""
    if major not in VERSIONS:
        raise ServerUnavailable(
            f"PostgreSQL {major} is not in the matrix",
            hint=f"one of {', '.join(map(str, VERSIONS))}",
        )
    root = home / f"postgres-{major}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with locked(home / f".{root.name}.lock"):
            if not fetched(major, home):
                _fetch(VERSIONS[major], root)
    except (OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise ServerUnavailable(f"PostgreSQL {major} cannot be unpacked: {error}") from error
    return root / "bin"


def version(major: int, home: Path = HOME) -> str:
    """The version that the server program prints, such as ``14.24``."""
    command = [str(bin_dir(major, home) / "postgres"), "--version"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise ServerUnavailable(f"PostgreSQL {major} does not run here: {error}") from error
    return said.split()[-1]


def _fetch(release: str, root: Path) -> None:
    """Unpack under another name and rename, so that an unfinished tree is never used."""
    platform = PLATFORMS.get(os.uname().machine)
    if platform is None:
        raise ServerUnavailable(f"there is no PostgreSQL {release} for {os.uname().machine}")
    work = root.parent / f".{root.name}.maven"
    unfinished = root.parent / f".{root.name}.unfinished"
    for leftover in (work, unfinished, root):
        shutil.rmtree(leftover, ignore_errors=True)
    copy_jars(POM, work, {"postgres.version": release, "postgres.platform": platform})
    unfinished.mkdir()
    for jar in work.glob("*.jar"):
        _unpack(jar, unfinished)
    (unfinished / STAMP).write_text(release)
    unfinished.rename(root)
    shutil.rmtree(work, ignore_errors=True)


def _unpack(jar: Path, target: Path) -> None:
    with zipfile.ZipFile(jar) as outer:
        for name in outer.namelist():
            if not name.endswith(".txz"):
                continue
            with outer.open(name) as packed, tarfile.open(fileobj=packed, mode="r:xz") as inner:
                # The first releases of Python 3.11 have no filters.
                if hasattr(tarfile, "data_filter"):
                    inner.extraction_filter = tarfile.data_filter
                inner.extractall(target)
