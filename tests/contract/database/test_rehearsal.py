"""The rehearsal of an upgrade: programs of the version before work on while migrate runs.

What a version promises is that the one before works on its schema. Nothing is lost, and nobody
fails: neither at the moment when columns come and functions are replaced, nor afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from ops.sinks.jsonl import JsonlSink
from penstock import queue
from penstock.database import migrate
from penstock.subscriptions import stream
from tests.contract.databases import ContractDatabase
from tests.kit import next_version
from tests.kit.log import drain, known_as, wait_until
from tests.kit.proof import proves
from tests.kit.version_before import Program, VersionBefore, version_before

TOPIC = "tests/upgrade"
STREAM, QUEUE, EXPORT = "billing", "mails", "export"
#: What the publisher of the small form calls, also by other functions.
CALLED = ("publish", "begin_call", "end_call", "undo_call")
PUBLISH = """
import sys, time
from pathlib import Path
import penstock
number, stop = 0, Path(sys.argv[1])
while not stop.exists():
    with penstock.connect() as connection:
        for _ in range(50):
            number += 1
            penstock.publish(connection, "tests/upgrade", str(number).encode(), key=str(number % 9))
            connection.commit()
            print(number, flush=True)
            time.sleep(0.005)
"""
CONSUME = """
import os, penstock
url = os.environ["PENSTOCK_DATABASE_URL"]
handler = lambda event: print(event.partition, event.sequence, event.payload.decode(), flush=True)
penstock.Consumer(url, "billing", handler=handler).run()
"""
WORK = """
import os, penstock
url = os.environ["PENSTOCK_DATABASE_URL"]
handler = lambda delivery: print(delivery.payload.decode(), flush=True)
penstock.QueueConsumer(url, "mails", handler=handler).run()
"""
COMMAND = "from penstock.cli.main import app; app()"


@pytest.fixture
def log(db: ContractDatabase, monkeypatch: pytest.MonkeyPatch) -> Iterator[ContractDatabase]:
    """A topic that a stream, a queue and a relay read; the schema is put back after the test."""
    own = db.connect()
    penstock.create_topic(own, TOPIC, 2, create_namespaces=True)
    for name in (STREAM, EXPORT):
        stream.subscribe(own, name, [TOPIC])
    queue.subscribe(own, QUEUE, [TOPIC])
    yield db
    next_version.become_this_version(db, monkeypatch)


@proves("an upgrade stops nobody")
def test_open_connections_work_on_while_migrate_runs(
    log: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The small form: this version's calls, prepared and cached before the change."""
    own, publisher = log.connect(), log.connect()
    published: list[int] = []
    done = threading.Event()
    failures: list[BaseException] = []

    def publish() -> None:
        try:
            while not done.is_set():
                penstock.publish(publisher, TOPIC, str(len(published) + 1).encode())
                published.append(len(published) + 1)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        wait_until(lambda: len(published) > 10 or failures, "the first events")
        penstock.sequence(own)
        first = queue.receive(own, QUEUE, max_events=5)
        next_version.become_next_version(monkeypatch, CALLED)
        assert migrate.migrate(log.url).applied == next_version.APPLIED
        seen = len(published)
        wait_until(lambda: len(published) > seen + 10 or failures, "events after it")
    finally:
        done.set()
        thread.join(30)
    assert failures == []
    drain(own)
    received = {each.event.payload for each in first}
    while found := queue.receive(own, QUEUE, max_events=1000):
        received |= {each.event.payload for each in found}
    assert sorted(map(int, received)) == published


@pytest.fixture(scope="session")
def before(tmp_path_factory: pytest.TempPathFactory) -> VersionBefore:
    """Its wheel, built once."""
    return version_before(tmp_path_factory.mktemp("before"))


@proves("an upgrade stops nobody")
@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_version_before_works_on_while_migrate_runs(
    log: ContractDatabase,
    before: VersionBefore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """Publisher, upkeep, stream, queue by its wheel; the relay, which no wheel has, by its tree."""
    record_property("the version before", before.what)
    stop = tmp_path / "stop"
    out = tmp_path / "out"

    def start(name: str, script: str, *arguments: str, code: Path = before.wheel) -> Program:
        return Program(name, code, tmp_path / name, log.url, script, arguments)

    publisher = start("publisher", PUBLISH, str(stop))
    consumer, worker = start("consumer", CONSUME), start("worker", WORK)
    upkeep = start("upkeep", COMMAND, "upkeep", "--http-port", "0")
    relay = start(
        "relay", COMMAND, "relay", EXPORT, f"jsonl:{out}", "--forever", code=before.tree
    )  # fmt: skip
    programs = [publisher, consumer, worker, upkeep, relay]
    own = log.connect()

    def relayed() -> list[str]:
        for each in programs:
            each.lines()
        paths = [JsonlSink(out).path(known_as(own, TOPIC), number) for number in range(2)]
        return [line for path in paths if path.exists() for line in path.read_text().splitlines()]

    def all_past(number: int) -> bool:
        return min(len(relayed()), len(consumer.lines()), len(worker.lines())) > number

    try:
        wait_until(lambda: all_past(20), "everybody at work", 60)
        next_version.become_next_version(monkeypatch)
        assert migrate.migrate(log.url).applied == next_version.APPLIED
        at_migration = len(publisher.lines())
        wait_until(lambda: all_past(at_migration + 50), "everybody at work after it", 60)
        stop.touch()
        assert publisher.process.wait(60) == 0, publisher.told.read_text()
        count = len(publisher.lines())
        wait_until(lambda: all_past(count - 1), "the end of the log", 60)
        logged = {each.name: each.end() for each in programs}
    finally:
        for each in programs:
            each.kill()
    everything = list(map(str, range(1, count + 1)))
    assert sorted(worker.lines(), key=int) == everything
    in_order = [tuple(map(int, line.split())) for line in consumer.lines()]
    assert sorted(str(number) for *_, number in in_order) == sorted(everything)
    for partition in range(2):
        sequences = [sequence for each, sequence, _ in in_order if each == partition]
        assert sequences == list(range(1, len(sequences) + 1))
    assert len(relayed()) == count
    failed = {name: text for name, text in logged.items() if "Traceback" in text}
    assert failed == {}
    assert not [text for text in logged.values() if '"error"' in text or "ERROR" in text]
