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
    ``replaced``: so many more may be started, in the place of those that such work keeps.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._given: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        #: How much was given and is not done.
        self._under_way = 0
        self.replaced = 0

    def give(self, work: Work) -> None:
        """Have it done.  RuntimeError when no thread can be started for it: then it is not done."""
        with self._lock:
            self._under_way += 1
            is_short = self._under_way > len(self._threads)
        if is_short and len(self._threads) < self._count + self.replaced:
            made = threading.Thread(target=self._run, daemon=True, name=self._name)
            try:
                made.start()
            except RuntimeError:
                self._done()
                raise
            self._threads.append(made)
        self._given.put(work)

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
            self._done()

    def _done(self) -> None:
        with self._lock:
            self._under_way -= 1
