"""Publishers of every kind: batches, bulk, savepoints, two phases, strict, dedup keys, open long.

An event's id is drawn by its publisher, so that an answer of "duplicate" can be held against what
the publisher has sent under that key: it has to name an event that is in the log.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from penstock import database
from penstock.driver_errors import errno_of
from penstock.publishing.bulk import publish_bulk
from penstock.publishing.publish import publish, publish_batch
from penstock.records import Message
from tests.faults.history import Recorder

#: MySQL's answer to the victim of KILL QUERY.
QUERY_INTERRUPTED = 1317
KEYS_REMEMBERED = 200
#: How many transactions of two phases get no second one from their publisher.
LEFT_IN_DOUBT = 0.1
#: Begin, prepare, commit and roll back in two phases, by the kind of the connection.
TWO_PHASES = {
    "postgres": (
        [], ["PREPARE TRANSACTION '{}'"], "COMMIT PREPARED '{}'", "ROLLBACK PREPARED '{}'",
    ),
    "mysql": (
        ["XA START '{}'"], ["XA END '{}'", "XA PREPARE '{}'"], "XA COMMIT '{}'", "XA ROLLBACK '{}'",
    ),
}  # fmt: skip


@dataclass
class Staged:
    """What one transaction has published so far."""

    name: str
    events: list[str] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)
    #: Labels with their dedup keys.
    keys: dict[str, str] = field(default_factory=dict)
    #: Those that were answered as duplicates, with what the answer named.
    duplicates: list[tuple[str, str]] = field(default_factory=list)
    strict: bool = False

    def label(self) -> str:
        """The name of the next event."""
        self.events.append(f"{self.name}/{len(self.events)}")
        return self.events[-1]


class Crowd:
    """One publisher; an error of the connection is the caller's."""

    def __init__(self, given: argparse.Namespace, recorder: Recorder) -> None:
        self._given = given
        self._recorder = recorder
        self.chance = random.Random(f"{given.seed} {os.getpid()}")
        self._number = 0
        #: Dedup keys that may be used again, and the label of each event that was sent under them.
        self._sent: OrderedDict[str, dict[uuid.UUID, str]] = OrderedDict()
        self._ways = {
            "few": self._few, "batch": self._batch, "bulk": self._bulk, "strict": self._strict,
            "dedup": self._dedup, "undone": self._undone,
        }  # fmt: skip

    def publish(self, connection: Any) -> None:
        """One transaction."""
        self._number += 1
        staged = Staged(f"{self._given.name}-{os.getpid()}-{self._number}")
        dialect = database.dialect_of(connection)
        way = self._way(dialect)
        # What has used a temporary table cannot be prepared.
        two_phases = way != "bulk" and self.chance.random() < self._given.two_phases
        keeps = self.chance.random() > self._given.rollbacks
        self._recorder.write("publish", "invoke", tx=staged.name, way=way, two=two_phases)
        outcome, problem = "fail", ""
        try:
            if two_phases:
                _run(connection, TWO_PHASES[dialect][0], staged.name)
            self._fill(connection, staged, way)
            self._recorder.write(
                "stage", "ok", tx=staged.name, events=staged.events, undone=staged.undone,
                **{"keys": staged.keys, "duplicates": staged.duplicates} if staged.keys else {},
                **{"strict": True} if staged.strict else {},
            )  # fmt: skip
            if two_phases:
                outcome = "info"
                self._prepare(connection, dialect, staged.name, keeps)
                outcome = "ok" if keeps else "fail"
            elif keeps:
                outcome = "info"
                connection.commit()
                outcome = "ok"
            else:
                connection.rollback()
        except BaseException as error:
            problem = f"{type(error).__name__}: {error}"[:200]
            raise
        finally:
            more = {"error": problem} if problem else {}
            count = len(staged.events) - len(staged.undone)
            self._recorder.write("publish", outcome, tx=staged.name, count=count, way=way, **more)

    def _way(self, dialect: str) -> str:
        """What the transaction is to do."""
        wanted = self._given.way or [
            "few",
            "few",
            "batch",
            "batch",
            "bulk",
            "strict",
            "dedup",
            "undone",
        ]
        way = self.chance.choice(wanted)
        return "batch" if way == "bulk" and dialect != "postgres" else way

    def _fill(self, connection: Any, staged: Staged, way: str) -> None:
        self._ways[way](connection, staged)
        if self._given.hold and self.chance.random() < self._given.holds:
            self._recorder.write("hold", "ok", tx=staged.name, seconds=self._given.hold)
            _sleep(self._given.hold)
            self._few(connection, staged)
        elif self.chance.random() < self._given.late:
            _sleep(self.chance.uniform(0.05, 0.5))

    def _prepare(self, connection: Any, dialect: str, name: str, keeps: bool) -> None:
        """Both phases, with a while between them; who settles those of the dead is the nemesis."""
        _, prepare, commit, roll_back = TWO_PHASES[dialect]
        _run(connection, prepare, name)
        if dialect == "postgres":
            connection.autocommit = True  # the second phase is no part of a transaction
        if self.chance.random() < LEFT_IN_DOUBT:
            raise ConnectionAbortedError("left in doubt")
        if self.chance.random() < 0.3:
            _sleep(self.chance.uniform(0.05, 1))
        _run(connection, [commit if keeps else roll_back], name)
        if dialect == "postgres":
            connection.autocommit = False

    def _few(self, connection: Any, staged: Staged) -> None:
        """Single calls, some of them taken back."""
        for _ in range(self.chance.randint(1, 5)):
            with self._perhaps_undone(connection, staged):
                label = staged.label()
                publish(connection, self._given.topic, self._payload(label), key=self._key())

    def _batch(self, connection: Any, staged: Staged) -> None:
        for _ in range(self.chance.randint(1, 2)):
            with self._perhaps_undone(connection, staged):
                publish_batch(connection, self._messages(staged))

    def _bulk(self, connection: Any, staged: Staged) -> None:
        publish_bulk(connection, self._messages(staged, 2))

    def _undone(self, connection: Any, staged: Staged) -> None:
        """A savepoint within a savepoint, of which one or both are taken back."""
        self._few(connection, staged)
        database.execute(connection, "SAVEPOINT outer_one")
        before = len(staged.events)
        publish_batch(connection, self._messages(staged))
        self._few(connection, staged)
        if self.chance.random() < 0.5:
            database.execute(connection, "ROLLBACK TO SAVEPOINT outer_one")
            staged.undone += [each for each in staged.events[before:] if each not in staged.undone]
        self._few(connection, staged)

    def _strict(self, connection: Any, staged: Staged) -> None:
        """Keys of their own, all strict; in one order, so that publishers do not meet head-on."""
        staged.strict = True
        keys = sorted(self.chance.sample([f"s{number}" for number in range(6)], 2))
        sent = [Message(self._given.topic, self._payload(staged.label()), key=key) for key in keys]
        if self.chance.random() < 0.5:
            publish_batch(connection, sent, strict=True)
            return
        for message, key in zip(sent, keys, strict=True):
            publish(connection, self._given.topic, message.payload, key=key, strict=True)

    def _dedup(self, connection: Any, staged: Staged) -> None:
        """Keys that are new, and keys whose outcome is known, unknown or "rolled back"."""
        while len(self._sent) > KEYS_REMEMBERED:  # before it chooses: what is sent is remembered
            self._sent.popitem(last=False)
        old = list(self._sent)
        again = self.chance.sample(old, min(len(old), self.chance.randint(0, 10)))
        newest = old[-5:]  # what has just failed, or nobody knows of
        new = [f"{staged.name}#{number}" for number in range(self.chance.randint(1, 10))]
        keys = list(dict.fromkeys([*newest, *again, *new]))
        if self.chance.random() < 0.2:
            database.execute(connection, "SAVEPOINT undone")
            before = len(staged.events)
            self._send(connection, staged, keys)
            staged.undone += [each for each in staged.events[before:] if each not in staged.undone]
            database.execute(connection, "ROLLBACK TO SAVEPOINT undone")
        self._send(connection, staged, keys)

    def _send(self, connection: Any, staged: Staged, keys: list[str]) -> None:
        labels = {key: staged.label() for key in keys}
        messages = []
        for key, label in labels.items():
            staged.keys[label] = key
            event_id = uuid.uuid4()
            self._sent.setdefault(key, {})[event_id] = label
            topic, payload = self._given.topic, self._payload(label)
            ids: dict[str, Any] = {"event_id": event_id, "dedup_key": key}
            messages.append(Message(topic, payload, key=self._key(), **ids))
        answered = self._persistently(connection, messages)
        for message, event_id in zip(messages, answered, strict=True):
            if event_id == message.event_id:
                continue
            assert message.dedup_key is not None
            label = labels[message.dedup_key]
            known = self._sent[message.dedup_key]
            staged.duplicates.append((label, known.get(event_id, str(event_id))))
            staged.undone.append(label)

    def _persistently(self, connection: Any, messages: list[Message]) -> list[uuid.UUID]:
        """As a client with a time limit for each query does it: once more in the transaction."""
        try:
            return publish_batch(connection, messages)
        except Exception as error:
            if errno_of(error) != QUERY_INTERRUPTED:
                raise
        return publish_batch(connection, messages)

    @contextlib.contextmanager
    def _perhaps_undone(self, connection: Any, staged: Staged) -> Iterator[None]:
        if self.chance.random() >= 0.1:
            yield
            return
        before = len(staged.events)
        database.execute(connection, "SAVEPOINT undone")
        yield
        staged.undone += staged.events[before:]
        database.execute(connection, "ROLLBACK TO SAVEPOINT undone")

    def _messages(self, staged: Staged, times: int = 1) -> list[Message]:
        largest = self._given.largest * times
        count = self.chance.choice([2, largest // 4 + 1, self.chance.randint(2, largest)])
        return [
            Message(self._given.topic, self._payload(staged.label()), key=self._key())
            for _ in range(count)
        ]

    def _payload(self, label: str) -> bytes:
        """The label, and sometimes much more."""
        return label.encode() + b" " * (self.chance.random() < 0.02) * self.chance.randint(1, 9000)

    def _key(self) -> str:
        return f"k{self.chance.randrange(self._given.keys)}"


def _run(connection: Any, statements: list[str], name: str) -> None:
    for each in statements:
        database.execute(connection, each.format(name))


def _sleep(seconds: float) -> None:
    threading.Event().wait(seconds)


def crowd_on(given: argparse.Namespace, recorder: Recorder, stop: threading.Event) -> None:
    """Publish until told to stop, over lost connections; what it met is in its history."""
    crowd = Crowd(given, recorder)
    while not stop.is_set():
        with (
            contextlib.suppress(Exception),
            contextlib.closing(database.connect(given.url, autocommit=False)) as connection,
        ):
            while not stop.wait(crowd.chance.uniform(0, 2 * given.pause)):
                crowd.publish(connection)
        stop.wait(crowd.chance.uniform(0.05, 0.3))
