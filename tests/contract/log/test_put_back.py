"""The database goes back to an earlier state behind a connection that stays, as with poolers.

Every engine: the later rows are taken away, and the log grows again, beyond what was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ops.relay import block as relay_block
from ops.relay.block import BlockResult, BlockWork
from ops.relay.pauses import Pauses
from ops.relay.relay import Relay
from ops.sinks.base import Channel, RelayBlock
from penstock.consumer.stream.committing import Committer
from penstock.consumer.stream.consumer import Consumer
from penstock.errors import LogBehind
from penstock.leases.database_keeper import LeaseKeeper
from penstock.log.histories import reconcile, restore_status
from penstock.subscriptions import stream
from tests.contract.databases import ContractDatabase
from tests.contract.ops.test_relay import FAST, Scripted
from tests.kit.proof import proves
from tests.kit.sinks import turn
from tests.kit.stream import (
    SUBSCRIPTION,
    check_in,
    filled,
    more,
    slow_leases,
    stored,
)

#: Tables and the columns that only grow in them.
GROWING = {"positions": "id", "blocks": "id", "chunks": "last_id"}


class Snapshot:
    """The state that the database comes back to; members and leases are the same in both."""

    def __init__(self, db: ContractDatabase) -> None:
        self._db = db
        self._last = {table: self._highest(table) for table in GROWING}

    def come_back(self) -> None:
        """Take away what was written since."""
        for table, last in self._last.items():
            self._db.run(f"DELETE FROM penstock.{table} WHERE {GROWING[table]} > {last}")

    def _highest(self, table: str) -> int:
        query = f"SELECT COALESCE(MAX({GROWING[table]}), 0) FROM penstock.{table}"
        return int(self._db.run(query)[0][0])


class Interrupted(Scripted):
    """Something happens while its next block is sent."""

    meanwhile: Callable[[], object] | None = None

    def send_block(self, channel: Channel, block: RelayBlock) -> None:
        """Store it first."""
        super().send_block(channel, block)
        happens, self.meanwhile = self.meanwhile, None
        if happens is not None:
            happens()


@pytest.fixture
def sink(tmp_path: Path) -> Interrupted:
    """Blocks of at most four events, to files."""
    return Interrupted(tmp_path / "out")


@contextmanager
def _relaying(db: ContractDatabase, sink: Interrupted) -> Iterator[tuple[Relay, Any]]:
    relay = Relay(db.url, SUBSCRIPTION, sink, backoff=FAST)
    with relay.keeper, relay.open() as connection:
        yield relay, connection


def _sent(sink: Scripted) -> list[tuple[int, int, int]]:
    return [(block.history, block.first_sequence, block.last_sequence) for block in sink.blocks]


def _put_back_between(db: ContractDatabase, sink: Interrupted, events: int) -> tuple[str, Any]:
    """Eight events were sent, of which the log has lost four; it grows by so many others."""
    own = db.connect()
    filled(own, events=4)
    slow_leases(own)
    with _relaying(db, sink) as (relay, connection):
        turn(relay, connection)
        snapshot = Snapshot(db)
        more(own, events=4, start=5)
        turn(relay, connection)
        assert _sent(sink) == [(1, 1, 4), (1, 5, 8)]
        snapshot.come_back()
        more(own, events=events, start=100)
        for _ in range(3):  # what was refused once is not done at the second try
            relay.pauses = Pauses()
            turn(relay, connection)
        error, status = relay.stats.last_error, restore_status(own)
        if "LogBehind" in error:
            assert (len(sink.blocks), stored(own)) == (2, 4)
            reconcile(own, "a test")
            check_in(relay.keeper)
            relay.pauses = Pauses()
            turn(relay, connection)
            assert (sink.blocks[-1].history, sink.blocks[-1].first_sequence) == (2, 5)
    assert sink.written()[:8] == [(number, number) for number in range(1, 9)]
    return error, status


@proves("S21 behind a connection that stays")
@pytest.mark.parametrize("events", [2, 4, 9])
def test_a_relay_whose_log_went_back_sends_nothing(
    db: ContractDatabase, sink: Interrupted, events: int
) -> None:
    """Guard: blocks of one lease follow each other, or the log went back.

    All are stopped where the log does not reach what was sent.  The sink reports it, or the
    relay's own consumer, whose heart may be earlier.
    """
    error, status = _put_back_between(db, sink, events)
    assert error.startswith("LogBehind")
    assert {each.sequence for each in status} == ({8} if events == 2 else set())


@proves("S21 behind a connection that stays", guard="_require_onward")
def test_without_a_memory_it_sends_other_events_under_the_same_sequences(
    db: ContractDatabase, sink: Interrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the relay does not know what it has begun. The file is the last one to refuse it.

    Guard: a file's lines are not written over by other events.
    """
    monkeypatch.setattr(relay_block, "_require_onward", lambda _, opened, __: opened)
    error, status = _put_back_between(db, sink, 4)
    assert error.startswith("SinkMisconfigured")
    assert "holds other events under the sequences 5 to 8" in error
    assert (set(_sent(sink)[2:]), status) == ({(1, 5, 8)}, [])


