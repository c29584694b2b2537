"""One real Pulsar broker, bookie and metadata included, on ports that the kernel gives."""

from __future__ import annotations

import contextlib
import ctypes
import json
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tools import java
from tools.pulsar.errors import PulsarUnavailable
from tools.pulsar.fetch import fetch

_CONF = Path(__file__).resolve().parent / "standalone.conf"
_OPENED = (
    *("java.base/java.lang", "java.base/java.io", "java.base/java.util", "java.base/java.nio"),
    *("java.base/sun.net", "java.base/jdk.internal.misc", "java.base/jdk.internal.platform"),
    *("java.management/sun.management", "jdk.management/com.sun.management.internal"),
)
_PR_SET_PDEATHSIG = 1
_TRIES = 3
_NAMESPACE = "public/default"
_POLL_SECONDS = 0.1
_LOG_TAIL = 4000


def find_java() -> Path:
    """The `java` program: of JAVA_HOME, on PATH, or one unpacked into `.penstock/`."""
    try:
        return java.home() / "bin" / "java"
    except java.JavaMissing as error:
        raise PulsarUnavailable(str(error)) from error


def free_ports(count: int) -> list[int]:
    """Free ports from the kernel.  All are held open at the same time, so that they differ."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


class PulsarStandalone:
    """A broker that lives in `directory`.

    A second start continues with the same data on the same ports, because the data names the bookie
    by its address. Clients that outlive the broker connect again. With ``die_with_parent`` (on
    Linux) it is killed when the process that started it ends, however that ends.
    """

    def __init__(
        self, directory: Path, *, deduplication: bool = True, die_with_parent: bool = False
    ) -> None:
        self.directory = Path(directory).resolve()
        self.deduplication = deduplication
        self._die_with_parent = die_with_parent
        self._process: subprocess.Popen[bytes] | None = None
        self._broker_port = self._web_port = 0

    @property
    def service_url(self) -> str:
        """What a Pulsar client connects to."""
        return f"pulsar://127.0.0.1:{self._broker_port}"

    @property
    def admin_url(self) -> str:
        """The address of the admin interface."""
        return f"http://127.0.0.1:{self._web_port}"

    @property
    def pid(self) -> int | None:
        """The broker's own process id while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self, timeout: float = 180) -> PulsarStandalone:
        """Start and wait until the broker calls itself healthy."""
        jars, program = fetch(), find_java()
        for _ in range(_TRIES):
            ports = self._ports()
            self._launch(program, jars, ports)
            if self._healthy(timeout):
                self._ports_file.write_text(json.dumps(ports))
                return self
            self.stop()
            # A port can be taken before the broker binds it. Then other ports are tried.
            if self._ports_file.exists() or not self._port_was_taken():
                break
            for data in ("metadata", "bookkeeper"):
                shutil.rmtree(self.directory / data, ignore_errors=True)
        raise PulsarUnavailable(f"the Pulsar broker did not start:\n{self._log_tail()}")

    def stop(self, timeout: float = 20) -> None:
        """SIGTERM, and SIGKILL when that takes too long.  Ends only the process started here."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """SIGKILL at once: the broker's crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def _ports_file(self) -> Path:
        return self.directory / "ports.json"

    def _ports(self) -> list[int]:
        if self._ports_file.is_file():
            remembered: list[int] = json.loads(self._ports_file.read_text())
            return remembered
        return free_ports(3)

    def _launch(self, program: Path, jars: Path, ports: list[int]) -> None:
        self._broker_port, self._web_port, bookie = ports
        self.directory.mkdir(parents=True, exist_ok=True)
        conf = self.directory / "standalone.conf"
        conf.write_text(self._configuration())
        command = [
            str(program),
            *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
            *("-Xms128m", "-Xmx768m", "-XX:MaxDirectMemorySize=768m", "-XX:+UseSerialGC"),
            *("-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"),
            *("-cp", f"{jars}/*", "org.apache.pulsar.PulsarStandaloneStarter"),
            *("-c", str(conf), "-nfw", "-nss", "--bookkeeper-port", str(bookie)),
            *("--metadata-dir", str(self.directory / "metadata")),
            *("--bookkeeper-dir", str(self.directory / "bookkeeper")),
        ]
        with (self.directory / "broker.log").open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent() if self._die_with_parent else None,
            )

    def _configuration(self) -> str:
        text = _CONF.read_text()
        for name, value in {
            "BROKER_PORT": self._broker_port,
            "WEB_PORT": self._web_port,
            "DEDUPLICATION": str(self.deduplication).lower(),
        }.items():
            text = text.replace(f"@{name}@", str(value))
        return text

    def _healthy(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self.pid is not None:
            with contextlib.suppress(urllib.error.URLError, OSError):
                # The broker is healthy a moment before it creates the namespace of the topics.
                if self._get("brokers/health").strip() == b"ok" and _NAMESPACE in json.loads(
                    self._get("namespaces/public")
                ):
                    return True
            time.sleep(_POLL_SECONDS)
        return False

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"{self.admin_url}/admin/v2/{path}", timeout=10) as answer:
            body: bytes = answer.read()
        return body

    def _port_was_taken(self) -> bool:
        return "Address already in use" in self._log_tail(1 << 20)

    def _log_tail(self, length: int = _LOG_TAIL) -> str:
        log = self.directory / "broker.log"
        return log.read_bytes()[-length:].decode(errors="replace") if log.is_file() else ""

    def __enter__(self) -> PulsarStandalone:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _die_with_parent() -> Callable[[], None] | None:
    """What the child runs before exec, or None where the system has no such thing."""
    try:
        prctl = ctypes.CDLL(None).prctl
    except AttributeError:
        return None
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) and None
