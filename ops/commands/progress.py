"""A line at a terminal that tells how a backlog drains, while a command works on it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

#: How often the line is written anew.
SECONDS = 0.5


@contextmanager
def live_line(
    total: Callable[[], int],
    done: Callable[[], int],
    *,
    stream: TextIO | None = None,
    seconds: float = SECONDS,
) -> Iterator[None]:
    """Show how many of ``total()`` events are done, how fast, and how long the rest takes.

    Only at a terminal: whoever reads the errors of a program gets no such line.
    """
    out = stream or sys.stderr
    if not out.isatty():
        yield
        return
    stop = threading.Event()
    thread = threading.Thread(target=_write, args=(out, total(), done, stop, seconds), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _write(
    out: TextIO, total: int, done: Callable[[], int], stop: threading.Event, seconds: float
) -> None:
    begun = time.monotonic()
    shown = ""
    while not stop.wait(seconds):
        said = line(done(), total, time.monotonic() - begun)
        out.write(f"\r{said.ljust(len(shown))}")
        out.flush()
        shown = said
    out.write(f"\r{' ' * len(shown)}\r")
    out.flush()


def line(done: int, total: int, seconds: float) -> str:
    """What the line says.  More can come than there was at the start."""
    rate = done / seconds if seconds else 0.0
    said = f"{done:,} of {max(total, done):,} events, {rate:,.0f} a second"
    if rate and done < total:
        minutes, rest = divmod(round((total - done) / rate), 60)
        said += f", {minutes} min {rest} s left" if minutes else f", {rest} s left"
    return said
