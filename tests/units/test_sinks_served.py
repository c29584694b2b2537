"""Each sink of one relay over its turns: its last error, its pauses, and how it is left."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from typing import Any

import pytest

from ops.relay import groups
from ops.relay.results import RelayResult
from penstock.errors import SinkError

SECONDS = 30  # for what happens at once


class _Sink:
    def close(self) -> None:
        """Nothing."""


class _Relay:
    """A relay of which each turn has a result that the test says."""

    def __init__(self, *results: RelayResult) -> None:
        self._results = list(results)

    @contextmanager
    def joined(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.leaves()

    def leaves(self) -> None:
        """What happens when it is left."""

    def send_for(self, _: None, seconds: float, *, stop: Any = None) -> RelayResult:
        return self._results.pop(0)


def _said(blocks: int, failures: int, *, drained: bool = False) -> RelayResult:
    error = "it hiccuped" if failures else ""
    return RelayResult(blocks, blocks, 0, failures, drained=drained, last_error=error)


def _served(relay: Any) -> groups._Served:
    return groups._Served("a", _Sink, lambda _: relay)  # type: ignore[arg-type]


def test_the_last_error_is_that_of_the_last_turn() -> None:
    """The relay says for how long it is told (`send_for`).  Guard: _note."""
    served, errors = _served(_Relay(_said(0, 1), _said(1, 0))), []
    for _ in range(2):
        served.turn(1, threading.Event())
        errors.append(served.result().last_error)
    assert errors == ["it hiccuped", ""]


def test_after_a_turn_that_raised_there_is_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is longer each time, until a turn is good.  Guard: _later."""
    monkeypatch.setattr(groups, "backoff", lambda failures: 100.0 * failures)
    answers: list[bool] = [False, False, True, False]

    def opens() -> Any:
        if not answers.pop(0):
            raise SinkError("set up wrong")
        return _Sink()

    served = groups._Served("a", opens, lambda _: _Relay(_said(1, 0)))  # type: ignore[arg-type, return-value]
    laters = []
    for _ in range(4):
        laters.append(served.turn(1, threading.Event()).later)
        served.close()
    assert laters == [100.0, 200.0, 0.0, 100.0]


def test_what_others_hold_is_no_hot_loop() -> None:
    """A turn that ends at once, since others have the partitions, is not asked for at once."""
    turn = _served(_Relay(_said(0, 0))).turn(1, threading.Event())
    assert (turn.drained, turn.seconds, turn.later) == (False, 0.0, groups.IDLE_SECONDS)


def test_a_sink_that_cannot_be_served_is_no_hot_loop() -> None:
    """The pauses are 0.1 s and more."""
    opened = []

    def opens() -> Any:
        opened.append("a")
        raise SinkError("set up wrong")

    groups.serve({"a": opens}, lambda *_: _Relay(), threads=1, max_seconds=0.3)  # type: ignore[arg-type]
    assert len(opened) <= 4


@pytest.mark.parametrize("threads", [1, 2])
def test_after_an_interruption_a_sink_is_closed_behind_its_turn(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """The turn is told to end, and waited for.  Guard: `except BaseException` in serve."""
    began, told = threading.Event(), list[str]()

    class Long(_Relay):
        def leaves(self) -> None:
            told.append("closed")

        def send_for(self, _: None, seconds: float, *, stop: Any = None) -> RelayResult:
            began.set()
            (stop or threading.Event()).wait(3 if stop is None else SECONDS)
            told.append("told to stop" if stop and stop.is_set() else "time is over")
            return _said(1, 0)

    def interrupted(busy: Any, **_: Any) -> Any:
        assert began.wait(SECONDS)
        monkeypatch.setattr(groups, "wait", wait)
        raise KeyboardInterrupt

    monkeypatch.setattr(groups, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        groups.serve({"a": _Sink}, lambda *_: Long(), threads=threads, max_seconds=SECONDS)  # type: ignore[arg-type, dict-item]
    assert told == ["told to stop", "closed"]


def test_sinks_are_closed_side_by_side() -> None:
    """With one thread to serve them.  Guard: _close_all."""
    both, closed = threading.Barrier(2, timeout=SECONDS / 3), []

    class Leaves(_Relay):
        def leaves(self) -> None:
            both.wait()
            closed.append("in order")

    groups.serve(
        dict.fromkeys("ab", _Sink),  # type: ignore[arg-type]
        lambda *_: Leaves(_said(1, 0, drained=True)),  # type: ignore[arg-type]
        threads=1,
        max_seconds=SECONDS,
    )
    assert closed == ["in order"] * 2


def test_a_sink_that_cannot_be_closed_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Guard: CLOSE_SECONDS."""
    monkeypatch.setattr(groups, "CLOSE_SECONDS", 0.05)
    over, ended = threading.Event(), threading.Event()

    class Stays(_Relay):
        def leaves(self) -> None:
            over.wait(SECONDS)
            ended.set()

    relay = Stays(_said(1, 0, drained=True))
    (done,) = groups.serve({"a": _Sink}, lambda *_: relay, threads=1, max_seconds=SECONDS)  # type: ignore[arg-type, dict-item]
    assert done.drained and not ended.is_set()
    assert "not closed after 0.05 s: ['a']" in caplog.text
    over.set()
    assert ended.wait(SECONDS)
