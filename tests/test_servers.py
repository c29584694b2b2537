"""Real MySQL and MariaDB without rights: they start, work, and leave nothing when they end."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from resources import folder_server
from tests import servers
from tests.servers import MySQLTestServer
from tests.support import missing
from tools.servers import (
    DURABLE,
    MARIADB,
    MYSQL,
    Distribution,
    MySQLServer,
    ServerUnavailable,
)

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 60


@pytest.fixture(params=[MYSQL, MARIADB], ids=lambda each: each.name)
def distribution(request: pytest.FixtureRequest) -> Distribution:
    """A server program that is ready to start."""
    made: Distribution = request.param
    if made.name not in servers.chosen():
        pytest.skip(f"this run is not about {made.title}")
    try:
        made.template()
    except ServerUnavailable as error:
        missing(made.title, error)
    return made


@pytest.fixture
def server(distribution: Distribution, tmp_path: Path) -> Iterator[MySQLServer]:
    """A server of the test's own, not started yet."""
    made = MySQLServer(tmp_path / "server", distribution)
    yield made
    made.stop()


@pytest.fixture(params=["mysql_server", "mariadb_server"])
def shared(request: pytest.FixtureRequest) -> MySQLTestServer:
    """The server of this test process."""
    found: MySQLTestServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def database(shared: MySQLTestServer) -> Iterator[str]:
    """A fresh database on the shared server."""
    name = f"test_{os.getpid()}"
    shared.create(name)
    yield name
    shared.drop(name)


#: What is the same for every distribution is shown on the one that starts faster.
on_mariadb = pytest.mark.parametrize("distribution", [MARIADB], ids=["mariadb"], indirect=True)


