"""One Apache Kafka node from Maven, below ``.penstock/servers``: broker and controller at once."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from resources.folder_server import free_port
from tools.servers.base import HOST, SpawnedServer
from tools.servers.distribution import HOME
from tools.servers.errors import ServerUnavailable
from tools.servers.jars import Jars
from tools.servers.process import give, spawn

NAME = "kafka"
TITLE = "Kafka"
#: Logins of the listener that asks for one, and their passwords.
USERS: Mapping[str, str] = {"relay": "relay-password", "other": "other-password"}

_HERE = Path(__file__).resolve().parent
_POM = _HERE / "kafka.xml"
_PROPERTIES = _HERE / "kafka.properties"
_SECURE = _HERE / "kafka.secure.properties"
_CLUSTER = "cGVuc3RvY2sta2Fma2ExMQ"
_FORMAT_SECONDS = 120
_READY = "Kafka Server started"
_LOGGING = """\
<Configuration status="WARN">
  <Appenders><Console name="out"><PatternLayout pattern="%d %p %m (%c)%n"/></Console></Appenders>
  <Loggers><Root level="INFO"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""


class KafkaServer(SpawnedServer):
    """A running Kafka whose data are in one folder.

    It starts on the same ports again, so clients outlive a restart. With ``tls``, a certificate,
    its key and its authority, it has a third listener.
    """

    start_seconds = 180

    def __init__(
        self,
        directory: Path | str,
        *,
        tls: tuple[Path, Path, Path] | None = None,
        die_with_parent: bool = True,
        home: Path = HOME,
    ) -> None:
        super().__init__(directory, NAME, TITLE, die_with_parent=die_with_parent, home=home)
        self._tls = tls

    def login_url(self) -> str:
        """Host and port of the listener that asks for one of the ``USERS``."""
        self.url()
        return f"{HOST}:{self._ports()['login']}"

    def secure_url(self) -> str:
        """Host and port of the listener with TLS, which asks for a login too."""
        self.url()
        return f"{HOST}:{self._ports()['secure']}"

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _settings(self) -> Path:
        return self.directory / "server.properties"

    @property
    def _mark(self) -> str:
        return f"{self._settings}\0"

    def _fetch(self) -> None:
        JARS.root(self._home)

    def _prepare(self) -> None:
        if self._data.exists():
            return
        unfinished = self.directory / "data.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(JARS.root(self._home) / "template", unfinished)
        give(unfinished)
        unfinished.rename(self._data)

    def _last_port(self) -> int | None:
        return self._ports().get("port")

    def _ports(self) -> dict[str, int]:
        noted = self.directory / "ports.json"
        found: dict[str, int] = json.loads(noted.read_text()) if noted.is_file() else {}
        return found

    def _spawn(self, port: int) -> subprocess.Popen[bytes]:
        ports = self._ports()
        if ports.get("port") != port:
            others = {name: free_port() for name in ("login", "controller", "secure")}
            ports = {"port": port, **others}
            (self.directory / "ports.json").write_text(json.dumps(ports))
        self._settings.write_text(_settings(self._data, ports, self._files()))
        lib = JARS.root(self._home) / "lib"
        return spawn(
            [*JARS.command(lib), "kafka.Kafka", str(self._settings)],
            needs=(lib, self._data, self._settings, *self._files().values()),
            log=self.log_file,
            die_with_parent=self._die_with_parent,
        )

    def _files(self) -> dict[str, Path]:
        """What the listener with TLS reads: certificate and key in one file, and the authority."""
        if self._tls is None:
            return {}
        certificate, key, authority = self._tls
        keystore = self.directory / "keystore.pem"
        keystore.write_bytes(key.read_bytes() + certificate.read_bytes())
        give(keystore)
        return {"KEYSTORE": keystore, "AUTHORITY": authority}

    def _is_ours(self) -> bool:
        return _READY in self._logged()


def _format(unfinished: Path) -> None:
    """A data folder beside the jars, which each server begins with a copy of."""
    lib, data = unfinished / "lib", unfinished / "template"
    (lib / "log4j2.xml").write_text(_LOGGING)
    settings = unfinished / "template.properties"
    settings.write_text(_settings(data, {"port": 1, "login": 2, "controller": 3}))
    command = [*JARS.command(lib), "kafka.tools.StorageTool", "format"]
    done = subprocess.run(
        [*command, "-t", _CLUSTER, "-c", str(settings)],
        capture_output=True, text=True, timeout=_FORMAT_SECONDS, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode != 0:
        raise ServerUnavailable(
            f"{TITLE} made no data folder: {(done.stdout + done.stderr)[-500:]}"
        )


JARS = Jars(NAME, TITLE, (_POM, _PROPERTIES), _format)


def _settings(data: Path, ports: Mapping[str, int], files: Mapping[str, Path] | None = None) -> str:
    users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
    names: dict[str, object] = {
        "PORT": ports["port"],
        "LOGIN_PORT": ports["login"],
        "CONTROLLER_PORT": ports["controller"],
        "DATA": data,
        "USERS": users,
    }
    text = _PROPERTIES.read_text()
    if files:
        text += _SECURE.read_text()
        names |= {"SECURE_PORT": ports["secure"], **files}
    for name, value in names.items():
        text = text.replace(f"@{name}@", str(value))
    return text
