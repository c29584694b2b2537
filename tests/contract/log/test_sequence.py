"""S4 to S8: random publish, commit, rollback, sequence and fetch on every engine."""

from __future__ import annotations

import itertools
import random
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock import log
from penstock.errors import WrongIsolation
from penstock.publishing.publish import publish, publish_batch
from penstock.records import Message
from penstock.topics import names
from tests.contract.databases import ContractDatabase
from tests.contract.kit import open_transaction, sql
from tests.contract.stream_kit import without
from tests.kit.log import TOPIC, drain, put, read, texts, topic, wait_until
from tests.kit.proof import proves

pytestmark = pytest.mark.mariadb_differs("what the sequencer sees of open transactions")

PARTITIONS = 3
STEPS = 120


@dataclass
class Open:
    """A transaction: what it has published, and how much at each savepoint."""

    connection: Any
    events: list[int] = field(default_factory=list)
    savepoints: list[int] = field(default_factory=list)


class Run:
    """One random run, and what the log promises about it.

    The steps come one after the other, so what was committed before a publish call is known.
    """

    def __init__(self, db: ContractDatabase, seed: int) -> None:
        self.rng = random.Random(seed)
        self.own = db.connect()
        self.numbers = itertools.count(1)
        self.open = [Open(db.connect(autocommit=False)) for _ in range(4)]
        #: Of each event: how many steps had been done when it was published, and committed.
        self.published: dict[int, int] = {}
        self.committed: dict[int, int] = {}
        self.seen: list[list[int]] = [[] for _ in range(PARTITIONS)]

    def steps(self, number: int) -> None:
        """Random operations, and in the end everything is committed and sequenced."""
        for self.now in range(number):
            choose = self.rng.choices(
                [self.publish, self.savepoint, self.undo, self.end, self.sequence, self.look],
                weights=[8, 1, 1, 3, 4, 3],
            )[0]
            choose()
        for transaction in self.open:
            self.now += 1
            self.finish(transaction, commits=True)
        assert any(self.is_worked_off() for _ in range(20)), "the log does not end"
        self.look()
        self.judge()

    def is_worked_off(self) -> bool:
        """A large pass; whether nothing was left for it, nor comes after it."""
        result = log.sequence(self.own, 1000)
        return not result.sequenced and not result.more

    def publish(self) -> None:
        transaction = self.rng.choice(self.open)
        size = self.rng.choice([1, 1, 3])
        events = [next(self.numbers) for _ in range(size)]
        messages = [
            Message(TOPIC, str(event).encode(), partition=event % PARTITIONS) for event in events
        ]
        if size == 1:
            publish(
                transaction.connection, TOPIC, messages[0].payload, partition=events[0] % PARTITIONS
            )
        else:
            publish_batch(transaction.connection, messages)
        transaction.events += events
        self.published |= dict.fromkeys(events, self.now)

    def savepoint(self) -> None:
        transaction = self.rng.choice(self.open)
        sql(transaction.connection, f"SAVEPOINT s{len(transaction.savepoints)}")
        transaction.savepoints.append(len(transaction.events))

    def undo(self) -> None:
        transaction = self.rng.choice(self.open)
        if transaction.savepoints:
            kept = transaction.savepoints.pop()
            sql(transaction.connection, f"ROLLBACK TO SAVEPOINT s{len(transaction.savepoints)}")
            del transaction.events[kept:]

    def end(self) -> None:
        self.finish(self.rng.choice(self.open), commits=self.rng.random() < 0.75)

    def finish(self, transaction: Open, *, commits: bool) -> None:
        if commits:
            transaction.connection.commit()
            self.committed |= dict.fromkeys(transaction.events, self.now)
        else:
            transaction.connection.rollback()
        transaction.events, transaction.savepoints = [], []

    def sequence(self) -> None:
        size = self.rng.choice([1, 2, 3, 5, 1000])
        result = log.sequence(self.own, size)
        assert result.sequenced <= size
        assert not result.busy

    def look(self) -> None:
        """What was read once stays as it is, and nothing is read beyond the high watermark."""
        marks = log.high_watermarks(self.own, TOPIC)
        for partition, before in enumerate(self.seen):
            found = read(self.own, partition)
            assert [event.sequence for event in found] == list(range(1, marks[partition] + 1))
            present = [int(event.payload) for event in found]
            assert present[: len(before)] == before
            self.seen[partition] = present

    def judge(self) -> None:
        """Everything that was committed, once, in its partition, in the order that is promised."""
        for partition, found in enumerate(self.seen):
            assert sorted(found) == [
                e for e in sorted(self.committed) if e % PARTITIONS == partition
            ]
            for place, later in enumerate(found):
                for earlier in found[place + 1 :]:
                    assert not self.committed[earlier] < self.published[later]


def _run(db: ContractDatabase, seed: int) -> None:
    topic(db.connect(), PARTITIONS)
    Run(db, seed).steps(STEPS)


@proves("S2")
@proves("S4, S5")
@proves("S6")
@proves("S8")
@pytest.mark.parametrize("seed", range(3))
def test_the_log_keeps_its_promises(db: ContractDatabase, seed: int) -> None:
    """Guards: all of publish, sequence and fetch."""
    _run(db, seed)
    assert log.gaps(db.connect(), TOPIC) == []
    assert log.status(db.connect()).unsequenced_events == 0