def variable(connection: pymysql.Connection, name: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT @@{name}")
        row = cursor.fetchone()
    assert row is not None
    return str(row[0])


def ended(pid: int) -> bool:
    """Wait until the process is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    try:
        return bool(waiting.poll(SECONDS * 1000))
    finally:
        os.close(descriptor)


def test_mysql_is_new_enough(mysql_server: MySQLTestServer) -> None:
    found = re.match(r"(\d+)\.(\d+)", mysql_server.version())
    assert found is not None
    assert (int(found[1]), int(found[2])) >= (8, 4)
    assert "MariaDB" not in mysql_server.version()


def test_mariadb_is_new_enough(mariadb_server: MySQLTestServer) -> None:
    found = re.match(r"(\d+)\.(\d+)\..*MariaDB", mariadb_server.version())
    assert found is not None
    assert (int(found[1]), int(found[2])) >= (10, 6)


def test_locked_rows_are_skipped(shared: MySQLTestServer, database: str) -> None:
    with shared.connect(database) as first, shared.connect(database) as second:
        ours, theirs = first.cursor(), second.cursor()
        ours.execute("CREATE TABLE jobs (id INT PRIMARY KEY)")
        ours.execute("INSERT INTO jobs VALUES (1), (2), (3)")
        first.commit()
        ours.execute("SELECT id FROM jobs WHERE id = 2 FOR UPDATE")
        theirs.execute("SELECT id FROM jobs ORDER BY id FOR UPDATE SKIP LOCKED")
        assert theirs.fetchall() == ((1,), (3,))


def test_the_shared_server_is_strict_and_speaks_all_of_unicode(
    shared: MySQLTestServer, database: str
) -> None:
    with shared.connect(database) as connection:
        assert "STRICT_TRANS_TABLES" in variable(connection, "sql_mode")
        assert variable(connection, "character_set_database") == "utf8mb4"
        assert variable(connection, "local_infile") == "0"


def test_durable_settings_put_a_commit_on_disk(distribution: Distribution, tmp_path: Path) -> None:
    with MySQLServer(tmp_path / "server", distribution, settings=DURABLE) as server:
        assert server._ask("SELECT @@innodb_flush_log_at_trx_commit") == 1
        assert server._ask("SELECT @@sync_binlog") == 1
        assert server._ask("SELECT @@innodb_doublewrite") in {1, "ON"}
        assert server._ask("SELECT @@log_bin") == (1 if distribution is MYSQL else 0)


@pytest.mark.long_on("mysql")
def test_stop_leaves_no_process_and_the_data_stay(server: MySQLServer) -> None:
    assert server.start() is True
    pid = server.pid
    assert pid is not None
    url = server.url("kept")
    assert re.fullmatch(r"mysql://root@127\.0\.0\.1:\d+/kept", url)
    assert server.stop() is True
    assert not Path(f"/proc/{pid}").exists()
    assert server.stop() is False
    with pytest.raises(ServerUnavailable, match="is not running"):
        server.url("kept")
    server.start()
    assert server._ask("SELECT COUNT(*) FROM information_schema.schemata "
                       "WHERE schema_name = 'kept'") == 1  # fmt: skip


@on_mariadb
def test_a_second_start_joins_the_first(server: MySQLServer) -> None:
    server.start()
    other = MySQLServer(server.directory, server.distribution)
    assert other.start() is False
    assert other.url() == server.url()
    assert other.stop() is True
    assert server.pid is None


@on_mariadb
def test_a_killed_server_is_started_again(server: MySQLServer) -> None:
    server.start()
    server.kill()
    assert server.pid is None
    assert server.start() is True
    assert server._ask("SELECT 1") == 1


def test_a_killed_test_leaves_no_server(distribution: Distribution, tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from tools.servers import MySQLServer\n"
        "from tools.servers.catalogue import DISTRIBUTIONS\n"
        "server = MySQLServer(sys.argv[1], DISTRIBUTIONS[sys.argv[2]])\n"
        "server.start()\n"
        "print(server.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "server"), distribution.name],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        starter.send_signal(signal.SIGKILL)
    assert ended(pid)


@pytest.mark.long_on("mysql")
def test_a_port_that_somebody_took_costs_another_attempt(
    server: MySQLServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = int(holder.getsockname()[1])
        free = folder_server.free_port
        ports = iter([taken])
        monkeypatch.setattr(folder_server, "free_port", lambda: next(ports, None) or free())
        server.start()
        assert server.port != taken
        assert next(ports, None) is None


def test_a_server_that_does_not_start_says_why(distribution: Distribution, tmp_path: Path) -> None:
    server = MySQLServer(tmp_path / "server", distribution, settings={"no_such_setting": "1"})
    with pytest.raises(ServerUnavailable, match=r"unknown (variable|option).*no-such-setting"):
        server.start()
    assert server.pid is None


def test_only_the_server_itself_is_ended(tmp_path: Path) -> None:
    state = {"name": "mysql", "pid": os.getpid(), "port": 1}
    (tmp_path / "server.json").write_text(json.dumps(state))
    server = MySQLServer(tmp_path, MYSQL)
    assert server.pid is None
    assert server.stop() is False


def test_half_a_template_is_made_again(distribution: Distribution, tmp_path: Path) -> None:
    home = home_with(distribution, tmp_path)
    half = home / f"{distribution.name}.template" / "data"
    half.mkdir(parents=True)
    (half / "half").touch()
    assert distribution.template(home) == half
    assert not (half / "half").exists()
    assert (half / "mysql").is_dir()


@on_mariadb
def test_the_command_starts_tells_and_stops(distribution: Distribution, tmp_path: Path) -> None:
    def command(verb: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "tools.servers", distribution.name, verb, "--folder", tmp_path],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout.strip()

    assert command("status") == (3, "not running")
    try:
        code, url = command("start")
        assert code == 0
        assert command("status") == (0, url)
        assert MySQLServer(tmp_path, distribution).url() == url
    finally:
        assert command("stop") == (0, "stopped")
    assert command("stop") == (0, "was not running")


def home_with(distribution: Distribution, tmp_path: Path) -> Path:
    """A home that has the programs already, but no template."""
    home = tmp_path / "home"
    home.mkdir()
    (home / distribution.name).symlink_to(distribution.root())
    return home


def test_temporary_files_lie_in_its_own_folder(shared: MySQLTestServer) -> None:
    """Guard: tmpdir; in a common one, a server that starts removes the tables of the others."""
    if shared.embedded is None:
        pytest.skip("a server that was given keeps its files where it likes")
    with shared.connect() as connection:
        assert Path(variable(connection, "tmpdir")).is_relative_to(shared.embedded.directory)
