"""A server process whose data are in one folder: start or join it, stop it, find it again."""

from __future__ import annotations

import contextlib
import fcntl
import json
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tools.servers.distribution import HOME
from tools.servers.errors import ServerUnavailable
from tools.servers.process import end, mentions

if TYPE_CHECKING:
    from types import TracebackType

HOST = "127.0.0.1"

_START_SECONDS = 60
_STOP_SECONDS = 30
_START_ATTEMPTS = 5
_POLL_SECONDS = 0.02
_LOG_TAIL = 2000
#: What servers print when another program has the port.
_TAKEN = "address already in use"


class FolderServer(ABC):
    """A server with its data in ``folder``.  Any process may start or join it.

    With ``die_with_parent`` the kernel kills it when the thread that started it ends, so that a
    killed test leaves nothing.
    """

    def __init__(
        self,
        folder: Path | str,
        name: str,
        title: str,
        *,
        die_with_parent: bool = True,
        home: Path = HOME,
    ) -> None:
        self.folder = Path(folder).absolute()
        self.name = name
        self.title = title
        self._die_with_parent = die_with_parent
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def log_file(self) -> Path:
        """The server's own log."""
        return self.folder / "server.log"

    @property
    def pid(self) -> int | None:
        """The process id of the running server."""
        found = self._state()
        return found[0] if found else None

    @property
    def port(self) -> int | None:
        """The port of the running server."""
        found = self._state()
        return found[1] if found else None

    def start(self) -> bool:
        """Start the server, or join it when it runs.  True when this call started it."""
        self._fetch()
        try:
            with self._locked():
                if self.pid is not None:
                    return False
                self._prepare()
                self._launch()
        except OSError as error:
            raise ServerUnavailable(
                f"cannot use {self.folder} for {self.title}: {error}",
                hint="give a folder that this user may write, with 200 MB left",
            ) from error
        return True

    def stop(self) -> bool:
        """Stop the server.  True when it ran."""
        if not self.folder.is_dir():
            return False
        with self._locked():
            pid = self.pid
            ran = pid is not None and end(pid, self._mark, timeout=_STOP_SECONDS)
            if self._process is not None:
                self._process.wait()
                self._process = None
            self._state_file.unlink(missing_ok=True)
            return ran

    def kill(self) -> None:
        """Crash the server: SIGKILL at once to the process that this object has started."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @abstractmethod
    def _fetch(self) -> None:
        """Fetch the programs if they are not here yet."""

    @abstractmethod
    def _prepare(self) -> None:
        """Create the data directory if there is none."""

    @abstractmethod
    def _spawn(self, port: int) -> subprocess.Popen[bytes]:
        """Start the process on this port."""

    @abstractmethod
    def _is_ours(self) -> bool:
        """Whether the server that answers on the port is this one."""

    @property
    @abstractmethod
    def _mark(self) -> str:
        """A text that only this server's command holds.  Arguments in /proc end with a NUL."""

    def _state(self) -> tuple[int, int] | None:
        """Process id and port of the server, if the process is still this server."""
        try:
            state = json.loads(self._state_file.read_text())
            pid, port = int(state["pid"]), int(state["port"])
        except (OSError, ValueError, KeyError):
            return None
        return (pid, port) if mentions(pid, self._mark) else None

    @property
    def _state_file(self) -> Path:
        return self.folder / "server.json"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time starts or stops.  The kernel frees the lock of a dead process."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _launch(self) -> None:
        """Start the server.  If its port was taken in between, try again with another."""
        said = ""
        for _ in range(_START_ATTEMPTS):
            before = self.log_file.stat().st_size if self.log_file.exists() else 0
            process = self._process = self._spawn_noted(_free_port())
            if self._answers(process):
                return
            process.kill()
            process.wait()
            said = self.log_file.read_bytes()[before:].decode(errors="replace")
            if _TAKEN not in said.lower():
                break
        self._state_file.unlink(missing_ok=True)
        raise ServerUnavailable(
            f"{self.title} in {self.folder} did not start:\n{said[-_LOG_TAIL:]}",
            hint=f"{self.log_file.name} there holds all that it said",
        )

    def _spawn_noted(self, port: int) -> subprocess.Popen[bytes]:
        process = self._spawn(port)
        # Written before it is up: if this process is killed now, the server can still be found.
        self._state_file.write_text(
            json.dumps({"name": self.name, "pid": process.pid, "port": port})
        )
        return process

    def _answers(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait until the server answers, or has ended."""
        deadline = time.monotonic() + _START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            if self._is_ours():
                return True
            time.sleep(_POLL_SECONDS)
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
