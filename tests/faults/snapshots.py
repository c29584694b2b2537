"""A server that is put back, under load, to a snapshot of its volume.

All its processes are paused while its folder is copied.  To the server this looks like the snapshot
that a storage system takes while it runs.

What was answered before is in the copy, and nothing is answered while it is made: so the copy has
to recover as after a crash, and no promise may be broken.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

from penstock.database.migrate import migrate
from penstock.errors import PenstockError
from resources.system_user import give_to_server_user
from tests.faults.servers import CrashingMySQL, CrashingPostgres, children, lives
from tests.kit.log import wait_until
from tests.support import missing


class Volume:
    """Beside the server: ``crash`` takes the snapshot and ends the server, ``restart`` is of it."""

    def __init__(self, engine: str, folder: Path) -> None:
        self._folder = folder
        self._server: CrashingPostgres | CrashingMySQL = (
            CrashingPostgres(folder) if engine == "postgres" else CrashingMySQL(folder, engine)
        )
        self.address = self._server.address
        self.stop = self._server.stop
        self.url = self._server.url
        self.snapshots = 0

    def crash(self) -> None:
        """The load meets a server that does not move, then none."""
        frozen = self._frozen()
        copy = self._folder.with_name(f"{self._folder.name}.copy")
        try:
            # As they are: who owns them, and when they were made, a volume keeps too.
            shutil.copytree(self._folder, copy, ignore=shutil.ignore_patterns("*.sock*"))
            if os.geteuid() == 0:
                give_to_server_user(copy, *copy.rglob("*"))
        finally:
            for pid in frozen[1:]:
                os.kill(pid, signal.SIGKILL)
            self._server.crash()
        wait_until(lambda: not any(map(lives, frozen)), "the server has ended")
        shutil.rmtree(self._folder)
        copy.rename(self._folder)
        self.snapshots += 1

    def restart(self) -> None:
        """On the copy, at the place of the original."""
        self._server.restart()
        self.url = self._server.url

    def _frozen(self) -> list[int]:
        """Stop every process of the server; none of those that run can make another."""
        frozen = [self._main()]
        os.kill(frozen[0], signal.SIGSTOP)
        for pid in children(frozen[0]):
            os.kill(pid, signal.SIGSTOP)
            frozen.append(pid)
        return frozen

    def _main(self) -> int:
        files = [*self._folder.rglob("postmaster.pid"), *self._folder.rglob("server.pid")]
        (file,) = files
        return int(file.read_text().split()[0])


@contextlib.contextmanager
def volume(engine: str, folder: Path) -> Iterator[Volume]:
    """A migrated one of this engine, until the block ends."""
    try:
        server = Volume(engine, folder)
    except PenstockError as error:
        missing(engine, error)
    try:
        migrate(server.url)
        yield server
    finally:
        server.stop()
