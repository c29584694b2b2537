"""A consumer that runs without a `stop` ends cleanly at the first SIGINT (Ctrl-C) or SIGTERM."""

from __future__ import annotations

import inspect
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    import asyncio

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

#: A terminal and a program in between may both tell the same Ctrl-C.
_SAME_SECONDS = 0.3


@contextmanager
def stopped_by_signals(
    stop: threading.Event | None, again: Callable[[], object] | None = None
) -> Iterator[threading.Event]:
    """The event that ends a run: the caller's, or one that signals set while the block runs.

    ``again``: what a second signal does, unless it comes with the first.
    """
    if stop is not None:
        if not callable(getattr(stop, "is_set", None)) or _is_async(stop):
            raise InvalidArgument(
                f"stop is a {type(stop).__name__}",
                hint="give a threading.Event, or nothing: then SIGINT and SIGTERM end the run",
            )
        yield stop
        return
    asked = threading.Event()
    # Event.set in a signal handler could meet the lock that the interrupted main thread holds in
    # Event.wait; a put into this queue may interrupt anything.
    told: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def hear() -> None:
        if told.get():
            asked.set()

    with _handling(lambda: told.put(True), again) as is_handling:
        if not is_handling:
            yield asked
            return
        listener = threading.Thread(target=hear, name="penstock-signals", daemon=True)
        listener.start()
        try:
            yield asked
        finally:
            told.put(False)
            listener.join()


@contextmanager
def stopped_by_signals_on_loop(stop: asyncio.Event | None) -> Iterator[asyncio.Event]:
    """The same for a coroutine."""
    import asyncio  # a consumer without an event loop does not load it

    if stop is not None:
        if not _is_async(stop):
            raise InvalidArgument(
                f"stop is a {type(stop).__name__}",
                hint="give an asyncio.Event, or nothing: then SIGINT and SIGTERM end the run",
            )
        yield stop
        return
    asked, loop = asyncio.Event(), asyncio.get_running_loop()
    with _handling(lambda: loop.call_soon_threadsafe(asked.set)):
        yield asked


@contextmanager
def _handling(
    tell: Callable[[], object], again: Callable[[], object] | None = None
) -> Iterator[bool]:
    """Call `tell` at the first signal.  False where Penstock may not handle signals.

    Only the main thread may handle signals, and a handler that the application has set stays.  A
    second signal calls `again`, or does what it would have done without Penstock.  One that comes
    within `_SAME_SECONDS` is the first one once more to who gave `again`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield False
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    ours = {number: found for number, found in before.items() if _is_default(found)}
    asked: list[float] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if again is None:
            restore()
        elif asked and monotonic() - asked[0] >= _SAME_SECONDS:
            again()
        asked.append(monotonic())
        tell()

    def restore() -> None:
        for number, found in ours.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, found)

    for number in ours:
        signal.signal(number, handle)
    try:
        yield bool(ours)
    finally:
        restore()


def _is_default(found: Any) -> bool:
    """Whether this handler was set by Python or asyncio.run, and not by the application."""
    if found is signal.SIG_DFL or found is signal.default_int_handler:
        return True
    owner = getattr(getattr(found, "func", None), "__self__", None)
    return type(owner).__module__ == "asyncio.runners"


def _is_async(stop: Any) -> bool:
    return inspect.iscoroutinefunction(getattr(stop, "wait", None))
