"""Workers: loops that a supervisor runs, and a consumer as one of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from penstock.errors import DuplicateSession
from penstock.leases.loop import LoopStats, Rounds, last_turn

logger = logging.getLogger(__name__)

#: How long a consumer waits for the membership of an earlier run with its id to end.
REJOIN_SECONDS = 60.0
REJOIN_PAUSE = 0.5


class Worker(Protocol):
    """A loop under the supervisor."""

    @property
    def name(self) -> str:
        """Its name in log lines and metrics."""

    def run(self, stop: threading.Event) -> None:
        """Work until ``stop`` is set.  An exception is a failure: the worker is started again."""

    def last_turn(self) -> float:
        """When the loop last finished a round, by the monotonic clock."""

    def counters(self) -> dict[str, float]:
        """What the worker has done since its start, by metric name."""


class ConsumerWorker:
    """Runs a consumer of a stream or a queue, a new one for every start, and keeps its figures."""

    prefix = "consumed"

    def __init__(self, name: str, make: Callable[[], Rounds]) -> None:
        self.name = name
        self._make = make
        # Both in one tuple, so that a scrape in between does not count the same events twice.
        self._state: tuple[Rounds | None, dict[str, float]] = (None, {})

    def run(self, stop: threading.Event) -> None:
        """Consume until told to stop.

        A killed run of the same id counts as running until its time ends, so wait for that.
        """
        give_up = time.monotonic() + REJOIN_SECONDS
        while True:
            try:
                return self._follow(self._make()).run(stop)
            except DuplicateSession as error:
                if time.monotonic() > give_up:
                    raise
                logger.warning("%s waits: %s", self.name, error)
                if stop.wait(REJOIN_PAUSE):
                    return None

    def last_turn(self) -> float:
        """When the consumer last polled; now while it rests."""
        consumer, _ = self._state
        if consumer is None:
            return time.monotonic()
        return last_turn(consumer.stats.last_round, consumer.stats.rests_until)

    def counters(self) -> dict[str, float]:
        """Events, batches, failures and stale commits."""
        consumer, before = self._state
        now = self.counted(consumer.stats if consumer else LoopStats())
        return {name: value + before.get(name, 0.0) for name, value in now.items()}

    def counted(self, stats: LoopStats) -> dict[str, float]:
        """What one run has done, by metric name."""
        return {
            f"{self.prefix}_events": stats.events,
            f"{self.prefix}_batches": stats.batches,
            f"{self.prefix}_failures": stats.failures,
            "stale_commits": stats.stale_commits,
        }

    def gauges(self) -> dict[str, float]:
        """What the consumer has in hand."""
        consumer, _ = self._state
        return consumer.gauges() if consumer else {}

    def _follow(self, consumer: Rounds) -> Rounds:
        self._state = (consumer, self.counters())
        return consumer


class QueueWorker(ConsumerWorker):
    """The same for a queue."""

    def counted(self, stats: LoopStats) -> dict[str, float]:
        """Also what the queue has handed out."""
        return super().counted(stats) | {
            "queue_hand_outs": stats.hand_outs,
            "queue_expirations": stats.expirations,
        }
