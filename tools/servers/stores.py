"""etcd, Redis and tools that check files, out of Debian packages, in ``.penstock/servers``."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.debian import STAMP, DebianUnavailable, through_own_loader, unpack
from tools.servers.base import HOST, SpawnedServer
from tools.servers.distribution import HOME
from tools.servers.errors import ServerUnavailable
from tools.servers.process import give, spawn

_SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program of a Debian package."""

    name: str
    title: str
    package: str
    program: str
    suite: str = "trixie"
    #: Folders of libraries of its own, below the root.
    libraries: tuple[str, ...] = ()

    def root(self, home: Path = HOME) -> Path:
        """The unpacked packages, fetched now if they are missing."""
        try:
            return unpack([self.package], self.suite, home / self.name)
        except (DebianUnavailable, OSError) as error:
            raise ServerUnavailable(
                f"no {self.title}: {self.package} of Debian {self.suite} cannot be had ({error})",
                hint="check that apt-get reaches its archive, or run the tests on a server of "
                "yours (PENSTOCK_TEST_ETCD_URL, PENSTOCK_TEST_REDIS_URL)",
            ) from error

    def fetched(self, home: Path = HOME) -> bool:
        """Whether the packages are unpacked already."""
        return (home / self.name / STAMP).is_file()

    def command(self, home: Path = HOME) -> list[str]:
        """The command that runs the program, without any setting."""
        try:
            return through_own_loader(self.root(home), self.program, *self.libraries)
        except DebianUnavailable as error:
            raise ServerUnavailable(
                f"the {self.title} in {home / self.name} is not complete ({error})",
                hint="remove that folder, and it is fetched again",
            ) from error

    def version(self, home: Path = HOME) -> str:
        """The version that the program prints, such as ``3.5.16``."""
        try:
            said = subprocess.run(
                [*self.command(home), "--version"],
                capture_output=True, text=True, timeout=_SECONDS, check=True, cwd="/",
            ).stdout  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            raise ServerUnavailable(f"the {self.title} program does not run: {error}") from error
        found = re.search(r"(\d+\.\d+\.\d+)", said)
        return found[1] if found else said.strip().partition("\n")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Store(Program):
    """A store for leases, and how its server is run."""

    options: Callable[[Path, int], Sequence[str]]
    #: A text that only its command holds.
    mark: str
    #: What it logs when it is up.
    ready: str


class StoreServer(SpawnedServer):
    """A running etcd or Redis.

    Tests need not survive a power failure: nothing waits for the disk.
    """

    def __init__(
        self,
        directory: Path | str,
        store: Store,
        *,
        die_with_parent: bool = True,
        home: Path = HOME,
    ) -> None:
        super().__init__(
            directory, store.name, store.title, die_with_parent=die_with_parent, home=home
        )
        self.store = store

    def url(self) -> str:
        """The URL of the running server."""
        return f"{self.name}://{super().url()}"

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _mark(self) -> str:
        return self.store.mark.format(data=self._data)

    def _fetch(self) -> None:
        self.store.root(self._home)

    def _prepare(self) -> None:
        self._data.mkdir(mode=0o700, exist_ok=True)
        give(self._data)

    def _spawn(self, port: int) -> subprocess.Popen[bytes]:
        return spawn(
            [*self.store.command(self._home), *self.store.options(self._data, port)],
            needs=(self.store.root(self._home) / "usr", self._data),
            log=self.log_file,
            die_with_parent=self._die_with_parent,
        )

    def _is_ours(self) -> bool:
        return self.store.ready in self._logged()


def _etcd_options(data: Path, port: int) -> list[str]:
    client = f"http://{HOST}:{port}"
    return [
        f"--data-dir={data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        # It is alone, so it needs no port for other members.
        f"--listen-peer-urls=http://{HOST}:0",
        "--unsafe-no-fsync",
        "--heartbeat-interval=50",
        "--election-timeout=500",
    ]


def _redis_options(data: Path, port: int) -> list[str]:
    return [
        "--dir", str(data), "--port", str(port), "--bind", HOST, "--save", "", "--appendonly", "no",
        # It would overwrite its command line, by which it is found.
        "--set-proc-title", "no",
    ]  # fmt: skip


ETCD = Store(
    name="etcd",
    title="etcd",
    package="etcd-server",
    program="usr/bin/etcd",
    options=_etcd_options,
    mark="--data-dir={data}\0",
    ready="ready to serve client requests",
)

REDIS = Store(
    name="redis",
    title="Redis",
    package="redis-server",
    program="usr/bin/redis-server",
    options=_redis_options,
    mark="--dir\0{data}\0",
    ready="Ready to accept connections",
)

#: It checks and tests the rules of the alerts.
PROMTOOL = Program(
    name="promtool", title="promtool", package="prometheus", program="usr/bin/promtool"
)

#: It checks the units of deploy/systemd.
SYSTEMD_ANALYZE = Program(
    name="systemd-analyze",
    title="systemd-analyze",
    package="systemd",
    program="usr/bin/systemd-analyze",
    libraries=(f"usr/lib/{os.uname().machine}-linux-gnu/systemd",),
)
