"""S19: log epochs follow each other without a gap, and a sealed one gets no more events."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ops.seal import log_epochs, seal
from penstock import database, log
from penstock.publishing.publish import publish
from penstock.records import LogEpoch
from tests.contract.databases import ContractDatabase
from tests.contract.kit import open_transaction
from tests.contract.stream_kit import Guard, without
from tests.kit.log import TOPIC, drain, put, read, topic
from tests.kit.proof import proves

PARTITIONS = 2
STEPS = 60

#: The next log epoch begins where the last one ends.
OVERLAP: Guard = {
    "postgres": (
        "seal",
        "COALESCE(previous.last_sequence, 0) + 1;",
        "GREATEST(COALESCE(previous.last_sequence, 1), 1);",
    ),
    "mysql": (
        "seal",
        "COALESCE(MAX(e.last_sequence), 0) + 1 INTO",
        "GREATEST(COALESCE(MAX(e.last_sequence), 1), 1) INTO",
    ),
}
#: A seal of the same partition waits for the one before it.
NO_LOCK: Guard = {
    "postgres": (
        "seal",
        "PERFORM FROM partitions AS p WHERE p.id = source_id FOR NO KEY UPDATE;",
        "",
    ),
    "mysql": ("seal", "WHERE p.id = source_id FOR UPDATE)", "WHERE p.id = source_id)"),
}


def _content(connection: Any, epoch: LogEpoch) -> list[bytes]:
    found = log.fetch(
        connection, TOPIC, epoch.partition, epoch.first_sequence, max(epoch.event_count, 1)
    )
    return [bytes(event.payload) for event in found]


def _run(db: ContractDatabase, seed: int) -> None:
    """Random publish, late commit, sequence and seal; what was sealed is compared at every look."""
    chance = random.Random(seed)
    own = db.connect()
    topic(own, PARTITIONS)
    sealed: dict[tuple[int, int], tuple[LogEpoch, list[bytes]]] = {}
    with open_transaction(db) as late:
        steps: list[Callable[[], object]] = [
            lambda: publish(own, TOPIC, b"%d" % chance.randrange(10**6), key=str(chance.random())),
            lambda: publish(late, TOPIC, b"late", partition=chance.randrange(PARTITIONS)),
            late.commit,
            lambda: log.sequence(own, chance.choice([1, 3, 100])),
            lambda: seal(
                own, TOPIC, max_events=chance.choice([1, 2, 5]),
                max_age_seconds=chance.choice([None, 0]),
            ),
        ]  # fmt: skip
        for _ in range(STEPS):
            chance.choices(steps, weights=[8, 2, 1, 3, 2])[0]()
            for epoch in log_epochs(own, TOPIC):
                place = (epoch.partition, epoch.log_epoch)
                present = (epoch, _content(own, epoch))
                assert sealed.setdefault(place, present) == present
    drain(own)
    seal(own, TOPIC, max_events=3, max_age_seconds=0)
    for partition in range(PARTITIONS):
        epochs = [each for each in log_epochs(own, TOPIC) if each.partition == partition]
        covered = [n for e in epochs for n in range(e.first_sequence, e.last_sequence + 1)]
        assert covered == [event.sequence for event in read(own, partition)]
        assert [each.log_epoch for each in epochs] == list(range(1, len(epochs) + 1))
        assert all(each.event_count == len(_content(own, each)) for each in epochs)


@proves("S19")
@pytest.mark.parametrize("seed", range(2))
def test_what_is_sealed_stays_and_the_next_begins_behind_it(
    db: ContractDatabase, seed: int
) -> None:
    """Guards: a seal reaches to the high watermark, and begins after the last one."""
    _run(db, seed)


@proves("S19", guard="the begin")
def test_log_epochs_that_overlap_are_noticed(db: ContractDatabase) -> None:
    """Mutant: the next log epoch begins with the last event of the one before."""
    without(db, OVERLAP)
    with pytest.raises(Exception):  # noqa: B017 - an assertion, or the key that refuses it
        _run(db, 0)


def _two_at_once(db: ContractDatabase) -> list[tuple[int, int, int]]:
    """Two sessions seal the same partition, the first commits while the second is at it."""
    own, second = db.connect(), db.connect()
    topic(own)
    for number in range(4):
        put(own, str(number))
    drain(own)
    with open_transaction(db) as first, ThreadPoolExecutor(1) as pool:
        _seal(first)
        waiting = pool.submit(_seal, second)
        try:
            db.wait_until_blocked(second)
        finally:
            first.commit()
            waiting.result()
    found = log_epochs(own, TOPIC)
    return [(each.log_epoch, each.first_sequence, each.last_sequence) for each in found]


def _seal(connection: Any) -> None:
    binds = {"topic": TOPIC, "partition": 0, "max_events": 2, "max_age_seconds": None}
    database.call(connection, "seal", **binds)


@proves("S19")
def test_two_seals_follow_each_other(db: ContractDatabase) -> None:
    """Guard: the lock on the partition."""
    assert _two_at_once(db) == [(1, 1, 2), (2, 3, 4)]


@proves("S19", guard="the lock on the partition")
def test_without_the_lock_they_meet_at_the_key(db: ContractDatabase) -> None:
    """Mutant: nobody locks; the fence beneath it, the key of log epochs, refuses the second."""
    without(db, NO_LOCK)
    with pytest.raises(Exception):  # noqa: B017 - what the driver says of a duplicate
        _two_at_once(db)
