"""The embedded PostgreSQL: a second start joins, data survive, and errors say why."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

import penstock
from penstock import accounts
from penstock.database.migrate import migrate
from penstock.errors import ActsForNobody, DatabaseUnavailable, NoDiskSpace, PortTaken
from resources import database, embedded, system_user
from resources.embedded import EmbeddedPostgres
from tests.support import FAST_SETTINGS


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    made = EmbeddedPostgres(tmp_path / "postgres", settings=FAST_SETTINGS)
    yield made
    made.stop()


def ask(url: str, question: str) -> str:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(question).fetchone()
    assert row is not None
    return str(row[0])


def test_a_second_start_joins_the_first(server: EmbeddedPostgres) -> None:
    assert server.start() is True
    other = EmbeddedPostgres(server.directory)
    assert other.start() is False
    assert other.url() == server.url()


def test_two_processes_starting_at_once_share_one_server(server: EmbeddedPostgres) -> None:
    command = [sys.executable, "-m", "resources.embedded", "start", "--directory"]
    starters = [
        subprocess.Popen([*command, str(server.directory)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    answers = {starter.communicate(timeout=60)[0].strip() for starter in starters}
    assert [starter.returncode for starter in starters] == [0, 0, 0]
    assert answers == {server.url()}
    assert ask(server.url(), "SELECT current_database()") == "penstock"


def test_data_and_port_survive_stop_and_start(server: EmbeddedPostgres) -> None:
    server.start()
    url = server.url()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS seven")
    assert server.stop() is True
    assert server.stop() is False
    assert server.is_running() is False
    server.start()
    assert server.url() == url
    assert ask(url, "SELECT seven FROM kept") == "7"


def test_a_killed_server_is_started_again(server: EmbeddedPostgres) -> None:
    server.start()
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(server.pid)] if psutil.pid_exists(server.pid) else [], 10)
    assert server.start() is True
    assert ask(server.url(), "SELECT 1") == "1"


def test_durability_is_on_unless_settings_say_otherwise(
    server: EmbeddedPostgres, tmp_path: Path
) -> None:
    server.start()
    assert ask(server.url(), "SHOW fsync") == "off"
    with EmbeddedPostgres(tmp_path / "durable") as durable:
        assert ask(durable.url(), "SHOW fsync") == "on"
        assert ask(durable.url(), "SHOW synchronous_commit") == "on"


def test_only_the_password_opens_it(server: EmbeddedPostgres) -> None:
    server.start()
    url = server.url()
    password = (server.directory / "password").read_text().strip()
    assert (server.directory / "password").stat().st_mode & 0o077 == 0
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(url.replace(password, "wrong"))


def test_pgbench_of_the_wheel_runs(server: EmbeddedPostgres) -> None:
    server.start()
    url = server.url("bank")
    bench = [str(server.pgbench), "--quiet"]
    subprocess.run([*bench, "-i", "-s", "1", url], check=True, capture_output=True)
    subprocess.run([*bench[:1], "-t", "5", url], check=True, capture_output=True)
    assert ask(url, "SELECT count(*) FROM pgbench_history") == "5"


def test_a_taken_port_is_a_typed_error(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind((embedded.HOST, 0))
        holder.listen()
        server = EmbeddedPostgres(tmp_path / "postgres", port=holder.getsockname()[1])
        with pytest.raises(PortTaken, match="choose another port"):
            server.start()


def test_the_last_port_is_given_up_when_somebody_took_it(server: EmbeddedPostgres) -> None:
    server.start()
    port = server.port
    server.stop()
    with socket.socket() as holder:
        holder.bind((embedded.HOST, port or 0))
        holder.listen()
        server.start()
        assert server.port != port


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_a_typed_error(tmp_path: Path) -> None:
    directory = tmp_path / "postgres"
    directory.mkdir()
    (directory / "password").symlink_to("/dev/full")
    with pytest.raises(NoDiskSpace, match="free some space"):
        EmbeddedPostgres(directory).start()
    assert not (directory / "data").exists()


def test_a_stopped_server_has_no_url(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnavailable, match="is not running"):
        EmbeddedPostgres(tmp_path / "postgres").url()


def test_a_broken_directory_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatabaseUnavailable, match="another directory"):
        EmbeddedPostgres(tmp_path / "file").start()


def test_the_directory_is_the_one_that_the_environment_names(
    server: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each verb, or `stop` would stop the server of another directory."""
    server.start()
    monkeypatch.setenv("PENSTOCK_EMBEDDED_DIRECTORY", str(tmp_path / "other"))
    assert (embedded.main(["status"]), embedded.main(["stop"])) == (3, 0)
    assert server.is_running()
    monkeypatch.setenv("PENSTOCK_EMBEDDED_DIRECTORY", str(server.directory))
    assert (embedded.main(["status"]), embedded.main(["stop"])) == (0, 0)
    assert not server.is_running()


def test_who_only_joins_it_does_not_bring_it_up_again(
    server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a code server that is left after Ctrl-C of `make dev`, when somebody has stopped it.

    Guard: JOINED; with 1 the sensors of a process that nobody sees start it within seconds.
    """
    monkeypatch.delenv("PENSTOCK_DATABASE_URL", raising=False)
    monkeypatch.setenv("PENSTOCK_EMBEDDED_DIRECTORY", str(server.directory))
    monkeypatch.setenv(database.EMBEDDED, database.JOINED)
    server.start()
    assert database.database_url() == server.url()
    server.stop()
    with pytest.raises(DatabaseUnavailable, match="is not running"):
        database.database_url()
    assert not server.is_running()
    monkeypatch.setenv(database.EMBEDDED, database.STARTED)
    assert database.database_url() == server.url()


def test_the_command_line_tells_status_by_its_exit_code(server: EmbeddedPostgres) -> None:
    arguments = ["--directory", str(server.directory)]
    assert embedded.main(["status", *arguments]) == 3
    assert embedded.main(["start", *arguments]) == 0
    assert embedded.main(["status", *arguments]) == 0
    assert embedded.main(["stop", *arguments]) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to give up its rights")
class TestAsRoot:
    """The server runs as nobody, also below a directory that only root may enter."""

    def test_it_runs_below_a_closed_directory(self, tmp_path: Path) -> None:
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o700)
        with EmbeddedPostgres(closed / "postgres", settings=FAST_SETTINGS) as server:
            assert ask(server.url(), "SELECT 1") == "1"
            assert psutil.Process(server.pid).username() == system_user.SERVER_USER
        assert closed.stat().st_mode & 0o777 == 0o700

    def test_without_the_capability_the_error_names_the_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o700)
        monkeypatch.setattr(system_user, "_permitted_capabilities", lambda: 0)
        with pytest.raises(DatabaseUnavailable, match="may not enter"):
            EmbeddedPostgres(closed / "postgres").start()


def test_it_makes_a_gateway_s_login(server: EmbeddedPostgres) -> None:
    """Which acts for accounts, and does nothing of its own; a second time it is the same."""
    server.start()
    migrate(server.url())
    url = server.gateway_url()
    assert server.gateway_url() == url
    assert (server.directory / "gateway-password").stat().st_mode & 0o077 == 0
    with penstock.connect(url) as own:
        accounts.check_gateway(own)
        with pytest.raises(ActsForNobody):
            penstock.create_namespace(own, "mine")
