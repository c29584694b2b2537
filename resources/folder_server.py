"""The life of a server whose data are in one folder: start or join it, stop it, find it again.

Starting is joining: whoever comes second gets the server that runs already.  What kind of server it
is, and whether it is a process of ours or one that its own programs start, is up to the class.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from types import TracebackType

HOST = "127.0.0.1"
START_SECONDS = 60

_START_ATTEMPTS = 8
_PAUSE_SECONDS = 0.25
#: What servers print when another program has the port.
_TAKEN = "address already in use"


class FolderServer(ABC):
    """A server with its data in ``directory``.  Any process may start or join it.

    ``port`` fixes the port; without it the kernel gives one.
    """

    def __init__(self, directory: Path | str, *, port: int | None = None) -> None:
        self.directory = Path(directory).absolute()
        self._wanted_port = port
        self._log_begin = 0

    def __enter__(self) -> Self:
        self.start()
        return self

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
        return self.directory / "server.log"

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
        with self._usable(), self._locked():
            if self.is_running():
                return False
            self._prepare()
            self._launch()
        return True

    def stop(self) -> bool:
        """Stop the server.  True when it ran."""
        if not self.directory.is_dir():
            return False
        with self._usable(), self._locked():
            return self._end()

    @abstractmethod
    def is_running(self) -> bool:
        """Whether this server runs."""

    @abstractmethod
    def _state(self) -> tuple[int, int] | None:
        """Process id and port of the running server."""

    @abstractmethod
    def _prepare(self) -> None:
        """Create the data directory if there is none."""

    @abstractmethod
    def _start_on(self, port: int) -> str | None:
        """Start on this port.  None when the server is up, else what was said outside its log."""

    @abstractmethod
    def _end(self) -> bool:
        """Stop the server.  True when it ran."""

    @abstractmethod
    def _cannot_use(self, error: OSError) -> PenstockError:
        """The typed error for a directory that cannot be used."""

    @abstractmethod
    def _did_not_start(self, said: str, port: int) -> PenstockError:
        """The typed error for what was said at the last attempt."""

    def _last_port(self) -> int | None:
        """The port to try first."""
        return None

    def _is_soon_over(self, said: str) -> bool:
        """Whether what hinders the start ends by itself in a moment."""
        return False

    def _launch(self) -> None:
        """Start the server.  If its port was taken in between, try again with another."""
        port = self._wanted_port or self._last_port()
        said, chosen = "", 0
        for attempt in range(1, _START_ATTEMPTS + 1):
            chosen = port or free_port()
            self._log_begin = self.log_file.stat().st_size if self.log_file.exists() else 0
            problem = self._start_on(chosen)
            if problem is None:
                return
            said = f"{problem}\n{self._logged()}"
            if _TAKEN in said.lower() and self._wanted_port is None:
                port = None
            elif self._is_soon_over(said):
                time.sleep(_PAUSE_SECONDS * attempt)
            else:
                break
        raise self._did_not_start(said, chosen)

    def _logged(self) -> str:
        """What the server has logged since it was started."""
        if not self.log_file.exists():
            return ""
        return self.log_file.read_bytes()[self._log_begin :].decode(errors="replace")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time starts or stops.  The kernel frees the lock of a dead process."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._cannot_use(error) from error


def free_port() -> int:
    """A port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
