"""Runs workers in threads: restarts what fails, drains what is told to stop."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from consumers.workers import Worker
from penstock.errors import PenstockError, UsageError

logger = logging.getLogger(__name__)

STARTED_AFTER_SECONDS = 5.0
MAX_RESTART_SECONDS = 30.0
STUCK_AFTER_SECONDS = 90.0


@dataclass(slots=True)
class _Running:
    worker: Worker
    thread: threading.Thread | None = None
    restarts: int = 0
    error: str = ""


class Supervisor:
    """A worker that fails while the daemon starts ends it; later it is started again, with backoff.

    ``clock`` is a monotonic clock in seconds.
    """

    def __init__(
        self, workers: Sequence[Worker], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._running = [_Running(worker) for worker in workers]
        self._stop = threading.Event()
        self._finished = threading.Event()
        self._begun = clock()
        self._fatal: BaseException | None = None

    def start(self) -> None:
        """Start every worker."""
        self._begun = self._clock()
        for each in self._running:
            each.thread = threading.Thread(
                target=self._keep, args=(each,), name=each.worker.name, daemon=True
            )
            each.thread.start()

    def stop(self) -> None:
        """Ask every worker to finish what it has in hand."""
        self._stop.set()
        self._finished.set()

    def wait(self) -> None:
        """Until somebody calls :meth:`stop` or the start has failed; then raises that failure."""
        # A wait without a limit would keep the main thread from its signal handlers.
        while not self._finished.wait(1.0):
            pass

    def drain(self, seconds: float) -> bool:
        """Wait for the workers to end; False when one is still at work after ``seconds``."""
        self.stop()
        deadline = self._clock() + seconds
        for each in self._running:
            if each.thread is not None:
                each.thread.join(max(0.0, deadline - self._clock()))
        if self._fatal is not None:
            raise self._fatal
        return not any(each.thread and each.thread.is_alive() for each in self._running)

    def stuck(self) -> list[str]:
        """The names of workers whose loop has not gone round for too long."""
        now = self._clock()
        return [
            each.worker.name
            for each in self._running
            if now - each.worker.last_turn() > STUCK_AFTER_SECONDS
        ]

    def states(self) -> list[tuple[Worker, int, str]]:
        """Every worker with its restarts and the error that it waits after, if any."""
        return [(each.worker, each.restarts, each.error) for each in self._running]

    def _keep(self, each: _Running) -> None:
        while not self._stop.is_set():
            each.error = ""
            try:
                each.worker.run(self._stop)
            except Exception as error:
                each.error = f"{type(error).__name__}: {error}"
                if self._ends_all(error):
                    self._fatal = self._fatal or error
                    self.stop()
                    return
                each.restarts += 1
                pause = self._pause(each.restarts)
                _report(each.worker.name, error, pause)
                self._stop.wait(pause)

    def _ends_all(self, error: Exception) -> bool:
        """A wrong call will not heal, and a start that fails must be seen by whoever started."""
        return isinstance(error, UsageError) or self._clock() - self._begun < STARTED_AFTER_SECONDS

    def _pause(self, restarts: int) -> float:
        return random.uniform(0.1, min(MAX_RESTART_SECONDS, 0.5 * 2.0 ** min(restarts, 10)))


def _report(name: str, error: Exception, pause: float) -> None:
    trace = None if isinstance(error, PenstockError) else error
    logger.error("%s failed, again in %.1f s: %s", name, pause, error, exc_info=trace)
