"""Random publish, commit, rollback, sequence and fetch against a model in Python."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

import psycopg
import pytest

from penstock import log
from penstock.publishing.publish import publish
from tests.guards import without_guard
from tests.kit.log import TOPIC, Connection, topic
from tests.kit.proof import proves

PARTITIONS = 2
STEPS = 220


@dataclass
class Open:
    """A transaction of the model: what it has published, and how much at each savepoint."""

    connection: Connection
    events: list[tuple[int, int]] = field(default_factory=list)
    savepoints: list[int] = field(default_factory=list)


@dataclass
class Model:
    """What the log must hold. An event is (order of its publish call, partition)."""

    committed: list[tuple[int, int]] = field(default_factory=list)
    tick: list[tuple[int, int]] = field(default_factory=list)
    goes_on: bool = False
    partitions: list[list[int]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])

    def sequence(self, max_events: int) -> tuple[int, bool]:
        """One pass: how many events, and whether to call again at once."""
        begun = not self.goes_on
        if begun:
            self.tick, self.committed = sorted(self.committed), []
        done, self.tick = self.tick[:max_events], self.tick[max_events:]
        for number, partition in done:
            self.partitions[partition].append(number)
        self.goes_on = len(done) == max_events
        return len(done), self.goes_on or not begun


class Run:
    """One random run; every step is compared with the model."""

    def __init__(self, connection: Connection, url: str, seed: int) -> None:
        self.rng = random.Random(seed)
        self.connection = connection
        self.numbers = itertools.count(1)
        self.model = Model()
        self.open = [Open(psycopg.connect(url)) for _ in range(4)]

    def step(self) -> None:
        """One random operation."""
        choose = self.rng.choices(
            [self.publish, self.savepoint, self.undo, self.end, self.sequence, self.fetch],
            weights=[8, 1, 1, 3, 4, 3],
        )[0]
        choose()

    def publish(self) -> None:
        transaction = self.rng.choice(self.open)
        number, partition = next(self.numbers), self.rng.randrange(PARTITIONS)
        publish(transaction.connection, TOPIC, str(number).encode(), partition=partition)
        transaction.events.append((number, partition))

    def savepoint(self) -> None:
        transaction = self.rng.choice(self.open)
        transaction.connection.execute(f"SAVEPOINT s{len(transaction.savepoints)}".encode())
        transaction.savepoints.append(len(transaction.events))

    def undo(self) -> None:
        transaction = self.rng.choice(self.open)
        if transaction.savepoints:
            kept = transaction.savepoints.pop()
            name = f"s{len(transaction.savepoints)}"
            transaction.connection.execute(f"ROLLBACK TO SAVEPOINT {name}".encode())
            transaction.connection.execute(f"RELEASE SAVEPOINT {name}".encode())
            del transaction.events[kept:]

    def end(self) -> None:
        transaction = self.rng.choice(self.open)
        if self.rng.random() < 0.75:
            transaction.connection.commit()
            self.model.committed += transaction.events
        else:
            transaction.connection.rollback()
        transaction.events, transaction.savepoints = [], []

    def sequence(self) -> None:
        size = self.rng.choice([1, 2, 3, 5, 1000])
        result = log.sequence(self.connection, size)
        assert (result.sequenced, result.more) == self.model.sequence(size)

    def fetch(self) -> None:
        partition = self.rng.randrange(PARTITIONS)
        expected = self.model.partitions[partition]
        start = self.rng.randint(1, len(expected) + 2)
        count = self.rng.choice([1, 3, 500])
        found = log.fetch(self.connection, TOPIC, partition, start, count)
        assert [int(event.payload) for event in found] == expected[start - 1 : start - 1 + count]
        assert [event.sequence for event in found] == list(range(start, start + len(found)))
        assert log.high_watermarks(self.connection, TOPIC)[partition] == len(expected)

    def close(self) -> None:
        for transaction in self.open:
            transaction.connection.close()


def _run(connection: Connection, url: str, seed: int) -> None:
    topic(connection, PARTITIONS)
    run = Run(connection, url, seed)
    try:
        for _ in range(STEPS):
            run.step()
    finally:
        run.close()


@proves("S4, S5", how="PostgreSQL against a model")
@proves("S2, S6, few")
@pytest.mark.parametrize("seed", range(4))
def test_the_log_does_what_the_model_does(
    connection: Connection, database_url: str, seed: int
) -> None:
    """Guards: all of sequence and fetch; of every second run, without append_few."""
    if seed % 2:
        without_guard(connection, "sequence", "LEAST(max_events, 1000)", "0")
    _run(connection, database_url, seed)


@proves("S2, S6, few", guard="the two snapshots, the order")
@pytest.mark.parametrize(
    ("function", "old", "new"),
    [
        ("fresh_events", "WHERE pg_visible_in_snapshot(x.tx, fresh_events.target)", "WHERE false"),
        ("sequence", "pass.seen < max_events, tick", "true, tick"),
        ("near_events", "AND NOT pg_visible_in_snapshot(e.tx, near_events.base)", ""),
        ("append_chunks", "SELECT c.first_sequence + c.event_count", "SELECT c.first_sequence + 1"),
        ("append_few", "SELECT c.first_sequence + c.event_count", "SELECT c.first_sequence"),
        ("append_few", "o.tx = ANY (append_few.late)", "false"),
        ("append_few", "array_agg(f.id ORDER BY f.id)", "array_agg(f.id ORDER BY f.id DESC)"),
        (
            "read_log",
            "generate_series(part.lowest, part.highest)",
            "generate_series(part.lowest + 1, part.highest + 1)",
        ),
    ],
)
def test_the_model_notices_a_mutant(
    connection: Connection, database_url: str, function: str, old: str, new: str
) -> None:
    """Mutants of the sequencer and of fetch: each one differs from the model."""
    without_guard(connection, function, old, new)
    with pytest.raises((AssertionError, psycopg.Error)):
        _run(connection, database_url, 0)
