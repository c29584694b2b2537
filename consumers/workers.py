"""The workers of the daemon: each is a loop that runs until it is told to stop."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ops.relay import Relay
from ops.sequence import keep_up, sequence_round, unless_locked
from ops.sinks.base import Sink
from ops.sweep import sweep
from penstock import database
from penstock.errors import DuplicateSession
from penstock.lease_loop import LeaseLoop, LoopStats

logger = logging.getLogger(__name__)

#: An idle sequencer looks again after this long, doubling up to the setting sequencer_idle_seconds.
BUSY_PAUSE = 0.002
UPKEEP_EVERY_SECONDS = 60.0
#: How often what waits is measured for back pressure; a measure counts for five seconds.
MEASURE_EVERY_SECONDS = 1.0
PASSES_BETWEEN_MEASURES = 10
#: How long a consumer waits for the lease of an earlier run of its id to end.
REJOIN_SECONDS = 60.0
REJOIN_PAUSE = 0.5
SWEEP_EVERY_SECONDS = 5.0


class Worker(Protocol):
    """A loop under the supervisor."""

    @property
    def name(self) -> str:
        """What log lines and metrics call it."""

    def run(self, stop: threading.Event) -> None:
        """Work until ``stop`` is set; an exception is a failure and the worker is started again."""

    def last_turn(self) -> float:
        """When the loop last went round, by the monotonic clock."""

    def counters(self) -> dict[str, float]:
        """What it has done since the start, by metric name."""


@dataclass(slots=True)
class SequencerWorker:
    """Numbers committed events: at once while there are any, else ever more rarely."""

    url: str
    name: str = "sequencer"
    turned: float = field(default_factory=time.monotonic)
    events: int = 0
    passes: int = 0

    def run(self, stop: threading.Event) -> None:
        """Sequence until told to stop."""
        with database.connect(self.url, application_name="penstock sequencer") as connection:
            pause = longest = BUSY_PAUSE
            upkeep_due = measure_due = 0.0
            while not stop.is_set():
                self.turned = time.monotonic()
                if self.turned >= upkeep_due:
                    longest = keep_up(connection).idle_seconds
                    upkeep_due = self.turned + UPKEEP_EVERY_SECONDS
                done = sequence_round(connection, max_passes=PASSES_BETWEEN_MEASURES)
                if self.turned >= measure_due:
                    unless_locked(
                        "measuring what waits",
                        lambda: bool(database.call(connection, "measure_pressure")),
                        otherwise=False,
                    )
                    measure_due = self.turned + MEASURE_EVERY_SECONDS
                self.events += done.events
                self.passes += done.passes
                pause = BUSY_PAUSE if done.events else min(pause * 2, longest)
                stop.wait(pause)

    def last_turn(self) -> float:
        """When the loop last went round."""
        return self.turned

    def counters(self) -> dict[str, float]:
        """Events and passes."""
        return {"sequenced_events": self.events, "sequencer_passes": self.passes}


@dataclass(slots=True)
class SweepWorker:
    """Collects consumers that died, also of subscriptions that nobody checks in to any more."""

    url: str
    name: str = "sweep"
    turned: float = field(default_factory=time.monotonic)
    expired: int = 0

    def run(self, stop: threading.Event) -> None:
        """Sweep until told to stop."""
        with database.connect(self.url, application_name="penstock sweep") as connection:
            while not stop.is_set():
                self.turned = time.monotonic()
                self.expired += sweep(connection).expired_consumers
                stop.wait(SWEEP_EVERY_SECONDS * random.uniform(0.8, 1.2))

    def last_turn(self) -> float:
        """When the loop last went round."""
        return self.turned

    def counters(self) -> dict[str, float]:
        """Consumers that were collected."""
        return {"swept_consumers": self.expired}


class ConsumerWorker:
    """A :class:`penstock.Consumer`, made anew for every start, with its figures kept."""

    prefix = "consumed"

    def __init__(self, name: str, make: Callable[[], LeaseLoop]) -> None:
        self.name = name
        self._make = make
        # Both in one, so that a scrape between them does not count the same events twice.
        self._state: tuple[LeaseLoop | None, dict[str, float]] = (None, {})

    def run(self, stop: threading.Event) -> None:
        """Consume until told to stop.

        A run of the same id that was killed counts as running until its lease ends: wait for that.
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
        """When the consumer last polled."""
        consumer, _ = self._state
        return consumer.stats.last_round if consumer else time.monotonic()

    def counters(self) -> dict[str, float]:
        """Events, batches, failures and stale commits."""
        consumer, before = self._state
        stats = consumer.stats if consumer else LoopStats()
        now = {
            f"{self.prefix}_events": stats.events,
            f"{self.prefix}_batches": stats.batches,
            f"{self.prefix}_failures": stats.failures,
            "stale_commits": stats.stale_commits,
        }
        return {name: value + before.get(name, 0.0) for name, value in now.items()}

    def _follow(self, consumer: LeaseLoop) -> LeaseLoop:
        self._state = (consumer, self.counters())
        return consumer


class RelayWorker(ConsumerWorker):
    """A relay with a sink of its own for every start."""

    prefix = "relayed"

    def __init__(
        self, name: str, url: str, subscription: str, open_sink: Callable[[], Sink]
    ) -> None:
        super().__init__(name, lambda: Relay(url, subscription, self._sink))
        self._open_sink = open_sink
        self._sink: Sink

    def run(self, stop: threading.Event) -> None:
        """Relay until told to stop."""
        self._sink = self._open_sink()
        try:
            super().run(stop)
        finally:
            self._sink.close()