def _put_back_while_sending(db: ContractDatabase, sink: Interrupted) -> tuple[str, int]:
    """The restored log has two of four events that are being sent, and others by the commit."""
    own = db.connect()
    filled(own, events=6)
    slow_leases(own)
    with _relaying(db, sink) as (relay, connection):
        turn(relay, connection)
        snapshot = Snapshot(db)
        more(own, events=2, start=7)

        def restored() -> None:
            snapshot.come_back()
            more(own, events=6, start=100)

        sink.meanwhile = restored
        turn(relay, connection)
        error = relay.stats.last_error
    return error, stored(own)


@proves("S21 behind a connection that stays")
def test_a_block_that_is_gone_is_not_committed(db: ContractDatabase, sink: Interrupted) -> None:
    """Guard: BlockWork.commit looks for the block in the same transaction."""
    error, position = _put_back_while_sending(db, sink)
    assert error.startswith("LogBehind")
    assert position == 4


@proves("S21 behind a connection that stays", guard="the look in the commit's transaction")
def test_without_that_look_events_are_passed_over(
    db: ContractDatabase, sink: Interrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the commit alone. Sequences 7 and 8 are other events, which nobody has sent."""

    def commit(work: Any, hand: Any, sink: object) -> BlockResult:
        opened = hand.opened
        positions = [(work.lease, opened.last_sequence)]
        after = [opened.first_sequence - 1]
        stream.commit(work.connection, work.member, positions, after=after)
        return BlockResult(len(hand.block.events), opened.last_sequence)

    monkeypatch.setattr(BlockWork, "commit", commit)
    assert _put_back_while_sending(db, sink) == ("", 8)


def _keeper_put_back(db: ContractDatabase, *, polls: bool) -> list[str]:
    """A consumer has done ten events, of which the log then holds five; who has told of it."""
    own = db.connect()
    filled(own, events=5)
    slow_leases(own)
    snapshot = Snapshot(db)
    more(own, events=5, start=6)
    with LeaseKeeper(db.url, SUBSCRIPTION, consumer="a") as keeper:
        (lease,) = keeper.leases()
        stream.commit(own, keeper.member, [(lease, 10)])
        keeper.moved(lease, 10)
        snapshot.come_back()
        if polls:
            with pytest.raises(LogBehind):
                keeper.poll(own, [replace(lease, position=10)], 10)
        else:
            check_in(keeper)
            assert bool(keeper.leases()) is not bool(restore_status(own))
        return [each.source for each in restore_status(own)]


@proves("S13 over a restore")
@pytest.mark.parametrize("polls", [False, True])
def test_a_consumer_tells_of_a_log_that_went_back(db: ContractDatabase, polls: bool) -> None:
    """Guards: LeaseKeeper._went_back at a check-in; a poll that finds the log behind reports it."""
    assert _keeper_put_back(db, polls=polls) == ['consumer "a"']


@proves("S13 over a restore", guard="_went_back")
@pytest.mark.parametrize("polls", [False, True])
def test_without_it_nobody_is_told(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch, polls: bool
) -> None:
    """Mutants: a returned position is as good as any; a refused poll is its own matter."""
    monkeypatch.setattr(LeaseKeeper, "_went_back", lambda *_: [])
    monkeypatch.setattr(LeaseKeeper, "_require", lambda *_: None)
    assert _keeper_put_back(db, polls=polls) == []


HANDLERS = ["alone", "with the position"]


def _consumed(db: ContractDatabase, how: str) -> set[int]:
    """The log of a consumer went back by five events and grew by ten; which of these it has had."""
    own = db.connect()
    filled(own, events=5)
    seen: list[int] = []

    def handle(event: Any) -> None:
        if how == "with the position":
            with event.transaction():
                seen.append(int(event.payload))
        else:
            seen.append(int(event.payload))

    slow_leases(own)
    consumer = Consumer(db.url, SUBSCRIPTION, handler=handle)
    with (
        consumer.keeper,
        consumer.at_work(),
        consumer.open() as connection,
        consumer.session(connection),
    ):

        def work_until(position: int) -> None:
            for _ in range(1000):
                consumer.turn(connection)
                if stored(own) == position:
                    return
                check_in(consumer.keeper)
            raise AssertionError(f"it stands at {stored(own)}: {consumer.stats.last_error}")

        work_until(5)
        snapshot = Snapshot(db)
        more(own, events=5, start=6)
        work_until(10)
        snapshot.come_back()
        more(own, events=10, start=100)
        consumer.turn(connection)  # reads on, before the keeper hears of it
        work_until(15)
    return set(range(100, 110)) & set(seen)


@proves("S13 over a restore")
@pytest.mark.parametrize("how", HANDLERS)
def test_a_consumer_whose_log_went_back_and_grew_loses_nothing(
    db: ContractDatabase, how: str
) -> None:
    """Guard: a position that went back is as a lease that was lost (Committer.stands_at)."""
    assert _consumed(db, how) == set(range(100, 110))


@proves("S13 over a restore", guard="Committer.stands_at")
@pytest.mark.parametrize("how", HANDLERS)
def test_without_the_guard_it_commits_what_it_has_not_read(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Mutant: where the database says it stands, it goes on with what it had read by then."""

    def stands_at(committer: Any, each: Any, position: int) -> None:
        each.was_committed(position)
        committer._keeper.moved(each.lease, position)

    monkeypatch.setattr(Committer, "stands_at", stands_at)
    monkeypatch.setattr(LeaseKeeper, "_went_back", lambda *_: [])
    assert _consumed(db, how) == set(range(105, 110))


@proves("S13 over a restore")
def test_a_check_in_that_answers_an_earlier_position_begins_there(db: ContractDatabase) -> None:
    """Guard: LeaseKeeper takes the result; PartitionBuffers.look_at_leases reads again from there.

    The log holds all that was seen: only commits were lost, as a crash may take them.
    """
    own = db.connect()
    filled(own)
    slow_leases(own)
    consumer = Consumer(db.url, SUBSCRIPTION, handler=lambda event: None)
    snapshot = Snapshot(db)
    with consumer.keeper:
        (each,) = consumer.assignment.look_at_leases()
        stream.commit(own, consumer.keeper.member, [(each.lease, 10)])
        consumer.committer.stands_at(each, 10)
        assert [lease.position for lease in consumer.keeper.leases()] == [10]
        snapshot.come_back()
        check_in(consumer.keeper)
        assert [lease.position for lease in consumer.keeper.leases()] == [0]
        (again,) = consumer.assignment.look_at_leases()
        assert (each.closed, again.read, restore_status(own)) == (True, 0, [])
