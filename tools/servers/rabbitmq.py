"""One RabbitMQ node, out of Debian packages with their Erlang, below ``.penstock/servers``.

Erlang is of a newer suite and runs through a loader of its own. So its ``erl`` cannot be used: a
script sets what ``erl`` would set and starts the machine, and whatever the machine starts is a
script of one line too.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

from resources.folder_server import free_port
from tools.debian import STAMP, DebianUnavailable, through_own_loader, unpack
from tools.servers.base import HOST, SpawnedServer
from tools.servers.distribution import HOME
from tools.servers.errors import ServerUnavailable
from tools.servers.process import give, spawn

NAME = "rabbitmq"
TITLE = "RabbitMQ"
PACKAGE = "rabbitmq-server"
SUITE = "trixie"
USER, PASSWORD = "relay", "relay-password"

_READY = "Server startup complete"
_HELPERS = ("erl_child_setup", "inet_gethost", "epmd")
_FLAGS = "-W w -MBas ageffcbf -MHas ageffcbf -MBlmbcs 512 -MHlmbcs 512 -MMmcs 30 -pc unicode -S 2:2"
#: Programs that look at the whole machine: they are of the newer suite, and nobody needs them.
_WITHOUT = "".join(f" -os_mon start_{each} false" for each in ("cpu_sup", "disksup", "memsup"))


def root(home: Path = HOME) -> Path:
    """The unpacked packages, fetched now if they are missing."""
    try:
        return unpack([PACKAGE], SUITE, home / NAME)
    except (DebianUnavailable, OSError) as error:
        raise ServerUnavailable(
            f"no {TITLE}: {PACKAGE} of Debian {SUITE} cannot be had ({error})",
            hint="check that apt-get reaches its archive",
        ) from error


def fetched(home: Path = HOME) -> bool:
    """Whether the packages are unpacked already."""
    return (home / NAME / STAMP).is_file()


def version(home: Path = HOME) -> str:
    """The version of the broker, such as ``4.0.5``."""
    return _broker(root(home)).name.partition("-")[2]


class RabbitServer(SpawnedServer):
    """A running RabbitMQ whose data are in one folder, with one login.

    It starts on the same ports again, so clients outlive a restart. With ``tls``, a certificate,
    its key and its authority, it has a second listener.
    """

    start_seconds = 120

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

    def tls_url(self) -> str:
        """Host and port of the listener with TLS."""
        self.url()
        return f"{HOST}:{self._ports()['tls']}"

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _mark(self) -> str:
        return str(self._data)

    def _fetch(self) -> None:
        root(self._home)

    def _prepare(self) -> None:
        for each in ("bin", "base", "log", "etc"):
            (self._data / each).mkdir(parents=True, exist_ok=True)
        give(self._data)

    def _last_port(self) -> int | None:
        return self._ports().get("port")

    def _ports(self) -> dict[str, int]:
        noted = self.directory / "ports.json"
        found: dict[str, int] = json.loads(noted.read_text()) if noted.is_file() else {}
        return found

    def _spawn(self, port: int) -> subprocess.Popen[bytes]:
        ports = self._ports()
        if ports.get("port") != port:
            others = {name: free_port() for name in ("tls", "names", "nodes")}
            ports = {"port": port, **others}
            (self.directory / "ports.json").write_text(json.dumps(ports))
        found = root(self._home)
        files = [] if self._tls is None else list(self._tls)
        (self._data / "etc" / "rabbitmq.conf").write_text(_settings(ports, files))
        (self._data / "etc" / "enabled_plugins").write_text("[].\n")
        script = self._data / "start"
        script.write_text(_script(found, self._data, ports))
        return spawn(
            ["/bin/sh", str(script)],
            needs=(found / "usr", self._data, *files),
            log=self.log_file,
            die_with_parent=self._die_with_parent,
        )

    def _is_ours(self) -> bool:
        return _READY in self._logged()


def _broker(found: Path) -> Path:
    return next((found / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))


def _settings(ports: dict[str, int], tls: list[Path]) -> str:
    lines = [
        f"listeners.tcp.1 = {HOST}:{ports['port']}",
        f"default_user = {USER}",
        f"default_pass = {PASSWORD}",
        "log.console = true",
        "log.file = false",
        "disk_free_limit.absolute = 1MB",
    ]
    if tls:
        names = ("certfile", "keyfile", "cacertfile")
        lines += [f"listeners.ssl.1 = {HOST}:{ports['tls']}", "ssl_options.verify = verify_none"]
        lines += [f"ssl_options.{name} = {file}" for name, file in zip(names, tls, strict=True)]
    return "\n".join([*lines, ""])


def _script(found: Path, data: Path, ports: dict[str, int]) -> str:
    """What starts the node: Erlang's register of names, which ends with it, and the machine."""
    erlang, broker = found / "usr/lib/erlang", _broker(found)
    programs = next(erlang.glob("erts-*")).relative_to(found) / "bin"
    own = data / "bin"
    for name in _HELPERS:
        words = through_own_loader(found, str(programs / name))
        _executable(own / name, f'exec {shlex.join(words)} "$@"')
    names = shlex.join([str(own / "epmd"), "-port", str(ports["names"])])
    # RabbitMQ starts a machine so that this starts the register. It only has to wait for ours.
    _executable(own / "erl", f"until {names} -names > /dev/null 2>&1; do sleep 0.05; done")
    environment = {
        "BINDIR": own,
        "ROOTDIR": erlang,
        "EMU": "beam",
        "PROGNAME": "erl",
        "HOME": data,
        "ERL_LIBS": broker / "plugins",
        "ERL_CRASH_DUMP": "/dev/null",
        "RABBITMQ_HOME": broker,
        "RABBITMQ_PLUGINS_DIR": broker / "plugins",
        "RABBITMQ_NODENAME": "penstock@localhost",
        "RABBITMQ_DIST_PORT": ports["nodes"],
        "RABBITMQ_MNESIA_BASE": data / "base",
        "RABBITMQ_LOG_BASE": data / "log",
        "RABBITMQ_CONFIG_FILE": data / "etc" / "rabbitmq",
        "RABBITMQ_ADVANCED_CONFIG_FILE": data / "etc" / "advanced.config",
        "RABBITMQ_CONF_ENV_FILE": data / "etc" / "none",
        "RABBITMQ_GENERATED_CONFIG_DIR": data / "etc",
        "RABBITMQ_ENABLED_PLUGINS_FILE": data / "etc" / "enabled_plugins",
    }
    machine = shlex.join(through_own_loader(found, str(programs / "beam.smp")))
    exports = [f"export {name}={shlex.quote(str(value))}" for name, value in environment.items()]
    place = f"-root {shlex.quote(str(erlang))} -bindir {shlex.quote(str(own))} -progname erl"
    start = (
        f"exec {machine} {_FLAGS} -- {place} -- -home {shlex.quote(str(data))} --"
        " -noshell -noinput -s rabbit boot -boot start_sasl -start_epmd false"
        f" -epmd_port {ports['names']}{_WITHOUT}"
    )
    register = f"setpriv --pdeathsig=KILL -- {names} -address {HOST} &"
    return "\n".join([*exports, register, start, ""])


def _executable(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
