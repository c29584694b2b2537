"""One ElasticMQ from Maven, below ``.penstock/servers``: it speaks the protocol of SQS."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tools.servers.base import HOST, SpawnedServer
from tools.servers.distribution import HOME
from tools.servers.errors import ServerUnavailable
from tools.servers.jars import MEASURED, QUICK, Jars
from tools.servers.process import give, spawn

NAME = "elasticmq"
TITLE = "ElasticMQ"

_HERE = Path(__file__).resolve().parent
_CONFIGURATION = _HERE / "elasticmq.conf"
_READY = "ElasticMQ server"
_STARTED = "started in"

JARS = Jars(NAME, TITLE, (_HERE / "elasticmq.xml",))


class ElasticServer(SpawnedServer):
    """A running ElasticMQ, which keeps its messages in a file or, ``in_memory``, for itself.

    In memory it is measured: so its Java takes the time to become fast.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        die_with_parent: bool = True,
        home: Path = HOME,
        in_memory: bool = False,
    ) -> None:
        super().__init__(directory, NAME, TITLE, die_with_parent=die_with_parent, home=home)
        self._in_memory = in_memory

    def url(self) -> str:
        """The address that clients are given as their endpoint."""
        if self.port is None:
            raise ServerUnavailable(f"the {TITLE} in {self.directory} is not running")
        return f"http://{HOST}:{self.port}"

    def restart(self) -> None:
        """Crash, and start again on the same port with what is on the disk."""
        self._wanted_port = self.port
        self.kill()
        self.start()

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _mark(self) -> str:
        return f"-Dconfig.file={self._settings}\0"

    @property
    def _settings(self) -> Path:
        return self.directory / "elasticmq.conf"

    def _fetch(self) -> None:
        JARS.root(self._home)

    def _prepare(self) -> None:
        self._data.mkdir(mode=0o700, exist_ok=True)
        give(self._data)

    def _spawn(self, port: int) -> subprocess.Popen[bytes]:
        text = _CONFIGURATION.read_text()
        stored = "false" if self._in_memory else "true"
        for name, value in {"PORT": port, "DATA": self._data, "STORED": stored}.items():
            text = text.replace(f"@{name}@", str(value))
        self._settings.write_text(text)
        lib = JARS.root(self._home) / "lib"
        java, *options = JARS.command(lib, MEASURED if self._in_memory else QUICK)
        return spawn(
            [java, f"-Dconfig.file={self._settings}", *options, "org.elasticmq.server.Main"],
            needs=(lib, self._data, self._settings),
            log=self.log_file,
            die_with_parent=self._die_with_parent,
        )

    def _is_ours(self) -> bool:
        said = self._logged()
        return _READY in said and _STARTED in said
