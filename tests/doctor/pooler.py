"""A real PgBouncer, out of Debian's packages, before a server of a test."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

import psycopg

from resources.system_user import as_server_user, give_to_server_user
from tests.support import missing
from tools.debian import DebianUnavailable, through_own_loader, unpack

ROOT = Path(__file__).resolve().parents[2] / ".penstock" / "servers" / "pgbouncer"
SUITE = "bookworm"

CONFIGURATION = """
[databases]
{database} = host=127.0.0.1 port={server_port} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
server_round_robin = 1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
"""


class Pooler:
    """Listens while the block runs; ``url`` is the database through it.

    With ``mode`` "transaction" every transaction goes to another session of the server's, in turn.
    """

    def __init__(self, server_url: str, folder: Path, mode: str) -> None:
        try:
            self._root = unpack(["pgbouncer"], SUITE, ROOT)
        except (DebianUnavailable, OSError) as error:
            missing("PgBouncer", error)
        address = urlsplit(server_url)
        database = address.path[1:]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"postgresql://{address.username}@127.0.0.1:{port}/{database}"
        folder.mkdir()
        self._file = folder / "pgbouncer.ini"
        self._file.write_text(
            CONFIGURATION.format(
                database=database, server_port=address.port, user=address.username,
                password=address.password, port=port, mode=mode,
            )
        )  # fmt: skip
        give_to_server_user(folder, self._file)

    def __enter__(self) -> Pooler:
        command = [*through_own_loader(self._root, "usr/sbin/pgbouncer"), "-q", str(self._file)]
        self._process = subprocess.Popen(
            as_server_user(command, needs=(self._root, self._file)),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(self.url).close()
            except psycopg.OperationalError:
                assert self._process.poll() is None, self._process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            else:
                return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.communicate(timeout=30)
