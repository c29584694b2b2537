"""A server that is a process of ours, noted in its folder so that others find it."""

from __future__ import annotations

import json
import subprocess
import time
from abc import abstractmethod
from pathlib import Path

from penstock.errors import PenstockError
from resources.folder_server import HOST as HOST, START_SECONDS, FolderServer
from tools.servers.distribution import HOME
from tools.servers.errors import ServerUnavailable
from tools.servers.process import end, mentions

_STOP_SECONDS = 30
_POLL_SECONDS = 0.02
_LOG_TAIL = 2000


class SpawnedServer(FolderServer):
    """A server of the tools: its process is noted in ``server.json``.

    With ``die_with_parent`` the kernel kills it when the thread that started it ends, so that a
    killed test leaves nothing.
    """

    start_seconds: float = START_SECONDS

    def __init__(
        self,
        directory: Path | str,
        name: str,
        title: str,
        *,
        die_with_parent: bool = True,
        home: Path = HOME,
    ) -> None:
        super().__init__(directory)
        self.name = name
        self.title = title
        self._die_with_parent = die_with_parent
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> bool:
        """Fetch the programs if need be, and start the server or join it."""
        self._fetch()
        return super().start()

    def url(self) -> str:
        """Where the running server is: host and port; others say more."""
        if self.port is None:
            raise ServerUnavailable(f"the {self.title} in {self.directory} is not running")
        return f"{HOST}:{self.port}"

    def kill(self) -> None:
        """Crash the server: SIGKILL at once to the process that this object has started."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def is_running(self) -> bool:
        """Whether the process is there."""
        return self.pid is not None

    @abstractmethod
    def _fetch(self) -> None:
        """Fetch the programs if they are not here yet."""

    @abstractmethod
    def _spawn(self, port: int) -> subprocess.Popen[bytes]:
        """Start the process on this port."""

    @abstractmethod
    def _is_ours(self) -> bool:
        """Whether the server that responds on the port is this one."""

    @property
    @abstractmethod
    def _mark(self) -> str:
        """A text that only this server's command holds.  Arguments in /proc end with a NUL."""

    def _state(self) -> tuple[int, int] | None:
        """What is noted, if the process is still this server."""
        try:
            state = json.loads(self._state_file.read_text())
            pid, port = int(state["pid"]), int(state["port"])
        except (OSError, ValueError, KeyError):
            return None
        return (pid, port) if mentions(pid, self._mark) else None

    @property
    def _state_file(self) -> Path:
        return self.directory / "server.json"

    def _end(self) -> bool:
        pid = self.pid
        ran = pid is not None and end(pid, self._mark, timeout=_STOP_SECONDS)
        if self._process is not None:
            self._process.wait()
            self._process = None
        self._state_file.unlink(missing_ok=True)
        return ran

    def _start_on(self, port: int) -> str | None:
        process = self._process = self._spawn_noted(port)
        if self._responds(process):
            return None
        process.kill()
        process.wait()
        return ""

    def _spawn_noted(self, port: int) -> subprocess.Popen[bytes]:
        process = self._spawn(port)
        # Written before it is up: if this process is killed now, the server can still be found.
        self._state_file.write_text(
            json.dumps({"name": self.name, "pid": process.pid, "port": port})
        )
        return process

    def _responds(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait until the server responds, or has ended."""
        deadline = time.monotonic() + self.start_seconds
        while process.poll() is None and time.monotonic() < deadline:
            if self._is_ours():
                return True
            time.sleep(_POLL_SECONDS)
        return False

    def _cannot_use(self, error: OSError) -> PenstockError:
        return ServerUnavailable(
            f"cannot use {self.directory} for {self.title}: {error}",
            hint="give a folder that this user may write, with 200 MB left",
        )

    def _did_not_start(self, said: str, port: int) -> PenstockError:
        self._state_file.unlink(missing_ok=True)
        return ServerUnavailable(
            f"{self.title} in {self.directory} did not start:\n{said[-_LOG_TAIL:]}",
            hint=f"{self.log_file.name} there holds all that it said",
        )
