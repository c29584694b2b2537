"""How fast this process may connect, so that not all workers reconnect to a database at once.

Nothing is limited until :func:`limit` is called, as the daemon does.  The pauses of the single
loops cannot limit the process: each loop chooses its pauses alone, and every worker has a loop.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Pace:
    """A turn for each attempt, one after the other, with a partly random pause between two.

    During the first ``grace_seconds`` no attempt waits, so that a start can open all connections
    that it needs.  ``clock`` is a monotonic clock in seconds.
    """

    def __init__(
        self,
        per_second: float,
        *,
        grace_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shortest = 1.0 / per_second
        self._clock = clock
        self._free_from = clock() + grace_seconds
        self._next = self._free_from
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.opened = 0
        self.failures = 0

    def pause(self) -> float:
        """Take a turn.  Returns how long the caller has to wait for it."""
        now = self._clock()
        if now < self._free_from:
            return 0.0
        with self._lock:
            turn = max(now, self._next)
            self._next = turn + self._shortest * random.uniform(1.0, 1.5)
        return turn - now

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Wait for a turn, and count whether the attempt in the block succeeds or fails."""
        self._ended.wait(self.pause())
        try:
            yield
        except BaseException:
            with self._lock:
                self.failures += 1
            raise
        if self._clock() >= self._free_from:
            with self._lock:
                self.opened += 1

    def end(self) -> None:
        """End all waits, and let later attempts begin at once: a drain has little time."""
        self._ended.set()


#: Empty, or the one pace of the process.  A process that is not a daemon has none.
_paces: list[Pace] = []


def limit(pace: Pace) -> None:
    """Every :func:`penstock.database.connect` of this process takes its turn from now on."""
    _paces[:] = [pace]


def present() -> Pace | None:
    """The pace of this process, if it has one."""
    return _paces[0] if _paces else None


@contextmanager
def turn() -> Iterator[None]:
    """Around an attempt to connect."""
    pace = present()
    if pace is None:
        yield
        return
    with pace.attempt():
        yield
