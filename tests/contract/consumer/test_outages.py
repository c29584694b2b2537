"""A lease that comes back: events committed meanwhile are neither read nor handled again."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest

from penstock import subscriptions
from penstock.consumer.stream.assignment import PartitionBuffers
from penstock.consumer.stream.committing import Committer
from penstock.consumer.stream.consumer import Batch, Consumer
from penstock.leases.database_keeper import LeaseKeeper
from penstock.leases.keeper import Keeper
from penstock.subscriptions import stream
from tests.contract.databases import ContractDatabase
from tests.contract.kit import kill
from tests.kit.log import wait_until
from tests.kit.proof import proves
from tests.kit.stream import (
    SUBSCRIPTION,
    Clock,
    beat,
    check_in,
    filled,
    holders,
    more,
    running,
    slow_leases,
    stored,
)

pytestmark = pytest.mark.mariadb_differs("how a session ends")


@proves("S13 over an outage")
@proves("D5 around a lost connection")
def test_what_was_committed_before_the_connection_was_lost_is_not_read_again(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: Keeper.look_again; the keeper has not heard of a commit that a handler made."""
    assert _read_around_a_lost_connection(db, monkeypatch) == list(range(1, 11))


@proves("S13 over an outage", guard="the consumer asks where it stands")
@proves("D5 around a lost connection", guard="Keeper.look_again and those beside it")
def test_without_a_second_look_it_is_read_again(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the consumer goes on from where it last heard that the position was."""
    monkeypatch.setattr(Keeper, "look_again", lambda *_: None)
    assert _read_around_a_lost_connection(db, monkeypatch) == [*range(1, 6), *range(1, 11)]


def _sequences_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What polls return from now on."""
    read: list[int] = []
    poll = stream.poll

    def seen(*given: Any) -> Any:
        polled = poll(*given)
        read.extend(event.sequence for _, events in polled for event in events)
        return polled

    monkeypatch.setattr(stream, "poll", seen)
    return read


def _read_around_a_lost_connection(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """The sequences that were read while a handler's connection ended after its first commit."""
    own, watcher = db.connect(), db.connect()
    filled(own, events=5)
    slow_leases(own)
    read = _sequences_read(monkeypatch)
    calls = [0]

    def handle(batch: Batch) -> None:
        with batch.transaction() as transaction:
            calls[0] += 1
        if calls[0] == 1:
            more(own, events=5, start=6)
            kill(db, transaction)
            with pytest.raises(Exception):  # noqa: B017 - each driver has its own
                stored(transaction)

    with running(Consumer(db.url, SUBSCRIPTION, batch_handler=handle, idle_seconds=0.05)):
        wait_until(lambda: stored(watcher) == 10, "all are handled")
    return read


@proves("S13 over an outage")
@proves("L2 over an outage")
def test_what_a_handler_commits_behind_an_outage_is_not_handled_again(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: PartitionBuffers.busy, Committer.look_at_late_commit; the next session holds it."""
    read, handled = _handled_around_an_outage(db, monkeypatch)
    assert read == list(range(1, 11))
    assert handled == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]


@proves("S13 over an outage", guard="late commits")
@proves("L2 over an outage", guard="busy")
@pytest.mark.parametrize(
    ("owner", "guard"), [(Committer, "look_at_late_commit"), (PartitionBuffers, "busy")]
)
def test_without_a_look_at_late_commits_they_are_handled_again(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch, owner: type, guard: str
) -> None:
    """Mutants: what comes back of an earlier session says nothing; it is not waited for."""
    monkeypatch.setattr(owner, guard, lambda *_: set())
    reads_at_once = guard == "busy"
    found = _handled_around_an_outage(db, monkeypatch, reads_at_once=reads_at_once)
    assert found[1][1][0] == 1


def _handled_around_an_outage(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch, *, reads_at_once: bool = False
) -> tuple[list[int], list[list[int]]]:
    """What was read, and given to a handler in a thread that commits after an outage.

    ``reads_at_once``: the next session reads while that handler is still at work.
    """
    own, watcher = db.connect(), db.connect()
    filled(own, events=5)
    slow_leases(own)
    read = _sequences_read(monkeypatch)
    handled: list[list[int]] = []
    sessions: list[Any] = []
    turns = Counter[int]()
    consumer = Consumer(
        db.url, SUBSCRIPTION, batch_handler=lambda batch: handle(batch), consumer_id="a",
        idle_seconds=0.05, handler_seconds=60,
    )  # fmt: skip

    def handle(batch: Batch) -> None:
        handled.append([event.sequence for event in batch])
        if len(handled) == 1:
            kill(db, sessions[0])
            wait_until(
                lambda: turns[1] > 3 and (len(read) > 5 or not reads_at_once),
                "the next session is at work",
            )
        with batch.transaction():
            pass

    work = consumer.round

    def use_connection(connection: Any) -> int:
        if connection not in sessions:
            sessions.append(connection)
        if handled:
            stored(connection)
        done = work(connection)
        turns[sessions.index(connection)] += 1
        return done

    monkeypatch.setattr(consumer, "round", use_connection)
    with running(consumer):
        wait_until(lambda: stored(watcher) == 5, "the first ones are handled")
        more(own, events=5, start=6)
        wait_until(lambda: stored(watcher) == 10, "all are handled")
    return read, handled


@proves("S13 over an outage")
@proves("D5 around a lost connection")
def test_what_is_committed_while_the_lease_has_ended_here_is_not_handled_again(
    db: ContractDatabase,
) -> None:
    """Guard: look_at_late_commit asks whether the lease is held by the local clock or not."""
    assert _handled_around_a_silence(db) == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]


@proves("S13 over an outage", guard="the look at late handlers")
@proves("D5 around a lost connection", guard="Keeper.look_again and those beside it")
def test_without_a_look_it_is_handled_again(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: what comes back under a lease that has ended says nothing."""
    monkeypatch.setattr(Committer, "look_at_late_commit", lambda *_: None)
    assert _handled_around_a_silence(db)[1][0] == 1


def _handled_around_a_silence(db: ContractDatabase) -> list[list[int]]:
    """What a handler was given whose lease ends by the local clock, and comes back, meanwhile."""
    own, watcher, clock = db.connect(), db.connect(), Clock()
    filled(own, events=5)
    slow_leases(own)
    handled: list[list[int]] = []
    revoked = threading.Event()

    def handle(batch: Batch) -> None:
        handled.append([event.sequence for event in batch])
        with batch.transaction():
            if len(handled) == 1:
                clock.now += 170
                assert revoked.wait(20)

    consumer = Consumer(
        db.url, SUBSCRIPTION, batch_handler=handle, consumer_id="a", idle_seconds=0.05,
        handler_seconds=1_000, on_revoked=lambda _: revoked.set(), clock=clock,
    )  # fmt: skip
    with running(consumer):
        wait_until(lambda: stored(watcher) == 5, "the first ones are handled")
        wait_until(lambda: not consumer.executor.under_way, "its outcome has come")
        beat(own, consumer.keeper)
        more(own, events=5, start=6)
        wait_until(lambda: stored(watcher) == 10, "all are handled")
    return handled


@proves("L2 over an outage")
@proves("D5 around a lost connection")
def test_what_a_handler_is_at_is_not_given_back(db: ContractDatabase) -> None:
    """Guard: PartitionBuffers.busy. The lease had ended by the local clock, and is asked for."""
    assert _holders_while_asked_for(db) == {0: "a"}


@proves("L2 over an outage", guard="busy")
@proves("D5 around a lost connection", guard="Keeper.look_again and those beside it")
def test_without_that_it_is_given_back_under_the_handler(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: what was forgotten and is under way does not count."""
    monkeypatch.setattr(PartitionBuffers, "busy", lambda _: set())
    assert _holders_while_asked_for(db) == {}


def _holders_while_asked_for(db: ContractDatabase) -> dict[int, str]:
    """Who holds the partition while a handler is at it that was begun before a silence."""
    own, watcher, clock = db.connect(), db.connect(), Clock()
    filled(own)
    slow_leases(own)
    revoked, looked = threading.Event(), threading.Event()
    found: list[dict[int, str]] = []

    def handle(_: Batch) -> None:
        if found:
            return
        clock.now += 170
        assert revoked.wait(20)
        beat(own, consumer.keeper)
        subscriptions.pause(own, SUBSCRIPTION)
        check_in(consumer.keeper)
        assert looked.wait(20)
        found.append(holders(own))

    consumer = Consumer(
        db.url, SUBSCRIPTION, batch_handler=handle, consumer_id="a", idle_seconds=0.05,
        handler_seconds=1_000, on_revoked=lambda _: revoked.set(), clock=clock,
    )  # fmt: skip
    turn = consumer.turn

    def watched(connection: Any) -> int:
        asked = any(lease.state == "RELEASING" for lease in consumer.keeper.leases())
        done = turn(connection)
        if asked:
            looked.set()
        return done

    consumer.turn = watched  # type: ignore[method-assign]
    with running(consumer):
        wait_until(lambda: found and holders(watcher) == {}, "it is given back")
    return found[0]


def _position_behind_an_outage(db: ContractDatabase) -> int:
    """Where a keeper reads on, of a lease that had ended by its clock when it looked again."""
    own, clock = db.connect(), Clock()
    filled(own)
    slow_leases(own)
    with LeaseKeeper(db.url, SUBSCRIPTION, consumer="a", clock=clock) as keeper:
        stream.commit(own, keeper.member, [(keeper.leases()[0], 5)])
        clock.now += 170
        assert keeper.leases() == []
        keeper.look_again(own)
        beat(own, keeper)
        (lease,) = keeper.leases()
        return lease.position


@proves("S13 over an outage")
@proves("D5 around a lost connection")
def test_a_lease_that_a_heartbeat_brings_back_is_read_from_its_position(
    db: ContractDatabase,
) -> None:
    """Guard: look_again; the answer to the last commit was lost with the server."""
    assert _position_behind_an_outage(db) == 5


@proves("S13 over an outage", guard="also of leases that have ended by its clock")
@proves("D5 around a lost connection", guard="Keeper.look_again and those beside it")
def test_without_a_look_at_what_had_ended_it_is_read_again(db: ContractDatabase) -> None:
    """Mutant: only at leases that are held by the local clock."""

    def look(keeper: Keeper, connection: Any) -> None:
        with patch.object(keeper, "_leases", {each.partition_id: each for each in keeper.leases()}):
            look_again(keeper, connection)

    look_again = Keeper.look_again
    with patch.object(Keeper, "look_again", look):
        assert _position_behind_an_outage(db) == 0
