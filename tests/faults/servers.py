"""A separate database server for one run, because the run kills it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from penstock.database.migrate import migrate
from penstock.errors import PenstockError
from resources.embedded import EmbeddedPostgres
from tests.faults.proxy import Address, address_of
from tests.support import missing
from tools.servers import MARIADB, MYSQL, MySQLServer

#: A commit that was answered survives the death of the server, though not of the machine.
POSTGRES = {"fsync": "off", "lock_timeout": "60s", "max_prepared_transactions": "50"}
MYSQL_FAMILY = {
    "innodb_flush_log_at_trx_commit": "2",
    "skip_log_bin": None,
    "performance_schema": "OFF",
    "innodb_buffer_pool_size": "128M",
}


#: How long a backend may take to notice that its server is gone.
_END_SECONDS = 60


class Crashing(Protocol):
    """A server that a test kills and starts again."""

    url: str

    def address(self) -> Address:
        """Where it listens now; another port after a restart, perhaps."""
        ...

    def crash(self) -> None:
        """SIGKILL."""
        ...

    def restart(self) -> None:
        """Start it on the data that it left."""
        ...


class CrashingPostgres:
    """The embedded one."""

    def __init__(self, folder: Path) -> None:
        self._server = EmbeddedPostgres(folder, settings=POSTGRES)
        self._server.start()
        self.url = self._server.url("faults")

    def address(self) -> Address:
        """By its pid file."""
        return "127.0.0.1", self._server.port or 1

    def crash(self) -> None:
        """The postmaster; its children end when they notice, and some answer until then."""
        pid = self._server.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)  # none is made any more
        backends = children(pid)
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + _END_SECONDS
        # Its number has to be free: the next one looks whether there is such a process.
        while Path(f"/proc/{pid}").exists() or any(map(lives, backends)):
            assert time.monotonic() < deadline, "the server does not end"
            time.sleep(0.01)

    def restart(self) -> None:
        """With crash recovery."""
        self._server.start()
        self.url = self._server.url("faults")

    def stop(self) -> None:
        """In order."""
        self._server.stop()


class CrashingMySQL:
    """MySQL or MariaDB."""

    def __init__(self, folder: Path, engine: str) -> None:
        distribution = MYSQL if engine == "mysql" else MARIADB
        self._server = MySQLServer(folder, distribution, settings=MYSQL_FAMILY)
        self._server.start()
        self.url = self._server.url("faults")

    def address(self) -> Address:
        """Where it was started last."""
        return address_of(self.url)

    def crash(self) -> None:
        """The server process."""
        self._server.kill()

    def restart(self) -> None:
        """With crash recovery."""
        self._server.start()
        self.url = self._server.url("faults")

    def stop(self) -> None:
        """In order."""
        self._server.stop()


def lives(pid: int) -> bool:
    """Whether there is a process of this number, which has not ended."""
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z"
    return False


def children(parent: int) -> list[int]:
    """The processes that a process has made."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(entry.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(entry.parent.name))
    return found


@contextmanager
def crashing_server(engine: str, folder: Path) -> Iterator[Crashing]:
    """A migrated one of this engine, until the block ends."""
    try:
        server = CrashingPostgres(folder) if engine == "postgres" else CrashingMySQL(folder, engine)
    except PenstockError as error:
        missing(engine, error)
    try:
        migrate(server.url)
        yield server
    finally:
        server.stop()
