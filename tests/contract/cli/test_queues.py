"""Queues on the command line, and workers whose handler is a command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from penstock.publishing.publish import publish
from penstock.subscriptions import letter_moves, letter_tasks, queue
from penstock.subscriptions.letter_tasks import LetterFilter
from tests import command
from tests.command import Result
from tests.contract.databases import ContractDatabase
from tests.kit.log import drain, topic, wait_until
from tests.kit.queue import QUEUE, TOPIC, more, pass_time

Run = Callable[..., Result]

#: Takes what it should do from the payload.
WORKER = """
import os, sys
number = int(sys.stdin.buffer.read())
assert os.environ["PENSTOCK_SEQUENCE"] == str(number), os.environ
assert os.environ["PENSTOCK_DELIVERIES"] == "1"
codes = {2: 75, 3: 65, 4: 9}
print("no luck", file=sys.stderr)
sys.exit(codes.get(number, 0))
"""


@pytest.fixture
def run(
    db: ContractDatabase, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """The command on a database with a queue of five events."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", db.url)
    topic(db.connect(), 1, TOPIC)
    run = partial(command.run, capsys)
    made = run("queue", "create", QUEUE, "-t", TOPIC, "--set", "max_failures=1")
    assert (made.code, made.err) == (0, f"queue {QUEUE}: 1 topic added\n")
    more(db.connect(), 5)
    return run


def test_what_a_queue_is_and_has(db: ContractDatabase, run: Run) -> None:
    counted = {"queue": QUEUE, "size": 5, "ready": 5, "in_flight": 0, "delayed": 0, "dead": 0}
    assert run("queue", "list", "-o", "json").rows == [counted]
    assert run("queue", "statistics", QUEUE, "-o", "json").rows == [counted]
    found = run("queue", "describe", QUEUE, "-o", "json").json
    assert (found["max_failures"], found["max_deliveries"], found["topics"]) == (1, 5, [TOPIC])
    assert run("queue", "configure", QUEUE, "--set", "visibility_seconds=1.5").code == 0
    assert queue.describe(db.connect(), QUEUE).visibility_seconds == 1.5
    looked = run("queue", "peek", QUEUE, "--max", "2", "-o", "json").rows
    assert [(each["state"], each["payload"]) for each in looked] == [("ready", "1"), ("ready", "2")]


def test_bad_settings_are_refused(db: ContractDatabase, run: Run) -> None:
    for bad in (
        "max_failures", "max_failures=many", "max_failures=0", "colour=3", "jitter=nan",
        "jitter=inf", "order", "=1",
    ):  # fmt: skip
        assert run("queue", "configure", QUEUE, "--set", bad).code == 2
    assert run("queue", "configure", QUEUE).code == 2
    assert run("queue", "describe", "nobody").code == 2


def test_a_command_handles_the_events(db: ContractDatabase, run: Run) -> None:
    """Exit codes 0, 75, 65 and others are the verdicts; O-F20."""
    worked = run("work", QUEUE, "--until-idle", "--", sys.executable, "-c", WORKER)
    assert (worked.code, worked.err.splitlines()[-1]) == (1, f"queue {QUEUE}: 3 done, 1 failed")
    (counted,) = run("queue", "statistics", QUEUE, "-o", "json").rows
    assert (counted["size"], counted["dead"]) == (0, 2)
    letters = run("dead-letter", "list", QUEUE, "-o", "json").rows
    assert {each["reason"] for each in letters} == {
        "CommandFailed: exit code 9: no luck", "the handler asked for it again",
    }  # fmt: skip
    assert run("queue", "redrive", QUEUE).code == 2
    assert run("queue", "redrive", QUEUE, "--all").err == f"queue {QUEUE}: 2 redriven\n"
    pass_time(db.connect(), 10)
    assert run("queue", "purge", QUEUE).code == 2
    assert run("queue", "purge", QUEUE, "--yes", "-o", "json").json == {
        "queue": QUEUE,
        "purged": 2,
    }


def test_a_command_that_is_not_there_ends_no_event(db: ContractDatabase, run: Run) -> None:
    """Each event would fail until it is a dead letter.  Guard: work looks before it receives."""
    worked = run("work", QUEUE, "--until-idle", "--", "no-such-command")
    assert (worked.code, "no-such-command" in worked.err) == (2, True)
    assert queue.statistics(db.connect(), QUEUE) == queue.QueueStatistics(5, 5, 0, 0, 0)


def test_a_command_that_takes_too_long_is_ended(db: ContractDatabase, run: Run) -> None:
    sleeps = ["sh", "-c", "sleep 60"]
    worked = run("work", QUEUE, "--concurrency", "5", "--seconds", "0.2", "--until-idle",
                 "--", *sleeps)  # fmt: skip
    assert worked.code == 1
    assert "5 failed" in worked.err
    assert queue.statistics(db.connect(), QUEUE).dead == 5


