"""A consumer that is stopped, and one whose round takes long: finished events are committed."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.consumer.stream.consumer import Consumer
from penstock.records import Event
from tests.contract.consumer.test_consumer_work import Gate
from tests.contract.databases import ContractDatabase
from tests.kit.proof import proves
from tests.kit.stream import SUBSCRIPTION, filled, running, slow_leases, stored


def _consumer(db: ContractDatabase, **options: Any) -> Consumer:
    return Consumer(db.url, SUBSCRIPTION, consumer_id="a", idle_seconds=0.05, **options)


def _stopped_during_the_first(db: ContractDatabase, **options: Any) -> tuple[int, int]:
    """Of four partitions with two events each: how many were handled, and how many are passed."""
    own = db.connect()
    filled(own, partitions=4, events=2)
    slow_leases(own)
    gate, seen = Gate(), list[tuple[int, int]]()

    def handle(event: Event) -> None:
        seen.append((event.partition, event.sequence))
        gate.wait()

    with running(_consumer(db, handler=handle, **options)) as stop:
        gate.reached.wait(30)
        stop.set()
        gate.open()
    return len(seen), sum(stored(own, number) for number in range(4))


@proves("F2 within a round")
def test_who_is_told_to_stop_begins_nothing_more(db: ContractDatabase) -> None:
    """F2. Guard: Rounds.is_stopping, between two events too; what was done is committed."""
    assert _stopped_during_the_first(db) == (1, 1)


@proves("F2 within a round", guard="Rounds.is_stopping")
def test_without_a_look_at_the_stop_the_round_goes_on(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: all that was read is handled first."""
    monkeypatch.setattr(Consumer, "is_stopping", lambda _: False)
    assert _stopped_during_the_first(db) == (8, 8)


def _committed_meanwhile(db: ContractDatabase) -> list[int]:
    """How many events are passed when each of four partitions comes to its turn in a round."""
    own, watcher = db.connect(), db.connect()
    filled(own, partitions=4, events=1)
    passed: list[int] = []

    def handle(_: Event) -> None:
        passed.append(sum(stored(watcher, number) for number in range(4)))

    _consumer(db, handler=handle, commit_every_seconds=0).run_until_idle()
    return passed


@proves("F2 within a round")
def test_a_long_round_commits_when_it_is_time(db: ContractDatabase) -> None:
    """Guard: Consumer._committed_between; else a crash repeats all of a round of slow handlers."""
    assert _committed_meanwhile(db) == [0, 1, 2, 3]


@proves("F2 within a round", guard="Consumer._committed_between")
def test_without_it_a_round_is_one_commit(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant."""
    monkeypatch.setattr(Consumer, "_committed_between", lambda _self, _connection, before: before)
    assert _committed_meanwhile(db) == [0, 0, 0, 0]
