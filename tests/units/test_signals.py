"""When a consumer handles the signals of its process."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.errors import InvalidArgument
from penstock.leases import signals
from penstock.leases.signals import stopped_by_signals, stopped_by_signals_on_loop
from tests.kit.proof import proves

NUMBERS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def _handlers_of_python() -> Iterator[None]:
    """A session of Spark in this process handles SIGINT; these tests begin as a program does."""
    before = handlers()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in zip(NUMBERS, before, strict=True):
        signal.signal(number, handler)


def handlers() -> list[Any]:
    return [signal.getsignal(number) for number in NUMBERS]


@proves("a signal ends a consumer cleanly")
@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_sets_the_event_and_puts_the_handlers_back(number: int) -> None:
    before = handlers()
    with stopped_by_signals(None) as asked:
        assert all(now is not then for now, then in zip(handlers(), before, strict=True))
        signal.raise_signal(number)
        assert asked.wait(10)
        assert handlers() == before  # a second signal does what it always did
    assert handlers() == before


def test_a_second_signal_does_what_the_caller_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes with the first is told twice by who forwards it.  Guard: _SAME_SECONDS."""
    before, told, now = handlers(), list[int](), [100.0]
    monkeypatch.setattr(signals, "monotonic", lambda: now[0])
    with stopped_by_signals(None, lambda: told.append(1)) as asked:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert asked.wait(10) and not told
        now[0] += 0.5
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert told == [1, 1]
    assert handlers() == before


def test_a_block_that_ends_puts_the_handlers_back() -> None:
    before = handlers()
    with pytest.raises(ZeroDivisionError), stopped_by_signals(None) as asked:
        raise ZeroDivisionError
    assert handlers() == before
    assert not asked.is_set()


@proves("a signal ends a consumer cleanly", guard="only default handlers are taken")
def test_a_handler_of_the_application_stays() -> None:
    """Guard: only what is Python's own, or asyncio.run's, is taken."""
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("mine"))
    try:
        with stopped_by_signals(None) as asked:
            signal.raise_signal(signal.SIGTERM)
            assert heard == ["mine"]
            assert not asked.is_set()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_stop_that_is_given_handles_no_signals() -> None:
    before, stop = handlers(), threading.Event()
    with stopped_by_signals(stop) as asked:
        assert asked is stop
        assert handlers() == before


def test_another_thread_handles_no_signals() -> None:
    seen = []

    def work() -> None:
        with stopped_by_signals(None) as asked:
            seen.append((handlers() == before, asked.is_set()))

    before = handlers()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(True, False)]


def test_on_an_event_loop_it_is_the_same() -> None:
    async def main() -> None:
        before = handlers()
        with stopped_by_signals_on_loop(None) as asked:
            signal.raise_signal(signal.SIGINT)
            await asyncio.wait_for(asked.wait(), 10)
        assert handlers() == before

    asyncio.run(main())


@pytest.mark.parametrize("stop", [5, "stop", True, asyncio.Event()])
def test_a_stop_that_is_none_is_refused(stop: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"threading\.Event"), stopped_by_signals(stop):
        pass


def test_a_thread_event_is_refused_on_a_loop() -> None:
    async def main() -> None:
        stop: Any = threading.Event()
        with (
            pytest.raises(InvalidArgument, match=r"asyncio\.Event"),
            stopped_by_signals_on_loop(stop),
        ):
            pass

    asyncio.run(main())
