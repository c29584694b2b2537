"""Packets that the network drops in silence: each program goes on within its lease and ten seconds.

Each flow of a program alone, all at once, and the whole network for a while.  With the limits as
they are.  ``--log-cli-level=info`` shows the times.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import pytest

from penstock import database
from penstock.publishing.publish import publish
from penstock.subscriptions import queue, stream
from tests.consumers.handlers import JOURNAL
from tests.consumers.process import DAEMON, PENSTOCK, Daemon, until
from tests.contract.databases import ContractDatabase
from tests.kit import lossy_network
from tests.kit.log import Connection, drain, topic
from tests.kit.lossy_network import LossyNetwork
from tests.kit.proof import proves
from tests.kit.queue import QUEUE
from tests.kit.stream import STREAM, SUBSCRIPTION
from tests.support import MISSING

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

RELAY = "relay"
#: The seconds of a stream's lease, a queue's visibility, and the longest answer of a sequencer.
LEASES = {"stream": 10, "relay": 10, "queue": 30, "sequencer": 10}
BLACKOUT_SECONDS = 25
#: What a queue's handler adds to the number of its effect.
OF_QUEUE = 1000

_APPLICATION = f"""
import os, pathlib, time
import penstock

app = penstock.App()
here = pathlib.Path(__file__).parent

def work(given, number):
    with given.transaction() as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO effects VALUES (%s)", (number,))
        with (here / "begun").open("a") as begun:
            begun.write(f"{{number}}\\n")
        while (here / "gate").exists():
            time.sleep(0.01)

@app.consumer("tests", batch=True)
def handle(batch):
    for event in batch:
        work(batch, int(event.payload))

@app.queue("mails")
def send(mail):
    work(mail, {OF_QUEUE} + int(mail.payload))
"""
_NOTE = f"cat >> ${JOURNAL}; echo >> ${JOURNAL}"


@cache
def _lacks() -> str:
    return lossy_network.lacks()


@pytest.fixture
def network(db: ContractDatabase) -> Iterator[LossyNetwork]:
    if _lacks():
        pytest.skip(f"{MISSING}{_lacks()}")
    with lossy_network.lossy_network(db.url) as made:
        yield made


@pytest.fixture
def own(db: ContractDatabase) -> Iterator[Connection]:
    """A topic that a stream, a relay and a queue read, and a table for effects."""
    connection = db.connect()
    topic(connection, 1, STREAM)
    for name in (SUBSCRIPTION, RELAY):
        stream.subscribe(connection, name, [STREAM])
    queue.subscribe(connection, QUEUE, [STREAM])
    database.execute(connection, "CREATE TABLE effects (number INT)")
    yield connection
    database.execute(connection, "DROP TABLE effects")


class Program:
    """One of the programs, and how far its work is."""

    def __init__(self, own: Connection, network: LossyNetwork, folder: Path, name: str) -> None:
        handlers = "tests.consumers.handlers"
        program, given, works = {
            "daemon": (
                DAEMON,
                (
                    *("--roles", "sequencer,sweep,consumers,queues,relay"),
                    *("--consumer", f"{SUBSCRIPTION}={handlers}:record"),
                    *("--queue", f"{QUEUE}={handlers}:work_off"),
                    *("--relay", f"{RELAY}=jsonl:{folder / 'sink'}"),
                ),
                ("stream", "relay", "queue"),
            ),
            "upkeep": ((*PENSTOCK, "upkeep"), (), ("sequencer",)),
            "worker": ((*PENSTOCK, "worker"), ("application:app",), ("stream", "queue")),
            "work": ((*PENSTOCK, "work"), (QUEUE, "--", "sh", "-c", _NOTE), ("queue",)),
        }[name]
        (folder / "application.py").write_text(_APPLICATION)
        self.name, self.works = name, works
        self._own, self._sequences = own, name in {"daemon", "upkeep"}
        self._published = 0
        self.running = Daemon(
            network.url, folder / name, given, {"PYTHONPATH": str(folder)}, program, network.prefix
        )

    def publish(self) -> None:
        """One more event."""
        self._published += 1
        publish(self._own, STREAM, str(self._published).encode())
        if not self._sequences:
            drain(self._own)

    def is_done(self, work: str) -> bool:
        """Whether the last event that was published is done."""
        if work == "sequencer":
            return not database.call(self._own, "unsequenced")[0][0]
        if work == "queue":
            return self._published in self._worked_off()
        name = SUBSCRIPTION if work == "stream" else RELAY
        return stream.position(self._own, name, STREAM)[0] == self._published

    def _worked_off(self) -> set[int]:
        if self.name == "work":
            return {int(line) for line in self.running.handled()}
        return {number - OF_QUEUE * (self.name == "worker") for number in self.effects()}

    def effects(self) -> list[int]:
        """What handlers have written."""
        return [number for (number,) in database.execute(self._own, "SELECT number FROM effects")]

    def times(self, begun: float | None = None) -> dict[str, float]:
        """After how many seconds each kind of work was done."""
        start = time.monotonic() if begun is None else begun
        done: dict[str, float] = {}

        def all_done() -> bool:
            assert self.running.process.poll() is None, self.running.text()
            for work in self.works:
                if work not in done and self.is_done(work):
                    done[work] = round(time.monotonic() - start, 1)
            return len(done) == len(self.works)

        until(all_done, f"{self.works}, and not only {done}", 90)
        return done


def _late(times: dict[str, float]) -> dict[str, float]:
    """Those beyond a lease and ten seconds."""
    return {work: seconds for work, seconds in times.items() if seconds > LEASES[work] + 10}


@proves("a silent connection stops nobody", how="with dropped packets and processes")
@pytest.mark.parametrize("name", ["daemon", "upkeep", "worker", "work"])
def test_it_goes_on(
    db: ContractDatabase, own: Connection, network: LossyNetwork, tmp_path: Path, name: str
) -> None:
    """And each effect is there once."""
    program = Program(own, network, tmp_path, name)
    found: dict[str, dict[str, float]] = {}
    try:
        program.publish()
        found["before"] = program.times()
        for flow_name, flow in sorted(network.flows.items()):
            if flow.is_open:
                network.lose(flow)
                program.publish()
                found[f"lost: {flow_name}"] = program.times()
        for flow in network.flows.values():
            network.lose(flow)
        program.publish()
        found["lost: all"] = program.times()
        with network.lost():
            program.publish()
            until(partial(_is_over, time.monotonic() + BLACKOUT_SECONDS), "the end", 60)
        found["after a blackout"] = program.times()
        if name == "worker":
            found["in its transactions"] = _lost_in_transactions(network, program, tmp_path)
        program.running.terminate()
        assert program.running.exit_code() == 0
    finally:
        program.running.kill()
        for what, times in found.items():
            logger.info("%s %s, %s: %s", db.engine, name, what, times)
    assert {what: late for what, times in found.items() if (late := _late(times))} == {}
    effects = program.effects()
    assert len(effects) == len(set(effects))


def _lost_in_transactions(
    network: LossyNetwork, program: Program, folder: Path
) -> dict[str, float]:
    """All flows are lost while both handlers are in their transactions."""
    (folder / "gate").touch()
    begun = folder / "begun"
    before = len(begun.read_text().split())
    program.publish()
    until(lambda: len(begun.read_text().split()) == before + 2, "both handlers are at work")
    for flow in network.flows.values():
        network.lose(flow)
    start = time.monotonic()
    (folder / "gate").unlink()
    return program.times(start)


def _is_over(until_then: float) -> bool:
    return time.monotonic() > until_then
