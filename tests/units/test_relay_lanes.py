"""Calls of a sink that do not end: they keep neither their partition nor their thread."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from ops.relay import sink_calls
from ops.relay.lanes import Lane, RelayLanes
from ops.relay.threads import SideThreads
from ops.sinks.base import RelayBlock
from penstock.records import Lease
from tests.kit.deaf_sinks import DeafSink
from tests.kit.proof import proves
from tests.relay.blocks import TOPIC, block, lease

HELD = Lease(TOPIC, 0, 65536, 1, "ACTIVE", 0, 1)


class Deaf(DeafSink):
    """Only its first call waits."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.sent: list[int] = []
        self.closed = 0

    def sends(self, block: RelayBlock) -> None:
        if not self.begun.is_set():
            self.begun.set()
            super().sends(block)
        self.sent.append(block.first_sequence)

    def closes(self) -> None:
        self.closed += 1


def _sending(lanes: RelayLanes, first: int) -> Lane:
    lane = lanes.enter(HELD, lease(), 1)
    hand: Any = SimpleNamespace(block=block(first, first), part=None, skip=None)
    lane.hand = hand
    lanes.send(lane, lambda *_: 0)
    return lane


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times that a test can wait for."""
    monkeypatch.setattr(sink_calls, "ABORT_SECONDS", 0.05)
    monkeypatch.setattr(sink_calls, "_LOOK_SECONDS", 0.02)


@proves("partitions are sent side by side")
@pytest.mark.usefixtures("quick")
def test_a_call_that_does_not_end_is_left_behind_and_counted() -> None:
    """Guard: _leave in `over`. The only thread of the relay is replaced."""
    sink, woken = Deaf(), threading.Event()
    lanes = RelayLanes(sink, 1)
    lanes.holds = lambda held: False
    lanes.wake = woken.set
    left = _sending(lanes, 1)
    assert sink.begun.wait(10)
    while lanes.busy:
        assert woken.wait(10)
        woken.clear()
        assert all(each.is_given_up for each in lanes.finished())
    assert (lanes.left, lanes.of(HELD), lanes.free) == (1, None, 1)
    lanes.holds = lambda held: True
    again = _sending(lanes, 2)
    lanes.wait(10)
    assert lanes.finished() == [again]
    assert sink.sent == [2]
    sink.over.set()
    while not sink.closed:
        assert woken.wait(10)
        woken.clear()
    assert lanes.finished() == []
    assert (lanes.left, lanes.left_behind) == (0, 1)
    assert left is not again
    lanes.close(1)


@proves("partitions are sent side by side")
@pytest.mark.usefixtures("quick")
def test_a_call_that_ends_after_all_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a relay stops for good after some of them.  Guard: _count_left(-1)."""
    monkeypatch.setattr(sink_calls, "MOST_LEFT", 0)
    sink, woken = Deaf(), threading.Event()
    lanes = RelayLanes(sink, 1)
    lanes.holds = lambda held: False
    lanes.wake = woken.set
    _sending(lanes, 1)
    while lanes.busy:
        assert woken.wait(10)
        woken.clear()
        lanes.finished()
    assert (lanes.left, lanes.free) == (1, 0)
    sink.over.set()
    while lanes.left:
        assert woken.wait(10)
        woken.clear()
    lanes.holds = lambda held: True
    again, found = _sending(lanes, 2), list[Lane]()
    while again not in found:
        lanes.wait(10)
        found += lanes.finished()
    assert sink.sent == [1, 2]
    lanes.close(1)


@proves("partitions are sent side by side")
@pytest.mark.usefixtures("quick")
def test_a_machine_without_threads_ends_the_call_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard: _abort is tried again; else nobody would look any more."""
    sink = Deaf()
    lanes = RelayLanes(sink, 1)
    _sending(lanes, 1)
    assert sink.begun.wait(10)
    start, refused, told = threading.Thread.start, threading.Event(), threading.Event()
    monkeypatch.setattr(sink_calls, "abort_of", lambda channel: told.set)

    def starts(thread: threading.Thread) -> None:
        if not refused.is_set():
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starts)
    lanes.holds = lambda held: False
    assert refused.wait(10)
    assert told.wait(10)
    sink.over.set()
    lanes.close(1)
    assert sink.sent == [1]


def test_what_closes_is_not_told_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is lost, so the lane is closed.  Guard: is_closing in _abort."""
    sink, given, told = Deaf(), list[Any](), list[Any]()
    lanes = RelayLanes(sink, 1)
    lane = lanes.enter(HELD, lease(), 1)
    lane.channel = sink.open(lane.served)
    with monkeypatch.context() as patch:
        patch.setattr(SideThreads, "give", lambda _, work: given.append(work))
        patch.setattr(threading.Thread, "start", told.append)
        lanes.holds = lambda held: False
        lanes.end(lane)
        assert (lanes.finished(), told) == ([], [])
    given[-1]()
    assert (lanes.finished(), sink.closed, lanes.of(HELD)) == ([lane], 1, lane)
    lanes.close(1)
