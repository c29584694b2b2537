"""Runs workers in threads: restarts what fails, drains what is told to stop."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock import database
from penstock.consumer.running.worker import Worker
from penstock.database.backoff import MAX_RECONNECT_SECONDS, backoff
from penstock.errors import PenstockError, UsageError, error_text, said

logger = logging.getLogger(__name__)

STARTED_AFTER_SECONDS = 5.0
MAX_RESTART_SECONDS = 30.0
#: After so long without a failure, the next one counts as the first again.
HEALTHY_AFTER_SECONDS = 60.0
STUCK_AFTER_SECONDS = 300.0
LOOK_SECONDS = 0.5


class ProcessEnded(PenstockError):
    """A process that had begun to work has ended without being asked to."""


@dataclass(slots=True)
class _Running:
    worker: Worker
    thread: threading.Thread | None = None
    restarts: int = 0
    error: str = ""
    attempt: int = 0
    #: When it was last started or failed.  A worker that waits for its next start is not stuck.
    turned: float = 0.0


class Supervisor:
    """Runs workers in threads.  A worker that fails is started again, with backoff.

    But a worker that fails while the daemon starts ends the daemon.
    ``clock`` is a monotonic clock in seconds.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        *,
        clock: Callable[[], float] = time.monotonic,
        stuck_after_seconds: float = STUCK_AFTER_SECONDS,
    ) -> None:
        self._clock = clock
        self._stuck_after = stuck_after_seconds
        self._begun = clock()
        self._running = [_Running(worker, turned=self._begun) for worker in workers]
        self._stop = threading.Event()
        # A put into this queue may interrupt a get from it; Event.set in a signal handler could
        # meet the lock that the interrupted main thread holds in Event.wait.
        self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()
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
        """Make :meth:`wait` return; a signal handler may call it at any moment."""
        self._asked.put(None)

    def wait(self) -> None:
        """Wait until :meth:`stop` is called, or a worker fails so that all must end.

        The kernel may give a signal to any thread, but only this one runs handlers.  So it has to
        wake up by itself now and then.
        """
        while True:
            with contextlib.suppress(queue.Empty):
                return self._asked.get(timeout=LOOK_SECONDS)

    def drain(self, seconds: float) -> bool:
        """Ask every worker to finish what it has in hand, and wait for it.

        Returns False when one is still at work after ``seconds``.  Raises the failure that ended
        all.
        """
        self._stop.set()
        deadline = self._clock() + seconds
        for each in self._running:
            if each.thread is not None:
                each.thread.join(max(0.0, deadline - self._clock()))
        if self._fatal is not None:
            raise self._fatal
        return not any(each.thread and each.thread.is_alive() for each in self._running)

    @property
    def draining(self) -> bool:
        """Whether the workers were told to finish."""
        return self._stop.is_set()

    def stuck(self) -> list[str]:
        """The names of workers whose loop has not gone round for too long."""
        now = self._clock()
        return [
            each.worker.name
            for each in self._running
            if now - max(each.worker.last_turn(), each.turned) > self._stuck_after
        ]

    def states(self) -> list[tuple[Worker, int, str]]:
        """Every worker with its restarts and the error that it waits after, if any."""
        return [(each.worker, each.restarts, each.error) for each in self._running]

    def _keep(self, running: _Running) -> None:
        while not self._stop.is_set():
            running.error = ""
            running.turned = started = self._clock()
            try:
                running.worker.run(self._stop)
            except BaseException as error:  # nobody would hear of a thread that has ended
                running.turned = self._clock()
                running.error = error_text(error)
                if self._ends_all(error, running.turned - started):
                    self._fatal = self._fatal or _as_exception(error)
                    self._stop.set()
                    self.stop()
                    return
                running.restarts += 1
                healthy = running.turned - started > HEALTHY_AFTER_SECONDS
                running.attempt = 1 if healthy else running.attempt + 1
                pause = backoff(running.attempt, _longest_pause(error))
                _report(running.worker.name, error, pause)
                self._stop.wait(pause)

    def _ends_all(self, error: BaseException, ran_seconds: float) -> bool:
        """Whether this failure ends all workers.

        A failure at the start does, so that the operator sees it: a wrong call stays wrong.  A call
        that was right for a while does not: somebody has removed what it needs, a subscription for
        example, and that must not end the others.  Nor does what passes, such as a lock that took
        too long.  Nor does a process that a handler has crashed: the event is tried again.
        """
        if database.is_passing(error) or isinstance(error, ProcessEnded):
            return False
        if isinstance(error, UsageError) and ran_seconds < HEALTHY_AFTER_SECONDS:
            return True
        return self._clock() - self._begun < STARTED_AFTER_SECONDS


def _longest_pause(error: BaseException) -> float:
    """A worker goes on soon after the database is back.  Consumers have the same bound."""
    return MAX_RECONNECT_SECONDS if database.is_passing(error) else MAX_RESTART_SECONDS


def _as_exception(error: BaseException) -> Exception:
    """What the program raises at its end: an exit or an interruption would end it in silence."""
    return error if isinstance(error, Exception) else PenstockError(error_text(error))


def _report(name: str, error: BaseException, pause: float) -> None:
    trace = None if isinstance(error, PenstockError) else error
    logger.error("%s failed, again in %.1f s: %s", name, pause, said(error), exc_info=trace)
