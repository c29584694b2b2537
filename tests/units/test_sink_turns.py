"""Whose turn it is among the sinks of one relay, and that one stops no other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ops.relay.groups import SinkTurns, serve
from ops.relay.results import RelayResult
from penstock.errors import InvalidArgument, SinkError
from tests.kit.stream import Clock


def test_the_fastest_of_those_that_ask_is_first() -> None:
    """By the moving average; before anything is known, by name."""
    clock = Clock()
    turns = SinkTurns("abc", clock)
    assert [turns.take() for _ in range(4)] == ["a", "b", "c", None]
    for name, seconds in (("a", 0.5), ("b", 0.1), ("c", 2.0)):
        turns.served(name, seconds)
        turns.ask(name)
    assert [turns.take() for _ in range(3)] == ["b", "a", "c"]
    assert turns.averages["b"] == pytest.approx(0.8 * 0.001 + 0.2 * 0.1)


def test_a_slow_sink_is_not_left_out() -> None:
    """It waits as long as it is slower, whatever the fast ones ask for meanwhile."""
    clock = Clock()
    turns = SinkTurns(["fast", "slow"], clock)
    turns.served("slow", 5.0)  # one second of average
    order = []
    for _ in range(60):
        name = turns.take()
        assert name is not None
        order.append(name)
        turns.served(name, 0.1 if name == "fast" else 5.0)
        turns.ask(name)
        clock.now += 0.1
    assert 2 <= order.count("slow") <= 5
    assert order[0] == "fast"


def test_failures_double_the_average_up_to_a_bound() -> None:
    turns = SinkTurns(["dead", "well"], Clock())
    for _ in range(30):
        turns.served("dead", None)
    assert turns.averages["dead"] == 10.0
    assert turns.take() == "well"


def test_a_sink_that_asks_later_is_not_served_before() -> None:
    clock = Clock()
    turns = SinkTurns(["one"], clock)
    assert turns.take() == "one"
    turns.ask("one", 0.5)
    assert turns.take() is None
    clock.now += 0.5
    assert turns.take() == "one"


class _Sink:
    def close(self) -> None:
        """Nothing."""


class _Relay:
    """A relay that has so many blocks to send, one a turn."""

    def __init__(self, name: str, left: dict[str, int], told: list[str]) -> None:
        self.name, self.left, self.told = name, left, told

    @contextmanager
    def joined(self) -> Iterator[None]:
        yield

    def send_for(self, _: None, seconds: float, *, stop: Any = None) -> RelayResult:
        self.told.append(self.name)
        turns = self.told.count(self.name)
        if self.name == "dead":
            return RelayResult(0, 0, 0, turns, drained=False, last_error="away")
        self.left[self.name] -= 1
        drained = not self.left[self.name]
        return RelayResult(5 * turns, turns, 0, 0, drained=drained, last_error="")


def _served(
    left: dict[str, int], *, threads: int, opens: Callable[[str], Any] = lambda name: _Sink()
) -> tuple[list[Any], list[str]]:
    told: list[str] = []
    results = serve(
        {name: lambda name=name: opens(name) for name in left},  # type: ignore[misc]
        lambda name, _: _Relay(name, left, told),  # type: ignore[arg-type, return-value]
        threads=threads,
        max_seconds=0.3 if "dead" in left else 30,
    )
    return results, told


def test_one_thread_serves_all_sinks() -> None:
    results, told = _served({"a": 3, "b": 2, "c": 1}, threads=1)
    assert sorted(told) == ["a"] * 3 + ["b"] * 2 + ["c"]
    assert [(e.sink, e.events, e.blocks, e.drained) for e in results] == [
        ("a", 15, 3, True), ("b", 10, 2, True), ("c", 5, 1, True),
    ]  # fmt: skip


def test_a_dead_sink_takes_the_only_thread_from_nobody() -> None:
    """Its average grows with each failure, so the others are served between."""
    (well, dead), told = _served({"a": 2, "dead": 1}, threads=1)
    assert (well.drained, dead.drained, dead.last_error) == (True, False, "away")
    assert told.count("a") == 2
    assert dead.failures == told.count("dead") > 1


def test_what_one_sink_raises_stops_no_other() -> None:
    """A sink that is set up wrong tells it in its result."""

    def opens(name: str) -> Any:
        if name == "dead":
            raise SinkError("set up wrong")
        return _Sink()

    (well, dead), _ = _served({"a": 1, "dead": 1}, threads=2, opens=opens)
    assert well.drained
    assert "set up wrong" in dead.last_error


def test_a_sink_is_opened_once_and_again_after_what_it_raises() -> None:
    """Not in every turn.  Guard: _Served keeps its relay."""
    opened = []

    class Breaks(_Relay):
        def send_for(self, _: None, seconds: float, *, stop: Any = None) -> RelayResult:
            if self.told.count(self.name) == 3:
                self.told.append(self.name)
                raise SinkError("gone")
            return super().send_for(_, seconds, stop=stop)

    def opens() -> Any:
        opened.append("a")
        return _Sink()

    left, told = {"a": 5}, list[str]()
    (done,) = serve({"a": opens}, lambda *_: Breaks("a", left, told), threads=1, max_seconds=30)  # type: ignore[arg-type]
    assert (len(told), done.drained, done.failures) == (6, True, 1)
    assert len(opened) == 2


def test_it_ends_when_it_is_told_to() -> None:
    """Without an end in time it goes on after everything was sent."""
    stop = threading.Event()
    turns = []

    class Once(_Relay):
        def send_for(self, _: None, seconds: float, *, stop: Any = None) -> RelayResult:
            turns.append(seconds)
            if len(turns) == 2:
                stop.set()
            return RelayResult(0, 0, 0, 0, drained=True, last_error="")

    serve({"a": _Sink}, lambda name, _: Once(name, {}, []), threads=1, stop=stop)  # type: ignore[arg-type, dict-item, return-value]
    assert len(turns) == 2


def test_without_a_thread_nothing_can_be_served() -> None:
    with pytest.raises(InvalidArgument, match="0 threads"):
        _served({"a": 1}, threads=0)
