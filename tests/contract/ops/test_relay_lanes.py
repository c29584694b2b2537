"""A relay of several partitions at once, on every engine: at the same time, and each in order."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any

import pytest

from ops.relay.block import Backoff
from ops.relay.pauses import Pauses
from ops.relay.relay import Relay
from ops.sinks.base import Channel, EventRefused, RelayBlock, SinkLease, SinkPaused, SinkUnavailable
from ops.sinks.jsonl import JsonlSink
from penstock.errors import InvalidArgument
from penstock.records import Lease
from penstock.subscriptions import stream
from penstock.subscriptions.dead_letters import dead_letters
from penstock.subscriptions.overview import describe_subscription
from tests.contract.databases import ContractDatabase
from tests.kit.log import wait_until
from tests.kit.proof import proves
from tests.kit.sinks import InFront
from tests.kit.stream import STREAM, SUBSCRIPTION, filled

FAST = Backoff(base_seconds=0.01, max_seconds=0.05)
SECONDS = 20  # for what happens at once


class Watched(InFront):
    """Counts its channels, and who is in them at once."""

    def __init__(self, folder: Path, events: int = 4) -> None:
        super().__init__(JsonlSink(folder))
        self.max_block_events = events
        self.opened: list[SinkLease] = []
        self.closed = 0
        self.raises: list[Exception] = []
        self.inside: Counter[int] = Counter()
        self.most = 0
        self.blocks: list[RelayBlock] = []
        self._lock = threading.Lock()

    def open(self, lease: SinkLease) -> Channel:
        """Count it."""
        with self._lock:
            self.opened.append(lease)
        channel = super().open(lease)
        close = channel.close

        def closing() -> None:
            with self._lock:
                self.closed += 1
            close()

        channel.close = closing  # type: ignore[method-assign]
        return channel

    def send_block(self, channel: Channel, block: RelayBlock) -> None:
        """Raise what is next, else do what the test says, and store the block."""
        with self._lock:
            self.blocks.append(block)
            self.inside[block.partition] += 1
            self.most = max(self.most, *self.inside.values())
        try:
            if self.raises:
                raise self.raises.pop(0)
            self.sending(block)
            channel.send_block(block)
        finally:
            with self._lock:
                self.inside[block.partition] -= 1

    def sending(self, block: RelayBlock) -> None:
        """What happens before a block is stored."""


class Together(Watched):
    """A block is stored when blocks of all three partitions are being sent."""

    def __init__(self, folder: Path, seconds: float) -> None:
        super().__init__(folder)
        self._barrier = threading.Barrier(3, timeout=seconds)

    def sending(self, block: RelayBlock) -> None:
        """Wait for the others."""
        self._barrier.wait()


class Slow(Watched):
    """The first partition waits until the test lets it go."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.go, self.began = threading.Event(), threading.Event()

    def sending(self, block: RelayBlock) -> None:
        """Wait in partition 0."""
        if block.partition == 0:
            self.began.set()
            assert self.go.wait(SECONDS)


