"""``penstock worker``: the consumers of an application in a separate process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock import subscriptions
from penstock.cli.main import run
from penstock.cli.worker import load
from penstock.consumer.handlers.options import ConsumerOptions
from penstock.errors import ConfigurationError, InvalidArgument
from tests.consumers.conftest import Connection
from tests.consumers.process import PENSTOCK, ROOT, Daemon, until
from tests.kit.log import drain, topic

_APPLICATION = """
import pathlib, time
import penstock

app = penstock.App()
here = pathlib.Path(__file__).parent

@app.consumer("billing", topics=["shop/orders"], idle_seconds=0.05)
def bill(event):
    with (here / "journal").open("a") as journal:
        journal.write(f"{event.sequence}\\n")
    while (here / "gate").exists():
        time.sleep(0.01)

@app.consumer("mailing", topics=["shop/orders"], batch=True, idle_seconds=0.05)
async def mail(batch):
    with (here / "mails").open("a") as journal:
        journal.write(f"{len(batch)}\\n")
"""

Start = Callable[[], subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path, database_url: str, connection: Connection) -> Iterator[Start]:
    """Starts `penstock worker application:app` in a folder that holds the application."""
    topic(connection, 1, "shop/orders")
    penstock.publish_batch(connection, [penstock.Message("shop/orders", b"1") for _ in range(3)])
    drain(connection)
    (tmp_path / "application.py").write_text(_APPLICATION)
    started: list[subprocess.Popen[bytes]] = []
    command = "import sys; from penstock.cli.main import app; app(sys.argv[1:])"

    def start() -> subprocess.Popen[bytes]:
        with (tmp_path / "output").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", command, "worker", "application:app"],
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PENSTOCK_DATABASE_URL": database_url},
                stderr=output,
            )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def _lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def test_it_consumes_and_drains(start: Start, tmp_path: Path, connection: Connection) -> None:
    """Subscriptions are made; SIGTERM finishes what is in hand, gives leases back and exits 0."""
    worker = start()
    until(lambda: _lines(tmp_path / "journal") == ["1", "2", "3"], "all are handled")
    until(lambda: sum(map(int, _lines(tmp_path / "mails"))) == 3, "the async one too")
    until(
        lambda: all(lag.lag_events == 0 for lag in subscriptions.lag(connection)),
        "all is committed",
    )
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0
    assert connection.execute("SELECT count(*) FROM penstock.consumers").fetchone() == (0,)
    assert '"draining"' in (tmp_path / "output").read_text()


def test_each_of_several_processes_has_an_id_of_its_own() -> None:
    """Guard: of_process.  Two of one id would wait for each other."""
    app = penstock.App()
    app.consumer("billing", consumer_id="me")(print)
    app.queue("mails")(print)
    billing, mails = app.consumers.values()
    named = billing.of_process(2).options
    assert isinstance(named, ConsumerOptions)
    assert named.consumer_id == "me-2"
    assert mails.of_process(2) is mails


def test_its_pages(tmp_path: Path, database_url: str, connection: Connection, start: Start) -> None:
    """/livez, /readyz and /metrics, on the port that its log names; options are variables too."""
    environment = {"PYTHONPATH": str(tmp_path), "PENSTOCK_WORKER_LOG_FORMAT": "json"}
    program = Daemon(
        database_url, tmp_path / "worker", ("application:app",), environment, (*PENSTOCK, "worker")
    )
    try:
        program.wait_started()
        until(
            lambda: program.metric("penstock_consumed_events_total", "consumer:billing") == 3,
            "the count of what was handled",
        )
        until(
            lambda: program.metric("penstock_consumed_events_total", "consumer:mailing") == 3,
            "the count of what was mailed",
        )
        calls = program.metric("penstock_handler_seconds_count", "consumer:billing")
        batches = program.metric("penstock_handler_seconds_count", "consumer:mailing")
        assert (calls, batches >= 1) == (3, True)
        page = program.get("/metrics")[1]
        assert 'penstock_lag_events{subscription="billing"} ' in page
        assert 'penstock_held_leases{worker="consumer:mailing"} ' in page
        assert program.get("/livez") == (200, "ok\n")
        until(lambda: program.get("/readyz") == (200, "ok\n"), "it is ready")
        (tmp_path / "gate").touch()
        penstock.publish(connection, "shop/orders", b"4")
        drain(connection)
        until(lambda: len(_lines(tmp_path / "journal")) == 4, "a handler is at work")
        program.terminate()
        drains = (503, "not ready: draining\n")
        until(lambda: program.get("/readyz") == drains, "it is not ready while it drains")
        (tmp_path / "gate").unlink()
        assert program.exit_code() == 0
    finally:
        program.kill()


def test_a_wrong_option_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_WORKER_HTTPPORT", "80")
    assert run(["worker", "application:app"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the nearest is PENSTOCK_WORKER_HTTP_PORT" in line


def test_a_port_that_is_taken(tmp_path: Path, database_url: str, start: Start) -> None:
    """Exit code 2, as its help says: an option is at fault."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = ("application:app", "--http-port", str(taken.getsockname()[1]))
        program = Daemon(
            database_url,
            tmp_path / "worker",
            options,
            {"PYTHONPATH": str(tmp_path)},
            (*PENSTOCK, "worker"),
        )
        try:
            assert program.exit_code() == 2
        finally:
            program.kill()
    assert "choose another with --http-port" in program.text()


def test_a_second_signal_aborts(start: Start, tmp_path: Path) -> None:
    """Exit code 1, although a handler is at work."""
    (tmp_path / "gate").touch()
    worker = start()
    until(lambda: _lines(tmp_path / "journal"), "a handler is at work")
    worker.send_signal(signal.SIGTERM)
    until(lambda: "draining" in (tmp_path / "output").read_text(), "it drains")
    assert worker.poll() is None
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 1


@pytest.mark.parametrize("address", ["application", ":app", "nowhere:app", "os:path"])
def test_a_wrong_address_is_refused(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, exit code 2."""
    with pytest.raises(ConfigurationError):
        load(address)
    assert run(["worker", address, "--log-level", "loud"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_what_is_declared_wrongly_is_refused_at_once() -> None:
    """Where it stands in the application, not when it runs."""
    app = penstock.App()
    app.consumer("billing", topics=["a/b"])(print)
    with pytest.raises(InvalidArgument, match="twice"):
        app.consumer("billing")(print)
    with pytest.raises(InvalidArgument, match="concurrency"):
        app.consumer("other", concurrency=0)(print)
    with pytest.raises(InvalidArgument, match="list of topics"):
        app.consumer("other", topics="a/b")
    with pytest.raises(InvalidArgument, match="no consumer"):
        penstock.App().workers()
