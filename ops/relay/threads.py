"""A few threads that do not hold up the end of the process, as those of an executor would."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

Work = Callable[[], None]

_END_SECONDS = 1.0


class SideThreads:
    """Up to ``count`` daemon threads, started when they are needed.

    Work that never ends keeps its thread, and nobody waits for it. What is given must not raise.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._given: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._free = threading.Semaphore(0)

    def give(self, work: Work) -> None:
        """Have it done.  RuntimeError when no thread can be started for it: then it is not done."""
        if not self._free.acquire(blocking=False) and len(self._threads) < self._count:
            made = threading.Thread(target=self._run, daemon=True, name=self._name)
            made.start()
            self._threads.append(made)
        self._given.put(work)

    def replace(self) -> None:
        """One more thread may be started: a call that never ends keeps the one that it has."""
        self._count += 1

    def end(self) -> None:
        """Each thread ends after what it is doing.  Those that do nothing are waited for."""
        for _ in self._threads:
            self._given.put(None)
        ends = time.monotonic() + _END_SECONDS
        for each in self._threads:
            each.join(max(0.0, ends - time.monotonic()))

    def _run(self) -> None:
        while (work := self._given.get()) is not None:
            work()
            self._free.release()