def test_a_command_that_is_killed_has_failed(db: ContractDatabase, run: Run) -> None:
    """As by the kernel, when memory is out."""
    worked = run("work", QUEUE, "--until-idle", "--", "sh", "-c", "kill -9 $$")
    assert (worked.code, worked.err.splitlines()[-1]) == (1, f"queue {QUEUE}: 0 done, 5 failed")
    letters = run("dead-letter", "list", QUEUE, "-o", "json").rows
    assert [each["reason"] for each in letters] == ["CommandFailed: killed by SIGKILL: "] * 5


def _is_running(pid: int) -> bool:
    """Whether there is such a process, other than one that has ended and nobody has asked for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_such_a_command_has_started_is_ended_too(
    db: ContractDatabase, run: Run, tmp_path: Path
) -> None:
    """Guard: the whole group is killed; a rest of it would go on beside the next delivery."""
    started = tmp_path / "pid"
    own = db.connect()
    done = queue.receive(own, QUEUE, 4)  # one is enough: each takes the second that it is given
    queue.acknowledge(own, QUEUE, [each.receipt for each in done])
    script = f"sleep 600 & echo $! > {started}; wait"
    run("work", QUEUE, "--seconds", "1", "--until-idle", "--", "sh", "-c", script)
    wait_until(lambda: not _is_running(int(started.read_text())), "it is gone")


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("db", ["postgres"], indirect=True)
def test_a_signal_lets_commands_end(
    db: ContractDatabase, run: Run, tmp_path: Path, asked: signal.Signals
) -> None:
    """Ctrl-C goes to all processes of a terminal.  Guard: a session for each command."""
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    script = f"touch {begun}; until [ -e {gate} ]; do sleep 0.02; done"
    words = ["work", QUEUE, "--concurrency", "1", "--", "sh", "-c", script]
    with subprocess.Popen(
        [Path(sys.executable).with_name("penstock"), *words],
        env=os.environ | {"PENSTOCK_DATABASE_URL": db.url},
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    ) as worker:
        try:
            wait_until(begun.exists, "a command is under way", 60)
            os.killpg(worker.pid, asked)
            gate.touch()
            _, said = worker.communicate(timeout=60)
        finally:
            worker.kill()
    assert worker.returncode == 0
    assert f"queue {QUEUE}: 1 done, 0 failed" in said
    assert queue.statistics(db.connect(), QUEUE) == queue.QueueStatistics(4, 4, 0, 0, 0)


def test_dead_letters_go_on_to_a_topic_and_back(db: ContractDatabase, run: Run) -> None:
    own = db.connect()
    topic(own, 1, "tests/dead")
    assert run("queue", "create", "hospital", "-t", "tests/dead").code == 0
    assert run("dead-letter", "forward", QUEUE).code == 2
    said = run("dead-letter", "forward", QUEUE, "--to", "tests/dead").err
    assert said == f"subscription {QUEUE}: dead letters go on to tests/dead\n"
    held = queue.receive(own, QUEUE, 2)
    queue.reject(own, QUEUE, [each.receipt for each in held], reason="no")
    publish(own, "tests/dead", b"not a letter")
    drain(own)
    (letter, _) = run("dead-letter", "list", QUEUE, "-o", "json").rows
    assert (letter["forwarded_to"], letter["not_forwarded"]) == ("tests/dead", None)
    done = run("dead-letter", "move", "hospital", "--keep-deliveries", "-o", "json").json
    (reason,) = done.pop("reasons")
    assert "no copies of dead letters" in reason
    assert done == {"queue": "hospital", "moved": 2, "left": 1}
    assert run("dead-letter", "list", QUEUE, "-o", "json").rows == []
    assert queue.statistics(own, "hospital").ready == 1
    assert run("dead-letter", "forward", QUEUE, "--stop", "-o", "json").json["changed"]


def test_tasks_and_moves_of_the_sweep_are_shown(db: ContractDatabase, run: Run) -> None:
    """The newest first; those of another subscription are not."""
    own = db.connect()
    topic(own, 1, "tests/dead")
    assert run("dead-letter", "forward", QUEUE, "--to", "tests/dead").code == 0
    queue.subscribe(own, "hospital", ["tests/dead"])
    assert run("dead-letter", "tasks", "hospital", "-o", "json").rows == []
    asked = letter_tasks.request(own, "hospital", "drop", LetterFilter(key="a"), "why")
    begun = letter_moves.start(own, "hospital")
    letter_tasks.cancel(own, asked, "enough")
    move, task = run("dead-letter", "tasks", "hospital", "-o", "json").rows
    assert (move["id"], move["what"], move["state"]) == (begun, "move back", "running")
    assert (task["id"], task["what"], task["state"], task["problem"]) == (
        *(asked, "drop", "cancelled", "enough"),
    )
    assert run("dead-letter", "tasks", QUEUE, "-o", "json").rows == []
