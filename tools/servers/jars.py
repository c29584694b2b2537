"""A server of the tests that runs on Java: its jars from Maven, below ``.penstock/servers``."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools import java
from tools.servers.distribution import HOME, locked
from tools.servers.errors import ServerUnavailable
from tools.servers.maven import copy_jars

_STAMP = ".complete"
#: For tests: it starts soon and stays small.
QUICK = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
#: As it comes, for benchmarks.
MEASURED = ("-Xms512m", "-Xmx1g")


@dataclass(frozen=True, slots=True)
class Jars:
    """The jars of a pom, fetched once.  When one of its ``files`` changes, they are made anew."""

    name: str
    title: str
    #: The pom comes first.
    files: tuple[Path, ...]
    #: What is made beside ``lib`` in the folder.
    finish: Callable[[Path], None] = lambda _: None

    def fetched(self, home: Path = HOME) -> bool:
        """Whether they are here already."""
        stamp = home / self.name / _STAMP
        return stamp.is_file() and stamp.read_text() == self._mark()

    def root(self, home: Path = HOME) -> Path:
        """The folder in which they are, in ``lib``, made now if it is missing."""
        found = home / self.name
        try:
            home.mkdir(parents=True, exist_ok=True)
            with locked(home / f".{self.name}.lock"):
                if not self.fetched(home):
                    self._make(found)
        except OSError as error:
            raise ServerUnavailable(f"{self.title} cannot be unpacked: {error}") from error
        return found

    def version(self, jar: str, home: Path = HOME) -> str:
        """The version in the name of a jar, such as ``4.1.0`` of ``kafka_2.13-4.1.0.jar``."""
        found = next((self.root(home) / "lib").glob(f"{jar}-*.jar"))
        return found.stem.removeprefix(f"{jar}-")

    def command(self, lib: Path, options: Sequence[str] = QUICK) -> list[str]:
        """Java with these jars; the class follows."""
        try:
            program = java.home() / "bin" / "java"
        except java.JavaMissing as error:
            raise ServerUnavailable(f"{self.title} needs Java: {error}") from error
        return [str(program), *options, "-cp", f"{lib}:{lib}/*"]

    def _make(self, found: Path) -> None:
        """Made under another name and renamed, so that an unfinished one is never used."""
        unfinished = found.parent / f".{self.name}.unfinished"
        for leftover in (unfinished, found):
            shutil.rmtree(leftover, ignore_errors=True)
        unfinished.mkdir()
        copy_jars(self.files[0], unfinished / "lib", {})
        self.finish(unfinished)
        (unfinished / _STAMP).write_text(self._mark())
        unfinished.rename(found)

    def _mark(self) -> str:
        return hashlib.sha256(b"".join(each.read_bytes() for each in self.files)).hexdigest()
