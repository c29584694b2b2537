"""One process of a fault test: a consumer, publisher or sequencer that records its history.

    python -m tests.faults.worker consumer --url URL --history FOLDER --name c1 --subscription exact
    python -m tests.faults.worker publisher --url URL --history FOLDER --name p1 --seed 7
    python -m tests.faults.worker sequencer --url URL --history FOLDER --name s1

SIGTERM ends it in order, with exit code 0.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock import database
from penstock.consumer.running.worker import ConsumerWorker
from penstock.consumer.stream.consumer import Batch, Consumer
from penstock.errors import PenstockError
from penstock.publishing.publish import publish
from penstock.records import Event
from penstock.upkeep.sequencing import sequence_round
from tests.faults.archiver import archive_on, clean_behind, publish_odd_on
from tests.faults.crowd import crowd_on
from tests.faults.history import Recorder
from tests.faults.hooks import Failpoints, Recorded, label_of
from tests.faults.janitor import clean_on
from tests.faults.poison import Poison
from tests.faults.queue_worker import run_command, work_off
from tests.faults.raw import raw_on


class Handlers:
    """The two kinds of consumers: exactly-once effect by the batch, at least once by the event."""

    def __init__(self, given: argparse.Namespace, recorded: Recorded) -> None:
        self._given = given
        self._recorded = recorded
        self._recorder = recorded.recorder
        self._failpoints = recorded.failpoints
        self._poison = Poison(given)

    def exact(self, batch: Batch) -> None:
        """Effects and position in one transaction."""
        self._failpoints.hit("handle.before")
        sent = 0.0
        try:
            with batch.transaction() as connection:
                for event in batch:
                    self._poison.act(event)
                self._write(connection, batch)
                self._failpoints.hit("handle.after")
                self._failpoints.hit("commit.before")
                sent = time.monotonic()
        except BaseException as error:
            certain = not sent or isinstance(error, PenstockError)
            self._recorded.committed("fail" if certain else "info", error=type(error).__name__)
            raise
        self._recorded.committed("ok", sent=sent)
        self._failpoints.hit("commit.after")

    def least(self, event: Event) -> None:
        """The position moves after the effect."""
        self._failpoints.hit("handle.before")
        begun = self._recorder.begun()
        self._poison.act(event)
        self._recorder.write(
            "handle", "ok", sub=self._given.subscription, partition=event.partition,
            sequence=event.sequence, label=label_of(event), key=event.key, **begun,
        )  # fmt: skip
        self._failpoints.hit("handle.after")

    def _write(self, connection: Any, batch: Batch) -> None:
        binds: dict[str, Any] = {"sub": self._given.subscription}
        rows = []
        for number, event in enumerate(batch):
            binds[f"l{number}"] = label_of(event)
            rows.append(f"(%(sub)s, {event.partition}, {event.sequence}, %(l{number})s)")
        columns = "INSERT INTO effects (sub, part, seq, label) VALUES "
        database.execute(connection, columns + ", ".join(rows), binds)


def consume(given: argparse.Namespace, recorder: Recorder, stop: threading.Event) -> None:
    """A consumer under the loop that the daemon and ``penstock worker`` use."""
    exact = given.subscription == "exact"
    recorded = Recorded(recorder, Failpoints(given.failpoint, recorder), in_transaction=exact)
    handlers = Handlers(given, recorded)

    def make() -> Consumer:
        return Consumer(
            given.url, given.subscription, consumer_id=given.name, batch_size=given.batch,
            idle_seconds=0.05, handler_seconds=given.handler_seconds,
            **{"batch_handler": handlers.exact} if exact else {"handler": handlers.least},
        )  # fmt: skip

    ConsumerWorker(given.name, make).run(stop)


class Publisher:
    """Transactions of one to five events, some rolled back, with savepoints, some open for long."""

    def __init__(self, given: argparse.Namespace, recorder: Recorder) -> None:
        self._given = given
        self._recorder = recorder
        self._chance = random.Random(given.seed)
        self._number = 0

    def publish(self, connection: Any) -> None:
        """One transaction; an error of the connection is the caller's."""
        self._number += 1
        name = f"{self._given.name}-{os.getpid()}-{self._number}"
        chance = self._chance
        keeps = chance.random() > self._given.rollbacks
        self._recorder.write("publish", "invoke", tx=name)
        outcome = "fail"
        try:
            events, undone = self._events(connection, name)
            if chance.random() < self._given.late:
                time.sleep(chance.uniform(0.05, 0.5))
            self._recorder.write("stage", "ok", tx=name, events=events, undone=undone)
            if keeps:
                outcome = "info"
                connection.commit()
                outcome = "ok"
            else:
                connection.rollback()
        finally:
            self._recorder.write("publish", outcome, tx=name)

    def _events(self, connection: Any, name: str) -> tuple[list[str], list[str]]:
        chance = self._chance
        events, undone = [], []
        for number in range(chance.randint(1, 5)):
            label = f"{name}/{number}"
            poison = chance.choice(self._given.poison) if self._poisons() else ""
            taken_back = chance.random() < 0.1
            if taken_back:
                database.execute(connection, "SAVEPOINT undone")
            payload = f"{label} {poison}".strip().encode()
            publish(
                connection, self._given.topic, payload, key=f"k{chance.randrange(self._given.keys)}"
            )
            events.append(label)
            if taken_back:
                undone.append(label)
                database.execute(connection, "ROLLBACK TO SAVEPOINT undone")
        return events, undone

    def _poisons(self) -> bool:
        return bool(self._given.poison) and self._chance.random() < self._given.poisons