@contextmanager
def running(relay: Relay) -> Iterator[threading.Event]:
    """The continuous form, beside the test; what it raises, the test raises."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(relay.run, stop)
        try:
            yield stop
        finally:
            stop.set()
            getattr(relay.sink, "go", stop).set()
            running.result(SECONDS)


def positions(connection: Any) -> dict[int, int]:
    """How far the relay is."""
    return stream.position(connection, SUBSCRIPTION, STREAM)


def _threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("relay")]


@proves("partitions are sent side by side")
def test_partitions_are_sent_at_the_same_time(db: ContractDatabase, tmp_path: Path) -> None:
    """Guard: the threads of RelayLanes."""
    own = db.connect()
    filled(own, partitions=3, events=8)
    sink = Together(tmp_path, SECONDS)
    result = Relay(db.url, SUBSCRIPTION, sink, backoff=FAST).run_for(SECONDS)
    assert (result.events, result.failures, result.drained) == (24, 0, True)
    assert (len(sink.opened), sink.closed, sink.most, _threads()) == (3, 3, 1, [])


@proves("partitions are sent side by side", guard="the lanes")
def test_one_after_the_other_they_would_wait(db: ContractDatabase, tmp_path: Path) -> None:
    """Mutant: one thread."""
    filled(db.connect(), partitions=3, events=4)
    result = Relay(db.url, SUBSCRIPTION, Together(tmp_path, 0.05), at_once=1).run_for(0.5)
    assert result.events == 0
    assert result.failures >= 1


@proves("partitions are sent side by side")
def test_a_slow_partition_holds_up_no_other(db: ContractDatabase, tmp_path: Path) -> None:
    """Its successor blocks wait, and it is never in two threads."""
    own = db.connect()
    filled(own, partitions=2, events=12)
    sink = Slow(tmp_path)
    relay = Relay(db.url, SUBSCRIPTION, sink, backoff=FAST, idle_seconds=0.05)
    with running(relay):
        wait_until(lambda: positions(own) == {0: 0, 1: 12}, "the other one was sent")
        assert [b.partition for b in sink.blocks].count(0) == 1
        sink.go.set()
        wait_until(lambda: positions(own) == {0: 12, 1: 12}, "all were sent")
    assert (sink.most, relay.stats.failures) == (1, 0)


@proves("partitions are sent side by side")
def test_what_is_being_sent_at_the_end_is_committed(db: ContractDatabase, tmp_path: Path) -> None:
    """And nothing more is begun; no thread and no channel are left. Guard: Relay._finish."""
    own = db.connect()
    filled(own, partitions=2, events=8)
    sink = Slow(tmp_path)
    with running(Relay(db.url, SUBSCRIPTION, sink, backoff=FAST, idle_seconds=0.05)) as stop:
        assert sink.began.wait(SECONDS)
        wait_until(lambda: positions(own) == {0: 0, 1: 8}, "the other one was sent")
        stop.set()
    assert positions(own) == {0: 4, 1: 8}
    assert (sink.closed, _threads()) == (len(sink.opened), [])


@proves("partitions are sent side by side", guard="the record of a sent block")
def test_without_that_it_would_be_sent_again(
    db: ContractDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the relay leaves while a block is being sent."""
    monkeypatch.setattr(Relay, "_finish", lambda *_: None)
    own = db.connect()
    filled(own, events=4)
    sink = Slow(tmp_path)
    with running(Relay(db.url, SUBSCRIPTION, sink, backoff=FAST, idle_seconds=0.05)):
        assert sink.began.wait(SECONDS)
    assert positions(own) == {0: 0}


@proves("partitions are sent side by side")
def test_what_was_sent_under_a_lost_lease_is_not_committed(
    db: ContractDatabase, tmp_path: Path
) -> None:
    """The channel is closed. Guards: the fence of the commit; end_others."""
    own = db.connect()
    filled(own, events=4)
    sink = Slow(tmp_path)
    relay = Relay(db.url, SUBSCRIPTION, sink, backoff=FAST, idle_seconds=0.05)
    with running(relay):
        assert sink.began.wait(SECONDS)
        stream.seek(own, SUBSCRIPTION, STREAM, 0, 3)
        sink.go.set()
        wait_until(lambda: relay.stats.stale_commits == 1, "the commit was refused")
        wait_until(lambda: positions(own) == {0: 4}, "it goes on where it was moved to")
    assert [(b.first_sequence, b.last_sequence) for b in sink.blocks] == [(1, 4), (3, 4)]
    assert [each.lease_epoch for each in sink.opened] == sorted(
        {b.lease_epoch for b in sink.blocks}
    )


@proves("partitions are sent side by side")
def test_after_each_error_there_is_another_channel(db: ContractDatabase, tmp_path: Path) -> None:
    """Guard: RelayLanes closes it, also when one event was refused."""
    own = db.connect()
    filled(own, events=8)
    sink = Watched(tmp_path)
    sink.raises = [SinkUnavailable("away"), EventRefused(2, "poison"), ValueError("a bug")]
    result = Relay(db.url, SUBSCRIPTION, sink, backoff=FAST).run_for(SECONDS)
    assert (result.events, result.dead_letters, result.failures) == (7, 1, 2)
    assert (len(sink.opened), sink.closed) == (4, 4)


