"""`penstock publish`, `fetch`, `tail` and `consume` as a shell sees them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

import penstock
from penstock.log.tail import tail
from tests import command
from tests.command import Result
from tests.kit.proof import proves

ROOT = Path(__file__).resolve().parents[3]
COMMAND = Path(sys.executable).with_name("penstock")
TOPIC = "shop/orders"

Connection = psycopg.Connection[tuple[Any, ...]]


class Shell:
    """Runs the command: to its end in this process, or in one of its own."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._url = url
        self._capsys = capsys

    def run(self, *arguments: str) -> Result:
        """Run it to its end."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PENSTOCK_DATABASE_URL", self._url)
            patch.setenv("PENSTOCK_SCHEMA", "penstock")
            return command.run(self._capsys, *arguments)

    def lines(self, *arguments: str) -> list[Any]:
        """The JSON objects that it writes; it has to succeed."""
        done = self.run(*arguments, "--output", "json")
        assert (done.code, done.err) == (0, "")
        return [json.loads(line) for line in done.out.splitlines()]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start it in a process of its own and let it run."""
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("DB_")},
            "PENSTOCK_DATABASE_URL": self._url,
            "PENSTOCK_SCHEMA": "penstock",
            "PYTHONPATH": str(ROOT),
        }
        return subprocess.Popen(
            [COMMAND, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env=environment, preexec_fn=_as_in_a_terminal,
        )  # fmt: skip


def _as_in_a_terminal() -> None:
    """A shell starts what runs in the background with SIGINT ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def shell(database_url: str, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(database_url, capsys)


@pytest.fixture
def topic(connection: Connection) -> str:
    penstock.create_topic(connection, TOPIC, partitions=2, create_namespaces=True)
    return TOPIC


def publish(connection: Connection, *payloads: str, partition: int = 0) -> None:
    """Publish, sequence and announce, as the daemon does."""
    for each in payloads:
        penstock.publish(connection, TOPIC, each.encode(), partition=partition)
    penstock.sequence(connection)
    connection.execute("SELECT penstock.announce('{1}')")


def test_publish_takes_text_a_file_and_standard_input(
    shell: Shell, topic: str, connection: Connection, tmp_path: Path
) -> None:
    file = tmp_path / "payload"
    file.write_bytes(b"\x00\xff")
    given = uuid.uuid4()
    first = shell.run(
        "publish", topic, "hello", "--key", "ann", "--type", "placed", "--partition", "1",
        "--content-type", "text/plain", "--header", "n=1", "--header", "who=ann=bob",
        "--event-id", str(given),
    )  # fmt: skip
    assert (first.code, first.out.strip()) == (0, str(given))
    (second,) = shell.lines("publish", topic, "--file", str(file), "--partition", "1")
    with shell.start("publish", topic, "-", "--partition", "1") as process:
        third, _ = process.communicate("from a pipe", timeout=60)
    penstock.sequence(connection)
    events = penstock.fetch(connection, topic, 1, 1)
    assert [str(event.event_id) for event in events] == [
        str(given),
        second["event_id"],
        third.strip(),
    ]
    assert [event.payload for event in events] == [b"hello", b"\x00\xff", b"from a pipe"]
    assert (events[0].key, events[0].type, events[0].content_type) == (
        "ann",
        "placed",
        "text/plain",
    )
    assert events[0].headers == {"n": 1, "who": "ann=bob"}


def test_publish_delays_and_drops_duplicates(
    shell: Shell, topic: str, connection: Connection
) -> None:
    options = ("--dedup-key", "order 7", "--partition", "0", "--strict")
    (first,) = shell.lines("publish", topic, "once", *options)
    (again,) = shell.lines("publish", topic, "twice", *options)
    assert (first["duplicate"], again["duplicate"]) == (False, True)
    assert again["event_id"] == first["event_id"]
    told = shell.run("publish", topic, "twice", *options)
    assert (told.code, told.out.strip()) == (0, first["event_id"])
    assert told.err.startswith("a duplicate")
    due = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%S")
    shell.lines("publish", topic, "later", "--not-before", due, "--partition", "0")
    penstock.sequence(connection)
    assert [event.payload for event in penstock.fetch(connection, topic, 0, 1)] == [b"once"]
    rows = connection.execute("SELECT due_at FROM penstock.events WHERE due_at IS NOT NULL")
    assert [at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S") for (at,) in rows] == [due]


def test_what_publish_was_refused_is_not_there(
    shell: Shell, topic: str, connection: Connection
) -> None:
    connection.execute("UPDATE penstock.topics SET max_payload_bytes = 3")
    done = shell.run("publish", topic, "four")
    assert (done.code, done.out) == (2, "")
    assert "has 4 bytes, topic 'shop/orders' takes 3" in done.err
    assert penstock.sequence(connection).sequenced == 0


def test_fetch_answers_a_range_of_one_partition(
    shell: Shell, topic: str, connection: Connection
) -> None:
    publish(connection, "a", "b", "c", "d", partition=1)
    done = shell.run(
        "fetch", topic, "--partition", "1", "--from", "2", "--max", "2", "--output", "json"
    )
    assert [event["payload"] for event in done.json] == ["b", "c"]
    table = shell.run("fetch", topic, "--partition", "1").out.splitlines()
    assert len(table) == 5
    nothing = shell.run("fetch", topic, "--from", "100", "--output", "json")
    assert (nothing.code, nothing.json) == (0, [])


@proves("the command shows all")
def test_fetch_says_what_is_gone(shell: Shell, topic: str, connection: Connection) -> None:
    """Without a sequence it begins at what is there, and says so; with one it is an error."""
    publish(connection, "a", "b", "c")
    connection.execute("UPDATE penstock.partitions SET low_sequence = 3 WHERE number = 0")
    for options in ((), ("--partition", "0")):
        done = shell.run("fetch", topic, *options, "--output", "json")
        assert [event["payload"] for event in done.json] == ["c"]
        assert "no longer holds the first events of 1 of these partitions" in done.err
    assert shell.run("fetch", topic, "--from", "1").code == 3


def test_tail_answers_the_newest_events(shell: Shell, topic: str, connection: Connection) -> None:
    publish(connection, *map(str, range(12)))
    publish(connection, "x", partition=1)
    newest = shell.lines("tail", topic)
    assert [event["payload"] for event in newest] == [*map(str, range(2, 12)), "x"]
    assert len(shell.lines("tail", topic, "--from", "earliest")) == 13
    assert [event["sequence"] for event in shell.lines("tail", topic, "--from", "1")] == [12, 1]
    assert shell.lines("tail", topic, "--from", "latest") == []
    assert len(shell.lines("tail", topic, "--max", "3")) == 3


def test_a_line_of_tail_stays_a_line(shell: Shell, topic: str, connection: Connection) -> None:
    """A payload can neither end its line nor drive the terminal."""
    publish(connection, "one\ntwo", "\x1b[2Jgone")
    penstock.publish(connection, TOPIC, b"\xff", partition=0, key="k\n", type="placed")
    penstock.sequence(connection)
    lines = shell.run("tail", topic).out.splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == [
        '0:1 - - "one\\ntwo"',
        '0:2 - - "\\u001b[2Jgone"',
        '0:3 "k\\n" placed <1 bytes>',
    ]


@pytest.fixture
def following(shell: Shell, topic: str, connection: Connection) -> Iterator[subprocess.Popen[str]]:
    """A `penstock tail --follow --output json` that has come to its first pause."""
    process = shell.start("tail", topic, "--from", "latest", "--follow", "--output", "json")
    deadline = time.monotonic() + 30
    asked = (
        "SELECT FROM pg_stat_activity WHERE application_name = 'penstock tail' AND state = 'idle'"
        " AND query LIKE '%high_watermarks%' AND datname = current_database()"
    )
    while not connection.execute(asked).fetchall():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_tail_follows_until_it_is_asked_to_stop(
    following: subprocess.Popen[str], connection: Connection, asked: signal.Signals
) -> None:
    assert following.stdout is not None
    publish(connection, "a", "b")
    assert [json.loads(following.stdout.readline())["payload"] for _ in "ab"] == ["a", "b"]
    penstock.resize_topic(connection, TOPIC, 3)
    publish(connection, "new", partition=2)
    event = json.loads(following.stdout.readline())
    assert (event["partition"], event["sequence"], event["payload"]) == (2, 1, "new")
    following.send_signal(asked)
    rest, said = following.communicate(timeout=30)
    assert (following.returncode, rest, said) == (0, "", "")


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_consume_leaves_when_it_is_asked_to_stop(
    shell: Shell, topic: str, connection: Connection, asked: signal.Signals
) -> None:
    """Guard: what was written is committed, and the consumer leaves: nobody waits for its lease."""
    publish(connection, "a", "b")
    penstock.subscribe(connection, "billing", [topic])
    with shell.start("consume", "billing", "--commit", "--format", "json") as process:
        assert process.stdout is not None
        assert [json.loads(process.stdout.readline())["payload"] for _ in "ab"] == ["a", "b"]
        publish(connection, "c")
        assert json.loads(process.stdout.readline())["payload"] == "c"
        process.send_signal(asked)
        rest, said = process.communicate(timeout=30)
    assert (process.returncode, rest, said) == (0, "", "")
    assert connection.execute("SELECT count(*) FROM penstock.consumers").fetchone() == (0,)
    assert shell.run("consume", "billing", "--until-idle").out == ""


def test_tail_never_steps_over_what_is_gone(topic: str, connection: Connection) -> None:
    publish(connection, "a", "b", "c")
    events = tail(connection, topic, 2)
    assert next(events).payload == b"b"
    assert next(events).payload == b"c"
    publish(connection, "d", "e")
    connection.execute("UPDATE penstock.partitions SET low_sequence = 5 WHERE number = 0")
    with pytest.raises(penstock.BelowLowSequence):
        next(events)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["publish", "shop/nothing", "x"], "there is no topic 'shop/nothing'. create it"),
        (["publish", TOPIC, "x", "--partition", "7"], "partition"),
        (["fetch", "shop/nothing"], 'no topic "shop/nothing"'),
        (["fetch", TOPIC, "--partition", "7"], "partition"),
        (["tail", "shop/nothing"], 'no topic "shop/nothing"'),
        (["tail", TOPIC, "--from", "yesterday"], "use earliest, latest or a number"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(
    shell: Shell, topic: str, arguments: list[str], said: str
) -> None:
    done = shell.run(*arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert said in done.err


@pytest.mark.parametrize("arguments", [["publish", TOPIC, "x"], ["fetch", TOPIC], ["tail", TOPIC]])
def test_without_a_database_or_its_schema_the_exit_code_is_3(
    empty_database_url: str, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    not_migrated = Shell(empty_database_url, capsys).run(*arguments)
    assert (not_migrated.code, not_migrated.out) == (3, "")
    assert "run `penstock migrate`" in not_migrated.err
    unreachable = Shell("postgresql://teller:s3cret@127.0.0.1:1/bank", capsys).run(*arguments)
    assert (unreachable.code, unreachable.err.count("\n")) == (3, 1)
    assert "s3cret" not in unreachable.err


def test_a_reader_that_has_enough_ends_tail(
    shell: Shell, topic: str, connection: Connection
) -> None:
    publish(connection, *["x" * 1_000] * 200)
    with shell.start("tail", topic, "--from", "earliest") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert (process.wait(timeout=30), process.stderr.read()) == (0, "")
