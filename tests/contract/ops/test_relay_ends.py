"""A sink that does not answer: calls are ended with their lease, and the relay ends in time."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ops.relay import sink_calls
from ops.relay.relay import Relay
from ops.relay.sink_calls import SinkCalls
from ops.relay.threads import SideThreads
from ops.sinks.address import open_sink
from ops.sinks.base import Channel, RelayBlock, SinkUnavailable
from penstock.subscriptions import stream
from tests.contract.databases import ContractDatabase
from tests.contract.kit import count
from tests.contract.ops.test_relay_lanes import FAST, SECONDS, Watched, positions, running
from tests.kit.log import wait_until
from tests.kit.proof import proves
from tests.kit.stream import STREAM, SUBSCRIPTION, filled
from tests.relay.test_abort import Silent, environ


class Hung(Watched):
    """Partition 0 gets no answer, until its call is ended, if it can be."""

    def __init__(self, folder: Path, *, obeys: bool = True) -> None:
        super().__init__(folder)
        self.began, self.go = threading.Event(), threading.Event()
        self.obeys = obeys
        self.aborted = 0

    def sending(self, block: RelayBlock) -> None:
        """Wait in partition 0, under the first lease."""
        if block.partition == 0 and not self.go.is_set():
            self.began.set()
            assert self.go.wait(SECONDS)
            raise SinkUnavailable("ended")

    def abort(self, channel: Channel) -> None:
        """End the wait."""
        self.aborted += 1
        if self.obeys:
            self.go.set()


def _lost(db: ContractDatabase, sink: Hung, seconds: float = SECONDS) -> Relay:
    own = db.connect()
    filled(own, events=4)
    relay = Relay(db.url, SUBSCRIPTION, sink, backoff=FAST, idle_seconds=0.05)
    with running(relay):
        assert sink.began.wait(SECONDS)
        stream.seek(own, SUBSCRIPTION, STREAM, 0, 3)
        relay.keeper.check_in_soon()
        wait_until(lambda: positions(own) == {0: 4}, "its next lease is served", seconds)
    return relay


@proves("partitions are sent side by side")
def test_a_call_ends_with_its_lease(db: ContractDatabase, tmp_path: Path) -> None:
    """Guard: SinkCalls._look. What it would have done is no failure of the sink."""
    sink = Hung(tmp_path)
    relay = _lost(db, sink)
    assert (sink.aborted, relay.stats.failures, relay.stats.last_error) == (1, 0, "")
    assert [(b.first_sequence, b.last_sequence) for b in sink.blocks] == [(1, 4), (3, 4)]


@proves("partitions are sent side by side", guard="the end of a lane")
def test_without_that_it_would_go_on(
    db: ContractDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: nobody looks for lost leases."""
    monkeypatch.setattr(SinkCalls, "_look", lambda *_: None)
    with pytest.raises(AssertionError, match="its next lease is served"):
        _lost(db, Hung(tmp_path), 3)


def _stopped(db: ContractDatabase, sink: Any, began: threading.Event) -> tuple[Relay, float]:
    """A relay is told to stop while its sink does not answer.  How long that takes."""
    relay = Relay(db.url, SUBSCRIPTION, sink, idle_seconds=0.05, stop_seconds=0.2)
    stop = threading.Event()
    thread = threading.Thread(target=relay.run, args=(stop,), daemon=True)
    thread.start()
    assert began.wait(SECONDS)
    stop.set()
    since = time.monotonic()
    thread.join(SECONDS)
    assert not thread.is_alive()
    return relay, time.monotonic() - since


@proves("partitions are sent side by side")
def test_a_socket_that_stays_silent_does_not_hold_up_the_end(db: ContractDatabase) -> None:
    """The block stays open and no failure is counted, so the next relay sends it as it was."""
    own = db.connect()
    filled(own, events=4)
    with closing(Silent()) as silent:
        address = f"webhook+http://127.0.0.1:{silent.port}/in#seconds=600"
        sink = open_sink(address, environ=environ(silent.port))
        relay, took = _stopped(db, sink, silent.heard)
        assert took < SECONDS / 2
    assert relay.stats.failures == count(db, "relay_failures") == 0
    assert (positions(own), count(db, "blocks")) == ({0: 0}, 1)


@proves("partitions are sent side by side")
def test_a_call_that_cannot_be_ended_is_left_behind(
    db: ContractDatabase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Guard: SinkCalls._leave. The other partition is committed."""
    monkeypatch.setattr(sink_calls, "ABORT_SECONDS", 0.2)
    own = db.connect()
    filled(own, partitions=2, events=4)
    sink = Hung(tmp_path, obeys=False)
    _, took = _stopped(db, sink, sink.began)
    sink.go.set()
    assert took < SECONDS / 2
    assert sink.aborted == 1
    assert "does not end, and is left behind" in caplog.text
    assert positions(own) == {0: 0, 1: 4}


def test_a_thread_that_cannot_be_started_leaves_no_lane_busy(
    db: ContractDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine has no threads for a moment: then the relay goes on."""
    give, refuses = SideThreads.give, iter([True])

    def giving(self: SideThreads, work: Any) -> None:
        if next(refuses, False):
            raise RuntimeError("can't start new thread")
        give(self, work)

    monkeypatch.setattr(SideThreads, "give", giving)
    filled(db.connect(), events=8)
    result = Relay(db.url, SUBSCRIPTION, Watched(tmp_path), backoff=FAST).run_for(SECONDS)
    assert (result.events, result.failures, result.drained) == (8, 1, True)