class Away(Watched):
    """Nobody answers, to the first three questions of each partition or for ever."""

    def __init__(self, folder: Path, times: float) -> None:
        super().__init__(folder)
        self._left = {0: times, 1: times}

    def open(self, lease: SinkLease) -> Channel:
        """Not even this works."""
        if self._left[lease.partition] > 0:
            self._left[lease.partition] -= 1
            raise SinkUnavailable("away")
        return super().open(lease)


def _given_up(db: ContractDatabase, sink: Any, limit: int | None) -> tuple[int, set[str]]:
    own = db.connect()
    filled(own, partitions=2, events=4)
    relay = Relay(db.url, SUBSCRIPTION, sink, backoff=FAST, max_attempts=limit)
    result = relay.run_for(SECONDS if limit else 1)
    assert result.drained == bool(limit)
    return result.failures, {each.reason for each in dead_letters(own, SUBSCRIPTION)}


def test_a_relay_gives_events_up_if_it_is_told_to(db: ContractDatabase, tmp_path: Path) -> None:
    """Also when the sink was only away, and its channel could not be opened."""
    assert _given_up(db, Away(tmp_path, 3), 3) == (6, {"not delivered in 3 attempts"})
    assert positions(db.connect()) == {0: 4, 1: 4}


def test_a_block_that_no_sink_has_got_is_a_new_one(db: ContractDatabase, tmp_path: Path) -> None:
    """Its channel could not be opened. What was given to the sink is sent again as such."""
    filled(db.connect(), events=8)
    sink = Away(tmp_path, 2)
    sink.raises = [SinkUnavailable("away")]
    result = Relay(db.url, SUBSCRIPTION, sink, backoff=FAST).run_for(SECONDS)
    assert (result.events, result.failures) == (8, 3)
    assert [(each.first_sequence, each.reopened) for each in sink.blocks] == [
        (1, False), (1, True), (5, False),
    ]  # fmt: skip


def test_a_sink_that_asks_for_a_pause_before_any_block_gets_it(
    db: ContractDatabase, tmp_path: Path
) -> None:
    """It is asked what it holds, as on a new connection. Guard: Relay._failed without a block."""
    own = db.connect()
    filled(own, events=4)
    sink = Watched(tmp_path)
    relay = Relay(db.url, SUBSCRIPTION, sink, backoff=FAST, idle_seconds=0.05)
    with running(relay), pytest.MonkeyPatch.context() as patch:
        wait_until(lambda: positions(own) == {0: 4}, "everything is sent")
        patch.setattr(sink, "seen", _gone)
        relay._compared.clear()
        wait_until(lambda: describe_subscription(own, SUBSCRIPTION).paused_at, "it is paused")
    found = describe_subscription(own, SUBSCRIPTION)
    assert found.paused_reason == "the sink asked for it: gone"


def _gone(_: Channel) -> None:
    raise SinkPaused("gone")


def test_the_pause_of_a_lost_lease_is_forgotten() -> None:
    """Guard: Pauses.keep. A relay with pauses waits for them until its time is over."""
    clock = [0.0]
    pauses = Pauses(lambda: clock[0])
    first, second = _lease(1), _lease(2)
    pauses.begin(first, 60)
    pauses.keep([first])
    assert not pauses.is_over(first)
    pauses.keep([second])
    assert (bool(pauses), pauses.is_over(second), pauses.attempts(second)) == (False, True, 0)


def _lease(epoch: int) -> Lease:
    return Lease(topic=STREAM, partition=0, partition_id=7, lease_epoch=epoch, position=0,
                 state="ACTIVE", history=1)  # fmt: skip


def test_without_a_limit_it_tries_for_ever(db: ContractDatabase, tmp_path: Path) -> None:
    """The default: nothing is passed over, so the order is kept."""
    failures, letters = _given_up(db, Away(tmp_path, inf), None)
    assert failures > 6
    assert letters == set()


@pytest.mark.parametrize("option", ["at_once", "max_attempts"])
def test_counts_are_at_least_one(tmp_path: Path, option: str) -> None:
    with pytest.raises(InvalidArgument, match=option):
        Relay("postgresql://h/x", SUBSCRIPTION, Watched(tmp_path), **{option: 0})  # type: ignore[arg-type]
