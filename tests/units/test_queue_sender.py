"""Calls of a queue's sink: those that do not end, and those that ended while nobody looked."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest

from ops.relay import sink_calls
from ops.relay.queue_sender import QueueSender, Sending
from ops.relay.sink_calls import SinkCall
from ops.sinks.base import RelayBlock
from tests.kit.deaf_sinks import DeafSink
from tests.kit.proof import proves
from tests.kit.stream import Clock
from tests.relay.blocks import block, lease

NO_DELIVERY: Any = None


class SetBack(SinkCall[Any]):
    """Its end could not be begun: `aborted_at` is set back after each look."""

    looks = 0

    @property
    def aborted_at(self) -> float | None:
        self.looks += 1
        return 0.0 if self.looks % 2 else None

    @aborted_at.setter
    def aborted_at(self, _: float | None) -> None:
        """The test says it."""


class Deaf(DeafSink):
    """A test waits for calls that have begun, and for channels that were closed."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Semaphore(0)
        self.closed = threading.Semaphore(0)

    def sends(self, block: RelayBlock) -> None:
        self.begun.release()
        super().sends(block)

    def closes(self) -> None:
        self.closed.release()


def _sending(sender: QueueSender, sink: Deaf, count: int) -> None:
    for _ in range(count):
        sender.send(NO_DELIVERY, block(1, 1), lease())
    for _ in range(count):
        assert sink.begun.acquire(timeout=10)


@proves("a queue's relay loses and hides nothing")
def test_calls_that_end_after_all_give_their_places_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it happens.  Guard: _count_left(-1)."""
    monkeypatch.setattr(sink_calls, "MOST_LEFT", 1)
    clock, sink = Clock(), Deaf()
    sender = QueueSender(sink, at_once=2, seconds=5, clock=clock)
    for incident in range(1, 4):
        sink.over.clear()
        _sending(sender, sink, 2)
        found: list[Sending] = []
        for _ in range(2):
            clock.now += 6
            found += sender.results()
        assert [each.is_left for each in found] == [True, True]
        assert (sender.free, sender.left_behind) == (1, 2 * incident)
        sink.over.set()
        for _ in range(2):
            assert sink.closed.acquire(timeout=10)
        assert (sender.free, sender.results()) == (2, [])
    assert sender._threads is not None and len(sender._threads._threads) <= 4  # one looks on
    sender.close()


class _Late(queue.SimpleQueue[Sending]):
    """What is finished arrives when the test says so."""

    def __init__(self) -> None:
        self.came, self.goes = threading.Event(), threading.Event()

    def put(self, item: Sending, *given: Any, **named: Any) -> None:
        self.came.set()
        assert self.goes.wait(60)
        super().put(item, *given, **named)


@proves("a queue's relay loses and hides nothing")
def test_a_call_that_has_ended_is_not_told_to_end() -> None:
    """Its channel may be another's by then.  Guards: `_taken` is first; is_over in _abort."""
    clock, sink = Clock(), Deaf()
    sender = QueueSender(sink, at_once=2, seconds=5, clock=clock)
    late = sender._finished = _Late()
    sink.over.set()
    _sending(sender, sink, 1)
    assert late.came.wait(10)
    clock.now += 60
    for _ in range(2):
        assert sender.results() == []
    late.goes.set()
    sender.wait(10)
    (one,) = sender.results()
    assert (one.error, one.aborted_at, one.is_left) == (None, None, False)
    assert sender.left_behind == 0
    sender.close()


def test_a_call_ends_at_its_limit_also_while_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The relay may wait for its database.  Guard: _look_on."""
    monkeypatch.setattr(sink_calls, "_LOOK_SECONDS", 0.01)
    clock, sink, told = Clock(), Deaf(), threading.Event()
    monkeypatch.setattr(sink_calls, "abort_of", lambda channel: told.set)
    sender = QueueSender(sink, at_once=1, seconds=5, clock=clock)
    _sending(sender, sink, 1)
    clock.now += 6
    assert told.wait(10)
    sink.over.set()
    sender.close()


class Stuck(Deaf):
    """A call fails at once, and its channel is not closed before the test says so."""

    def sends(self, block: RelayBlock) -> None:
        self.begun.release()
        raise ConnectionError("it is gone")

    def closes(self) -> None:
        assert self.over.wait(60)
        super().closes()


@proves("a queue's relay loses and hides nothing")
def test_a_channel_that_cannot_be_closed_keeps_no_event() -> None:
    """Closing is a part of the call.  Guard: `close` before `is_over` in _end."""
    clock, sink = Clock(), Stuck()
    sender = QueueSender(sink, at_once=1, seconds=5, clock=clock)
    _sending(sender, sink, 1)
    found: list[Sending] = []
    for _ in range(2):
        clock.now += 6
        found += sender.results()
    assert [(each.is_left, sender.left_behind) for each in found] == [(True, 1)]
    sink.over.set()
    assert sink.closed.acquire(timeout=10)
    sender.close()


def test_the_channel_of_what_nobody_took_is_closed() -> None:
    """Guard: `close` in end_calls."""
    sink = Deaf()
    sink.over.set()
    sender = QueueSender(sink, at_once=1, seconds=60)
    _sending(sender, sink, 1)
    sender.wait(10)
    sender.close()
    assert sink.closed.acquire(blocking=False)


def test_what_is_under_way_at_the_end_is_told_to_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It had no time, so it is not told to be left behind.  Guard: `_abort` in end_calls."""
    sink = Deaf()
    monkeypatch.setattr(sink_calls, "abort_of", lambda channel: sink.over.set)
    sender = QueueSender(sink, at_once=1, seconds=60)
    _sending(sender, sink, 1)
    sender.close()
    assert sink.closed.acquire(timeout=10)
    assert (sender.left_behind, caplog.text) == (0, "")


def test_an_end_that_is_set_back_ends_no_look() -> None:
    """Guards: aborted_at is read once in leave_at, and leave_at in _is_overdue and _limit."""
    sender = QueueSender(Deaf(), at_once=1, seconds=5, clock=Clock())
    assert sender._is_overdue(SetBack(NO_DELIVERY, lease(), 7.0))
    assert sender._limit(SetBack(NO_DELIVERY, lease(), 7.0)) == sink_calls.ABORT_SECONDS
