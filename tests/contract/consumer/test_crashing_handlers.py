"""Handlers that end their process: the worker starts another one, and their events are tried again.

By SIGKILL (as when memory is out), by a crash of an extension, or by os._exit.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.publishing.publish import publish
from penstock.subscriptions import dead_letters, queue, stream
from tests.consumers.process import PENSTOCK, Daemon, until
from tests.contract.databases import ContractDatabase
from tests.kit.log import Connection, drain, topic
from tests.kit.proof import proves
from tests.kit.queue import QUEUE
from tests.kit.stream import STREAM, SUBSCRIPTION, retry, short_leases

_APPLICATION = """
import os, pathlib, signal
import penstock

app = penstock.App()
here = pathlib.Path(__file__).parent

def work(name, event):
    text = event.payload.decode()
    with (here / name).open("a") as journal:
        journal.write(f"{text}\\n")
    poison, _, often = text.partition(" ")
    if often == "once" and (here / name).read_text().split("\\n").count(text) > 1:
        return
    if poison == "exit":
        os._exit(0)
    if poison in ("SIGKILL", "SIGSEGV"):
        os.kill(os.getpid(), getattr(signal, poison))

@app.consumer("tests", idle_seconds=0.05)
def handle(event):
    work("stream", event)

@app.queue("mails", idle_seconds=0.05)
def send(mail):
    work("queue", mail)
"""
NAMES = ("stream", "queue")


@pytest.fixture
def own(db: ContractDatabase) -> Connection:
    """A stream and a queue of one topic, which soon give up a worker."""
    own = db.connect()
    topic(own, 1, STREAM)
    stream.subscribe(own, SUBSCRIPTION, [STREAM])
    queue.subscribe(own, QUEUE, [STREAM])
    queue.configure(own, QUEUE, visibility_seconds=1, max_failures=1)
    short_leases(own)
    retry(own, max_attempts=1)
    return own


def _started(db: ContractDatabase, folder: Path, *given: str) -> Daemon:
    (folder / "application.py").write_text(_APPLICATION)
    return Daemon(
        db.url,
        folder / "worker",
        ("application:app", "--processes", "1", *given),
        {"PYTHONPATH": str(folder)},
        (*PENSTOCK, "worker"),
    )


def _publish(own: Connection, *texts: str) -> None:
    for text in texts:
        publish(own, STREAM, text.encode())
    drain(own)


def _handled(folder: Path, name: str) -> list[str]:
    path = folder / name
    return path.read_text().splitlines() if path.exists() else []


def _seen_by_both(folder: Path, *texts: str) -> Callable[[], bool]:
    """In any order: in a queue, what a crash brings again may come after what was published later.

    A text that is given twice has to be there twice.
    """
    return lambda: all(
        _handled(folder, name).count(text) >= texts.count(text) for name in NAMES for text in texts
    )


@proves("D5 over crashes")
@pytest.mark.long_on("mysql", "mariadb")
def test_another_process_goes_on(db: ContractDatabase, own: Connection, tmp_path: Path) -> None:
    """Also in the first seconds of the worker, in which other failures end it."""
    _publish(own, "good", "SIGKILL once", "better")
    worker = _started(db, tmp_path)
    try:
        wanted = ("good", "SIGKILL once", "SIGKILL once", "better")
        until(_seen_by_both(tmp_path, *wanted), "all, and what crashed once more")
        until(lambda: worker.get("/readyz")[0] == 200, "it is ready")
        restarts = worker.metric("penstock_worker_restarts_total", "process:1")
        assert 1 <= restarts <= 2, "one death may end both handlers"
        assert "ended, killed by SIGKILL" in worker.text()
        worker.terminate()
        assert worker.exit_code() == 0
    finally:
        worker.kill()


@proves("D5 over crashes")
@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("poison", ["SIGKILL", "SIGSEGV", "exit"])
def test_an_event_that_always_crashes_is_a_dead_letter(
    db: ContractDatabase, own: Connection, tmp_path: Path, poison: str
) -> None:
    """Each crash is an attempt, as docs/reference/dead-letters.md counts them; others go on."""
    _publish(own, "good", poison, "better")
    worker = _started(db, tmp_path)
    try:
        until(_seen_by_both(tmp_path, "good", "better"), "the other events", 300)
        until(lambda: dead_letters.dead_letters(own, SUBSCRIPTION), "the stream's letter")
        until(lambda: dead_letters.dead_letters(own, QUEUE), "the queue's letter", 120)
        worker.terminate()
        assert worker.exit_code() == 0
    finally:
        worker.kill()
    for name in NAMES:
        assert _handled(tmp_path, name).count(poison) <= 4
    assert [each.sequence for each in dead_letters.dead_letters(own, SUBSCRIPTION)] == [2]
    assert [each.sequence for each in dead_letters.dead_letters(own, QUEUE)] == [2]
