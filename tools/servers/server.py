"""A running MySQL or MariaDB whose data lie in one folder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pymysql

from tools.servers.distribution import HOME, Distribution
from tools.servers.errors import ServerUnavailable
from tools.servers.mysql import MYSQL
from tools.servers.process import end, give, mentions, spawn

if TYPE_CHECKING:
    from types import TracebackType

HOST = "127.0.0.1"
SUPERUSER = "root"

#: Settings by name; None is a switch without a value.
Settings = Mapping[str, str | None]

#: Tests do not survive a power cut, and need not.
FAST: Settings = {
    "innodb_flush_log_at_trx_commit": "0",
    "sync_binlog": "0",
    "skip_log_bin": None,
    "innodb_doublewrite": "OFF",
    "performance_schema": "OFF",
    "innodb_buffer_pool_size": "128M",
}

#: What a careful owner runs, for benchmarks: a commit is on disk before it is answered.  The binary
#: log is as the server has it by default: on in MySQL, off in MariaDB.
DURABLE: Settings = {
    "innodb_flush_log_at_trx_commit": "1",
    "sync_binlog": "1",
    "innodb_buffer_pool_size": "128M",
}

_COMMON: Settings = {
    "bind_address": HOST,
    "character_set_server": "utf8mb4",
    "local_infile": "0",
    # Relative to the data directory: the path of a socket may have 107 characters at most.
    "socket": "server.sock",
    "pid_file": "server.pid",
}

_START_SECONDS = 60
_STOP_SECONDS = 30
_START_ATTEMPTS = 5
_POLL_SECONDS = 0.02
_PROBE_SECONDS = 1
_ASK_SECONDS = 30
_LOG_TAIL = 2000


class MySQLServer:
    """A server of the MySQL family that lives in ``folder``; processes start or join it at will.

    ``settings`` are those of the process that actually starts it.  With ``die_with_parent`` the
    kernel kills it when the thread that started it ends, so that a killed test leaves nothing.
    """

    def __init__(
        self,
        folder: Path | str,
        distribution: Distribution = MYSQL,
        *,
        settings: Settings = FAST,
        die_with_parent: bool = True,
        home: Path = HOME,
    ) -> None:
        self.folder = Path(folder).absolute()
        self.distribution = distribution
        self.settings = dict(settings)
        self._die_with_parent = die_with_parent
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> MySQLServer:
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
    def data_directory(self) -> Path:
        """What the server calls datadir."""
        return self.folder / "data"

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
        template = self.distribution.template(self._home)
        try:
            with self._locked():
                if self.pid is not None:
                    return False
                self._prepare(template)
                self._launch()
        except OSError as error:
            raise ServerUnavailable(
                f"cannot use {self.folder} for {self.distribution.title}: {error}",
                hint="give a folder that this user may write, with 200 MB left",
            ) from error
        return True

    def stop(self) -> bool:
        """Stop the server: running transactions are rolled back.  True when it ran."""
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
        """The server's crash: SIGKILL at once, to the process that this object has started."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def url(self, database: str = "penstock") -> str:
        """The URL of a database of the running server; a missing database is created."""
        if self.port is None:
            raise ServerUnavailable(
                f"the {self.distribution.title} in {self.folder} is not running",
                hint="start it with `python -m tools.servers NAME start --folder FOLDER`",
            )
        self._ask(f"CREATE DATABASE IF NOT EXISTS `{database.replace('`', '``')}`")
        return f"mysql://{SUPERUSER}@{HOST}:{self.port}/{quote(database, safe='')}"

    def version(self) -> str:
        """What ``SELECT VERSION()`` says."""
        return str(self._ask("SELECT VERSION()"))

    def _ask(self, statement: str, timeout: int = _ASK_SECONDS) -> Any:
        connection = pymysql.connect(
            host=HOST,
            port=self.port or 0,
            user=SUPERUSER,
            autocommit=True,
            connect_timeout=timeout,
            read_timeout=timeout,
        )
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)
            row = cursor.fetchone()
        return row[0] if row else None

    def _state(self) -> tuple[int, int] | None:
        """Process id and port of the server, if the process is still this very server."""
        try:
            state = json.loads(self._state_file.read_text())
            pid, port = int(state["pid"]), int(state["port"])
        except (OSError, ValueError, KeyError):
            return None
        return (pid, port) if mentions(pid, self._mark) else None

    @property
    def _state_file(self) -> Path:
        return self.folder / "server.json"

    @property
    def _mark(self) -> str:
        """What only this server's command holds; arguments in /proc end with a NUL."""
        return f"--datadir={self.data_directory}\0"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time starts or stops; the kernel frees a dead one's lock."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _prepare(self, template: Path) -> None:
        """Copy the template beside its place, so that half a copy is never taken for one."""
        if self.data_directory.exists():
            return
        unfinished = self.folder / "data.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(template, unfinished)
        # The only folder whose files SQL may read and write: nobody needs it, and an empty name
        # would mean every folder of the machine.
        (self.folder / "files").mkdir(exist_ok=True)
        # Of its own, because a server that starts removes what it takes for its leftovers there.
        (self.folder / "tmp").mkdir(exist_ok=True)
        give(unfinished)
        give(self.folder / "files")
        give(self.folder / "tmp")
        unfinished.rename(self.data_directory)

    def _launch(self) -> None:
        """Start the server; a port that somebody took in between costs another attempt."""
        said = ""
        for _ in range(_START_ATTEMPTS):
            before = self.log_file.stat().st_size if self.log_file.exists() else 0
            process = self._spawn(_free_port())
            if self._answers(process):
                return
            process.kill()
            process.wait()
            said = self.log_file.read_bytes()[before:].decode(errors="replace")
            if "Address already in use" not in said:
                break
        self._state_file.unlink(missing_ok=True)
        raise ServerUnavailable(
            f"{self.distribution.title} in {self.folder} did not start:\n{said[-_LOG_TAIL:]}",
            hint=f"{self.log_file.name} there holds all that it said",
        )

    def _spawn(self, port: int) -> subprocess.Popen[bytes]:
        settings: Settings = {
            **_COMMON,
            **self.settings,
            "port": str(port),
            "secure_file_priv": str(self.folder / "files"),
            "tmpdir": str(self.folder / "tmp"),
        }
        command = [
            *self.distribution.command(self.data_directory, self._home),
            *self.distribution.options,
            *(_option(name, value) for name, value in settings.items()),
        ]
        self._process = spawn(
            command,
            needs=(self.distribution.root(self._home) / "usr", self.data_directory),
            log=self.log_file,
            die_with_parent=self._die_with_parent,
        )
        # Before it is up: whoever is killed while he waits has not lost the server.
        self._state_file.write_text(
            json.dumps({"name": self.distribution.name, "pid": self._process.pid, "port": port})
        )
        return self._process

    def _answers(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait until the server answers with its own data directory, or has ended."""
        deadline = time.monotonic() + _START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            # Somebody else's server on this port may say what it likes, or never say anything.
            with contextlib.suppress(pymysql.Error, OSError):
                answer = self._ask("SELECT @@datadir", _PROBE_SECONDS)
                if Path(str(answer)) == self.data_directory:
                    return True
            time.sleep(_POLL_SECONDS)
        return False


def _option(name: str, value: str | None) -> str:
    option = f"--{name.replace('_', '-')}"
    return option if value is None else f"{option}={value}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
