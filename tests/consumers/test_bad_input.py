"""Wrong calls of the daemon: one line that says what to do, exit code 2, and nothing is started."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator

import psycopg
import pytest

from consumers import __main__ as command
from penstock.consumer.running import process
from penstock.consumer.running.supervisor import Supervisor
from tests.consumers.conftest import Connection, StartDaemon
from tests.kit.proof import proves

HANDLERS = "tests.consumers.handlers"

Refusal = Callable[..., str]


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refusal:
    """Calls the daemon in this process and returns the one line with which it refuses."""

    def start(supervisor: Supervisor) -> None:
        raise AssertionError("something was started")

    def refusal(url: str, *arguments: str) -> str:
        monkeypatch.setenv("PENSTOCK_DATABASE_URL", url)
        monkeypatch.setattr(sys, "argv", ["consumers", *arguments])
        with pytest.raises(SystemExit) as leaving:
            command.main()
        assert leaving.value.code == 2
        out, err = capsys.readouterr()
        assert out == ""
        return one_line(err)

    monkeypatch.setattr(Supervisor, "start", start)
    # The tests' own log stays as it is.
    monkeypatch.setattr(process, "log_to_stderr", lambda level, form: None)
    return refusal


def one_line(text: str) -> str:
    """The one line."""
    lines = text.splitlines()
    assert len(lines) == 1, text
    assert lines[0].startswith("penstock: ")
    return lines[0]


WRONG = {
    "unknown role": (["--roles", "sequencer,cook"], "'cook' is not known", "the nearest is"),
    "no store": (
        ["--roles", "consumers", "--consumer", f"billing={HANDLERS}:record",
         "--coordination", "mysql://u:secret@h/d"],
        "coordination is 'mysql://h/d'", "leave it out for the database",
    ),
    "memory of several": (
        ["--roles", "consumers", "--consumer", f"billing={HANDLERS}:record",
         "--coordination", "memory://a", "--processes", "2"],
        "2 processes cannot share leases in memory", "use etcd:// or redis://",
    ),
    "no role": (["--roles", ","], "--roles is ','", "use some of"),
    "role without option": (["--roles", "consumers"], "--consumer", "give both"),
    "relay without option": (["--roles", "relay"], "--relay", "give both"),
    "queue without role": (["--queue", f"billing={HANDLERS}:work_off"], "--queue", "give both"),
    "no queue": (
        ["--roles", "queues", "--queue", f"nobody={HANDLERS}:work_off"],
        "no subscription 'nobody'",
        "penstock queue create nobody",
    ),
    "a stream for a queue": (
        ["--roles", "queues", "--queue", f"billing={HANDLERS}:work_off"],
        '"billing" is a stream',
        "another subscription in queue mode",
    ),
    "a queue and a consumer": (
        ["--roles", "consumers,queues", "--consumer", f"billing={HANDLERS}:record",
         "--queue", f"billing={HANDLERS}:work_off"],
        "'billing' is given twice",
        "a second reader a subscription of its own",
    ),
    "no handler of a queue": (
        ["--roles", "queues", "--queue", f"billing={HANDLERS}:missing"],
        "missing",
        "must be importable",
    ),
    "visibility": (["--visibility-seconds", "0"], "--visibility-seconds", "from 1 to 43,200"),
    "option without role": (["--relay", "export=jsonl:out"], "--relay", "give both"),
    "no module": (
        ["--roles", "consumers", "--consumer", "billing=nowhere.at.all:f"],
        "nowhere",
        "must be importable",
    ),
    "no function": (
        ["--roles", "consumers", "--consumer", f"billing={HANDLERS}:missing"],
        "missing",
        "must be importable",
    ),
    "broken module": (
        ["--roles", "consumers", "--consumer", "billing=tests.consumers.broken:f"],
        "the first line",
        "must be importable",
    ),
    "no address": (["--roles", "consumers", "--consumer", "billing=f"], "module:function", ""),
    "not callable": (
        ["--roles", "consumers", "--consumer", f"billing={HANDLERS}:NOT_A_FUNCTION"],
        "is not a function",
        "",
    ),
    "no pair": (["--roles", "consumers", "--consumer", "billing"], "SUBSCRIPTION=VALUE", ""),
    "twice": (
        ["--roles", "consumers,relay", "--consumer", f"export={HANDLERS}:record",
         "--relay", "export=jsonl:out"],
        "'export' is given twice",
        "a second reader a subscription of its own",
    ),
    "unknown subscription": (
        ["--roles", "sequencer,consumers", "--consumer", f"nobody={HANDLERS}:record"],
        "no subscription 'nobody'",
        "penstock subscription create nobody",
    ),
    "unknown sink": (
        ["--roles", "sequencer,relay", "--relay", "export=carrier-pigeon:out"],
        "carrier-pigeon",
        "jsonl:///directory",
    ),
    "log level": (["--log-level", "loud"], "'loud'", "debug, info"),
    "nothing to share": (["--processes", "2"], "2 processes", "one is enough"),
    "processes that run no consumer": (
        ["--processes", "2", "--roles", "sequencer,consumers", "--consumer",
         f"nobody={HANDLERS}:record"],
        "no subscription 'nobody'",
        "penstock subscription create nobody",
    ),
    "host": (["--http-host", "192.0.2.1"], "192.0.2.1", "--http-host"),
}  # fmt: skip


@proves("options of a daemon")
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_one_line(
    log: Connection, database_url: str, refusal: Refusal, name: str
) -> None:
    arguments, problem, remedy = WRONG[name]
    line = refusal(database_url, *arguments)
    assert problem in line
    assert remedy in line


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_a_port_that_is_taken(
    log: Connection, database_url: str, refusal: Refusal, taken_port: int
) -> None:
    line = refusal(database_url, "--http-port", str(taken_port))
    assert f"port {taken_port} is taken" in line
    assert "--http-port" in line


def test_a_database_that_is_not_migrated(empty_database_url: str, refusal: Refusal) -> None:
    assert "run `penstock migrate`" in refusal(empty_database_url)
    with psycopg.connect(empty_database_url) as connection:
        found = connection.execute("SELECT FROM pg_namespace WHERE nspname = 'penstock'").fetchall()
    assert found == []


def test_a_database_that_does_not_answer(refusal: Refusal) -> None:
    line = refusal("postgresql://someone:secret@127.0.0.1:1/app")
    assert "cannot connect" in line
    assert "secret" not in line


def test_what_the_terminal_shows(database_url: str, daemons: StartDaemon) -> None:
    """In a process of its own: exit code, one line, no traceback."""
    nobody = ("--roles", "sequencer,consumers", "--consumer", f"nobody={HANDLERS}:record")
    for started, text in (
        (daemons(""), "PENSTOCK_DATABASE_URL"),
        (daemons(database_url, *nobody), "no subscription 'nobody'"),
    ):
        assert started.exit_code() == 2
        assert text in one_line(started.text())