def publish_on(given: argparse.Namespace, recorder: Recorder, stop: threading.Event) -> None:
    """Publish until told to stop, over lost connections."""
    publisher = Publisher(given, recorder)
    while not stop.is_set():
        # What it met is in its history; it connects again.
        with contextlib.suppress(Exception), _open(given.url, autocommit=False) as connection:
            while not stop.wait(given.pause):
                publisher.publish(connection)
        stop.wait(random.uniform(0.05, 0.3))


def sequence_on(given: argparse.Namespace, recorder: Recorder, stop: threading.Event) -> None:
    """Sequence until told to stop, over lost connections."""
    while not stop.is_set():
        with contextlib.suppress(Exception), _open(given.url, autocommit=True) as connection:
            while not stop.wait(given.pause):
                sequence_round(connection)
        stop.wait(random.uniform(0.05, 0.3))


@contextlib.contextmanager
def _open(url: str, *, autocommit: bool) -> Iterator[Any]:
    connection = database.connect(url, autocommit=autocommit)
    try:
        yield connection
    finally:
        connection.close()


ROLES = {
    "consumer": consume, "publisher": publish_on, "sequencer": sequence_on,
    "crowd": crowd_on, "raw": raw_on, "janitor": clean_on,
    "worker": work_off, "command": run_command,
    "archiver": archive_on, "cleaner": clean_behind, "odd": publish_odd_on,
}  # fmt: skip


def stopped_by_signal() -> threading.Event:
    """Set at SIGTERM, by a thread: a signal handler may interrupt who holds the event's lock."""
    stop, asked = threading.Event(), queue.SimpleQueue[None]()
    signal.signal(signal.SIGTERM, lambda *_: asked.put(None))

    def wait() -> None:
        asked.get()
        stop.set()

    threading.Thread(target=wait, daemon=True).start()
    return stop


def _add_those_of_the_attack(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--way", action="append", help="what transactions do; all by default")
    parser.add_argument("--largest", type=int, default=200, help="events of a batch")
    parser.add_argument("--two-phases", type=float, default=0.15)
    parser.add_argument("--hold", type=float, default=0, help="seconds that some are open for")
    parser.add_argument("--holds", type=float, default=0.5, help="how many of them are")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--url", required=True)
    parser.add_argument("--history", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skew", type=float, default=0, help="what time.time is wrong by")
    parser.add_argument("--subscription", default="exact")
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--concurrency", type=int, default=2, help="handlers of a queue's worker")
    parser.add_argument("--seconds", type=float, default=0, help="the work for each event")
    parser.add_argument("--failpoint", action="append", default=[])
    parser.add_argument("--immune", action="store_true", help="poison does nothing")
    parser.add_argument("--always", action="store_true", help="poison acts each time")
    parser.add_argument("--handler-seconds", type=float)
    parser.add_argument("--topic", default="faults/stream")
    parser.add_argument("--keys", type=int, default=13)
    parser.add_argument("--rollbacks", type=float, default=0.2)
    parser.add_argument("--late", type=float, default=0.03)
    parser.add_argument("--pause", type=float, default=0.01)
    parser.add_argument("--poison", action="append", default=[])
    parser.add_argument("--poisons", type=float, default=0.004, help="how many events are")
    _add_those_of_the_attack(parser)
    given = parser.parse_args()
    if given.skew:
        right, skew = time.time, given.skew
        time.time = lambda: right() + skew
    stop = stopped_by_signal()
    recorder = Recorder(Path(given.history), given.name)
    recorder.write("start", "ok", role=given.role)
    ROLES[given.role](given, recorder, stop)
    recorder.write("end", "ok", role=given.role)


if __name__ == "__main__":
    main()