MUTANTS = {
    "doubles": {
        "postgres": ("append_chunks", "SELECT c.first_sequence + c.event_count", "SELECT 1"),
        "mysql": (
            "forget_claimed",
            "DELETE p\n    FROM claimed AS c",
            "DELETE p\n    FROM (SELECT * FROM claimed WHERE FALSE) AS c",
        ),
        "memory": ("log.sequence", 'tx.delete("unsequenced", number)', "pass"),
    },
    "overlaps": {
        "postgres": (
            "append_chunks",
            "SELECT c.first_sequence + c.event_count",
            "SELECT c.first_sequence + 1",
        ),
        "mysql": (
            "append_chunks",
            "SELECT c.first_sequence + c.event_count",
            "SELECT c.first_sequence + 1",
        ),
        "memory": (
            "log._append",
            "high_watermark(tx, event.partition_id) + 1",
            "max(high_watermark(tx, event.partition_id), 1)",
        ),
    },
    "disorders": {
        "postgres": (
            "append_few",
            "array_agg(f.id ORDER BY f.id)",
            "array_agg(f.id ORDER BY random())",
        ),
        "mysql": ("collect_claimed", "ORDER BY c.block, l.n", "ORDER BY RAND()"),
        "memory": ("log.sequence", "ready[:max_events]", "ready[::-1][:max_events]"),
    },
    "shows too much": {
        "postgres": ("high_watermark", "c.event_count - 1", "c.event_count"),
        "mysql": ("high_watermarks", "c.event_count - 1", "c.event_count"),
        "memory": (
            "log.high_watermarks",
            "high_watermark(tx, each)",
            "high_watermark(tx, each) + 1",
        ),
    },
}


@proves("S4, S5", guard="the head of a partition, what is taken out of pending")
@proves("S6", guard="the order by id")
@proves("S8", guard="the end of the last chunk")
@proves("the test kit", guard="the guards of the log in memory")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_noticed(db: ContractDatabase, mutant: str) -> None:
    """Mutants of the sequencer: each one breaks a promise, or an index refuses it."""
    without(db, MUTANTS[mutant])
    with pytest.raises(Exception):  # noqa: B017 - an assertion, or what the driver raises
        _run(db, 0)


@proves("sequencers side by side", guard="the lock of the sequencer")
@proves("F5")
def test_only_one_sequencer_at_a_time(db: ContractDatabase) -> None:
    """Guard: the lock on the sequencer's row."""
    own = db.connect()
    topic(own)
    put(own, "1")
    with open_transaction(db) as other:
        assert log.sequence(other).sequenced == 1
        assert log.sequence(own).busy
        other.rollback()
    wait_until(lambda: not log.sequence(own).busy, "the lock is free")
    assert texts(own) == ["1"]


@proves("S4, S5")
def test_four_sequencers_race_with_publishers(db: ContractDatabase) -> None:
    """S4, S5 under real concurrency. Guard: the same lock."""
    own = db.connect()
    topic(own, 4)
    stop = threading.Event()
    failures: list[BaseException] = []

    def work(each: Any, act: Any) -> None:
        try:
            act(each)
        except BaseException as error:
            failures.append(error)

    def sequence(each: Any) -> None:
        while not stop.is_set():
            log.sequence(each, 50)

    def publisher(each: Any) -> None:
        for number in range(40):
            publish_batch(each, [Message(TOPIC, b"%d" % number, key=str(k)) for k in range(5)])
            each.commit()

    sequencers = [threading.Thread(target=work, args=(db.connect(), sequence)) for _ in range(4)]
    publishers = [
        threading.Thread(target=work, args=(db.connect(autocommit=False), publisher))
        for _ in range(3)
    ]
    for thread in sequencers + publishers:
        thread.start()
    for thread in publishers:
        thread.join(60)
    stop.set()
    for thread in sequencers:
        thread.join(60)
    assert failures == []
    drain(own)
    found = [event for partition in range(4) for event in read(own, partition)]
    assert len({event.event_id for event in found}) == len(found) == 3 * 40 * 5
    assert log.gaps(own, TOPIC) == []


@proves("F32", how="isolation")
def test_a_pass_needs_read_committed(db: ContractDatabase) -> None:
    """Guard: require_read_committed; under other levels locks reach into gaps."""
    with db.connect(autocommit=False) as strict:
        session = "" if db.engine == "postgres" else "SESSION "
        sql(strict, f"SET {session}TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(WrongIsolation):
            log.sequence(strict)


def test_what_is_published_to_a_deleted_topic_is_counted(db: ContractDatabase) -> None:
    """Guard: the sequencer looks for deleted topics."""
    own = db.connect()
    topic(own)
    with open_transaction(db) as late:
        put(late, "lost")
        names.delete_topic(own, TOPIC)
        late.commit()
    drain(own)
    assert db.run("SELECT address, discarded FROM penstock.deleted_topics") == [(TOPIC, 1)]


def test_a_batch_of_many_blocks(db: ContractDatabase) -> None:
    """Guard: ids of a batch rise in its order, however many are taken at once."""
    own = db.connect()
    topic(own, 2)
    publish_batch(own, [Message(TOPIC, b"%d" % n, partition=n % 2) for n in range(1500)])
    drain(own, 333)
    for partition in range(2):
        assert [int(text) for text in texts(own, partition)] == list(range(partition, 1500, 2))
