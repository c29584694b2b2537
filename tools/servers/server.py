"""A running MySQL or MariaDB whose data are in one folder."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pymysql

from tools.servers.base import HOST, SpawnedServer
from tools.servers.distribution import HOME, Distribution
from tools.servers.errors import ServerUnavailable
from tools.servers.mysql import MYSQL
from tools.servers.process import give, spawn

SUPERUSER = "root"

#: Settings by name. None is a switch without a value.
Settings = Mapping[str, str | None]

#: For tests, which need not survive a power failure.
FAST: Settings = {
    "innodb_flush_log_at_trx_commit": "0",
    "sync_binlog": "0",
    "skip_log_bin": None,
    "innodb_doublewrite": "OFF",
    "performance_schema": "OFF",
    "innodb_buffer_pool_size": "128M",
}

#: Durable settings, for benchmarks: a commit is on disk before the server confirms it. The binary
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

_PROBE_SECONDS = 1
_ASK_SECONDS = 30


class MySQLServer(SpawnedServer):
    """A server of the MySQL family.  Any process may start or join it.

    ``settings`` are those of the process that actually starts it.  With ``die_with_parent`` the
    kernel kills it when the thread that started it ends, so that a killed test leaves nothing.
    """

    def __init__(
        self,
        directory: Path | str,
        distribution: Distribution = MYSQL,
        *,
        settings: Settings = FAST,
        die_with_parent: bool = True,
        home: Path = HOME,
    ) -> None:
        super().__init__(
            directory,
            distribution.name,
            distribution.title,
            die_with_parent=die_with_parent,
            home=home,
        )
        self.distribution = distribution
        self.settings = dict(settings)

    @property
    def data_directory(self) -> Path:
        """What the server calls datadir."""
        return self.directory / "data"

    def url(self, database: str = "penstock") -> str:
        """The URL of a database of the running server; a missing database is created."""
        if self.port is None:
            raise ServerUnavailable(
                f"the {self.distribution.title} in {self.directory} is not running",
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
            ssl_disabled=True,  # else PyMySQL reads all certificates of the machine first
        )
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)
            row = cursor.fetchone()
        return row[0] if row else None

    @property
    def _mark(self) -> str:
        return f"--datadir={self.data_directory}\0"

    def _fetch(self) -> None:
        self._template = self.distribution.template(self._home)

    def _prepare(self) -> None:
        """Copy the template under another name, so that an unfinished copy is never used."""
        if self.data_directory.exists():
            return
        unfinished = self.directory / "data.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(self._template, unfinished)
        # The only folder whose files SQL may read and write. Nothing needs it, but an empty name
        # would mean every folder of the machine.
        (self.directory / "files").mkdir(exist_ok=True)
        # A separate folder, because a server removes what it takes for its leftovers when it
        # starts.
        (self.directory / "tmp").mkdir(exist_ok=True)
        give(unfinished)
        give(self.directory / "files")
        give(self.directory / "tmp")
        unfinished.rename(self.data_directory)

    def _spawn(self, port: int) -> subprocess.Popen[bytes]:
        settings: Settings = {
            **_COMMON,
            **self.settings,
            "port": str(port),
            "secure_file_priv": str(self.directory / "files"),
            "tmpdir": str(self.directory / "tmp"),
        }
        command = [
            *self.distribution.command(self.data_directory, self._home),
            *self.distribution.options,
            *(_option(name, value) for name, value in settings.items()),
        ]
        return spawn(
            command,
            needs=(self.distribution.root(self._home) / "usr", self.data_directory),
            log=self.log_file,
            die_with_parent=self._die_with_parent,
        )

    def _is_ours(self) -> bool:
        # Another server on this port may send anything, or nothing at all.
        with contextlib.suppress(pymysql.Error, OSError):
            answer = self._ask("SELECT @@datadir", _PROBE_SECONDS)
            return Path(str(answer)) == self.data_directory
        return False


def _option(name: str, value: str | None) -> str:
    option = f"--{name.replace('_', '-')}"
    return option if value is None else f"{option}={value}"
