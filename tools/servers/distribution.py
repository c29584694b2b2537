"""A MySQL or MariaDB out of Debian packages, below ``.penstock/servers``.

The programs are unpacked once. The system tables are made once, in a template of a data directory;
every server starts from a copy of it. Two processes may do both at the same time, and neither needs
the network again.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.debian import STAMP, DebianUnavailable, through_own_loader, unpack
from tools.servers.errors import ServerUnavailable
from tools.servers.process import as_server, give

HOME = Path(__file__).resolve().parents[2] / ".penstock" / "servers"

# Small files make a small template, which is copied at every start. A server may set others.
_BOOTSTRAP_SECONDS = 120
_SHOWN_LINES = 5


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """How a distribution makes its system tables in an empty data directory."""

    options: Sequence[str]
    script: bytes = b""
    folders: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Distribution:
    """One server program: where it comes from and how it is run."""

    name: str
    title: str
    suite: str
    package: str
    program: str
    oldest: tuple[int, int]
    messages: str
    bootstrap: Callable[[Path], Bootstrap]
    libraries: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def root(self, home: Path = HOME) -> Path:
        """The unpacked packages, fetched now if they are missing."""
        try:
            return unpack([self.package], self.suite, home / self.name)
        except (DebianUnavailable, OSError) as error:
            raise ServerUnavailable(
                f"no {self.title}: {self.package} of Debian {self.suite} cannot be had ({error})",
                hint="check that apt-get reaches its archive, or run the tests on a server of "
                "yours (PENSTOCK_TEST_MYSQL_URL, PENSTOCK_TEST_MARIADB_URL)",
            ) from error

    def fetched(self, home: Path = HOME) -> bool:
        """Whether the packages are unpacked already."""
        return (home / self.name / STAMP).is_file()

    def version(self, home: Path = HOME) -> str:
        """The version that the program prints, such as ``9.7.4``. A version too old is an error."""
        root = self.root(home)
        said = self._run([*self._program(root), "--no-defaults", "--version"]).stdout.decode()
        found = re.search(r"Ver (((\d+)\.(\d+))\S*)", said)
        if found is None:
            raise ServerUnavailable(f"the {self.title} in {root} does not run: {said.strip()}")
        if (int(found[3]), int(found[4])) < self.oldest:
            raise ServerUnavailable(
                f"Debian {self.suite} has {self.title} {found[1]}, "
                f"older than {'.'.join(map(str, self.oldest))}"
            )
        return found[1]

    def command(self, data: Path, home: Path = HOME) -> list[str]:
        """The command that runs the server on a data directory, without any further setting."""
        root = self.root(home)
        return [
            *self._program(root),
            "--no-defaults",
            f"--basedir={root / 'usr'}",
            f"--datadir={data}",
            f"--lc-messages-dir={root / self.messages}",
            f"--plugin-dir={root / 'usr/lib/mysql/plugin'}",
        ]

    def template(self, home: Path = HOME) -> Path:
        """A data directory with system tables and a root without password.  Made once."""
        version = self.version(home)
        template = home / f"{self.name}.template"
        with locked(home / f".{self.name}.template.lock"):
            stamp = template / "version"
            if not stamp.is_file() or stamp.read_text() != version:
                self._make_template(template, home)
                # Written last: a template without it is half a template.
                stamp.write_text(version)
        return template / "data"

    def _make_template(self, template: Path, home: Path) -> None:
        shutil.rmtree(template, ignore_errors=True)
        data = template / "data"
        data.mkdir(parents=True, mode=0o750)
        plan = self.bootstrap(self.root(home))
        for each in plan.folders:
            (data / each).mkdir()
        give(data)
        command = [*self.command(data, home), *self.options, *plan.options]
        done = self._run(as_server(command, needs=(self.root(home), data)), plan.script)
        if done.returncode != 0:
            said = done.stdout.decode(errors="replace").splitlines()[-_SHOWN_LINES:]
            raise ServerUnavailable(f"{self.title} made no system tables: {' | '.join(said)}")
        # With this file, every server would have the identity of the first one.
        (data / "auto.cnf").unlink(missing_ok=True)

    def _program(self, root: Path) -> list[str]:
        try:
            return through_own_loader(root, self.program, *self.libraries)
        except DebianUnavailable as error:
            raise ServerUnavailable(
                f"the {self.title} in {root} is not complete ({error})",
                hint="remove that folder, and it is fetched again",
            ) from error

    def _run(
        self, command: Sequence[str], given: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(
                command, input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                timeout=_BOOTSTRAP_SECONDS, check=False, cwd="/",
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ServerUnavailable(f"the {self.title} program does not run: {error}") from error


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time.  The kernel frees the lock of a dead process."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
