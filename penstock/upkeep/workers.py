"""The workers of the upkeep: each is a loop that runs until it is told to stop."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from penstock import database, log
from penstock.database import sessions
from penstock.database.dialect import LONGEST_ANSWER_SECONDS, CommitListener
from penstock.leases.loop import last_turn
from penstock.upkeep.sequencing import (
    PASS_EVENTS,
    Sequenced,
    keep_up,
    sequence_round,
    unless_locked,
)
from penstock.upkeep.sweeping import sweep

logger = logging.getLogger(__name__)

#: An idle sequencer looks again after this time, doubling up to sequencer_idle_seconds.
BUSY_PAUSE = 0.002
#: While there are events, it looks again after this share of the time of a pass.  Events that come
#: meanwhile share the next pass, and publishers and consumers get the processor too.
BUSY_SHARE = 1.0
UPKEEP_EVERY_SECONDS = 60.0
#: How often the waiting events are measured for back pressure.  A measure counts for five seconds.
MEASURE_EVERY_SECONDS = 1.0
PASSES_BETWEEN_MEASURES = 10
#: Of how many subscriptions one turn counts what waits for accounts.
MOST_READERS = 100
#: While it waits to be woken, it looks this often whether it was told to stop.
STOP_SECONDS = 0.25
#: A pass is made at least this often, even if no events wait: only a pass notices a restore.
PASS_EVERY_SECONDS = 5.0


@dataclass(slots=True)
class SequencerWorker:
    """Numbers committed events: without delay while there are any, else less and less often."""

    url: str = field(repr=False)
    max_events: int = PASS_EVENTS
    name: str = "sequencer"
    turned: float = field(default_factory=time.monotonic)
    rests_until: float = -math.inf
    events: int = 0
    passes: int = 0
    wakes: int = 0
    runs: int = 0
    #: When a pass last ended, its own or one of another sequencer.
    passed: float = field(default_factory=time.monotonic)
    #: How long it rests at most before the next pass.
    longest: float = BUSY_PAUSE

    def run(self, stop: threading.Event) -> None:
        """Sequence until told to stop."""
        with _connected(self) as connection:
            commit_listener = sessions.of_connection(connection).commit_listener(connection)
            idle_pause = BUSY_PAUSE
            upkeep_due = measure_due = pass_due = 0.0
            while not stop.is_set():
                self.turned = time.monotonic()
                if self.turned >= upkeep_due:
                    self.longest = keep_up(connection).idle_seconds
                    upkeep_due = self.turned + UPKEEP_EVERY_SECONDS
                if self.turned < pass_due and log.nothing_waits(connection):
                    done = Sequenced(0, 0, busy=False)
                    self._note_pass()
                else:
                    pass_due = self.turned + PASS_EVERY_SECONDS
                    done = sequence_round(
                        connection,
                        max_events=self.max_events,
                        max_passes=PASSES_BETWEEN_MEASURES,
                        after_pass=self._note_pass,
                    )
                if self.turned >= measure_due:
                    unless_locked(
                        "measuring what waits",
                        lambda: bool(database.call(connection, "measure_pressure")),
                        otherwise=False,
                    )
                    measure_due = self.turned + MEASURE_EVERY_SECONDS
                self.events += done.events
                self.passes += done.passes
                took = time.monotonic() - self.turned
                if done.events:
                    idle_pause = BUSY_PAUSE
                    stop.wait(min(BUSY_PAUSE, BUSY_SHARE * took))
                else:
                    # A busy log has an empty pass now and then: the first rest is as short as at
                    # load, else it would be the longest wait of all.
                    self.rest(stop, commit_listener, min(idle_pause, self.longest))
                    idle_pause = min(idle_pause * 2, self.longest)

    def rest(
        self, stop: threading.Event, commit_listener: CommitListener | None, seconds: float
    ) -> None:
        """Wait until the next look is due.  A publisher that has committed may end it earlier.

        However often publishers notify, the looks come no faster than those of a busy sequencer.
        """
        self.rests_until = until = time.monotonic() + seconds
        stop.wait(seconds if commit_listener is None else min(seconds, BUSY_PAUSE))
        while (
            commit_listener is not None
            and not stop.is_set()
            and (left := until - time.monotonic()) > 0
        ):
            if commit_listener.wait(min(left, STOP_SECONDS)):
                self.wakes += 1
                self.rests_until = time.monotonic()
                return

    def last_turn(self) -> float:
        """When the loop last finished a round; now while it rests."""
        return last_turn(self.turned, self.rests_until)

    def counters(self) -> dict[str, float]:
        """Events, passes, and how often a publisher has ended a rest."""
        return {
            "sequenced_events": self.events,
            "sequencer_passes": self.passes,
            "sequencer_wakes": self.wakes,
        }

    def silent_seconds(self) -> float:
        """For how long a pass has been due and none has ended."""
        return time.monotonic() - self.passed - self.longest

    def _note_pass(self) -> None:
        self.passed = time.monotonic()


@dataclass(slots=True)
class SweepWorker:
    """Collects dead consumers, also where no consumer of the subscription checks in any more."""

    url: str = field(repr=False)
    every_seconds: float = 5.0
    name: str = "sweep"
    turned: float = field(default_factory=time.monotonic)
    rests_until: float = -math.inf
    expired: int = 0
    runs: int = 0

    def run(self, stop: threading.Event) -> None:
        """Sweep until told to stop."""
        with _connected(self) as connection:
            while not stop.is_set():
                self.turned = time.monotonic()
                self.expired += sweep(connection).expired_consumers
                _rest(self, stop, self.every_seconds * random.uniform(0.8, 1.2))

    def last_turn(self) -> float:
        """When the loop last finished a round; now while it rests."""
        return last_turn(self.turned, self.rests_until)

    def counters(self) -> dict[str, float]:
        """How many consumers were collected."""
        return {"swept_consumers": self.expired}


@dataclass(slots=True)
class AccountsWorker:
    """Counts what waits for accounts that have a quota for that.

    It has a connection of its own: however much there is to count, no pass of the sequencer waits.
    """

    url: str = field(repr=False)
    name: str = "accounts"
    turned: float = field(default_factory=time.monotonic)
    rests_until: float = -math.inf
    runs: int = 0

    def run(self, stop: threading.Event) -> None:
        """Count round after round until told to stop.  It rests as long as it has counted."""
        with _connected(self) as connection:
            while not stop.is_set():
                self.turned = time.monotonic()
                more = unless_locked(
                    "measuring what waits for accounts", lambda: _count(connection), otherwise=False
                )
                took = time.monotonic() - self.turned
                _rest(self, stop, took if more else MEASURE_EVERY_SECONDS)

    def last_turn(self) -> float:
        """When the loop last finished a round; now while it rests."""
        return last_turn(self.turned, self.rests_until)

    def counters(self) -> dict[str, float]:
        """It has none: what it found is shown with the quota."""
        return {}


def _rest(worker: SweepWorker | AccountsWorker, stop: threading.Event, seconds: float) -> None:
    worker.rests_until = time.monotonic() + seconds
    stop.wait(seconds)


def _count(connection: database.Connection) -> bool:
    """One turn.  Returns whether the round goes on."""
    ((_, more),) = database.call(connection, "measure_accounts", max_readers=MOST_READERS)
    return bool(more)


@contextmanager
def _connected(
    worker: SequencerWorker | SweepWorker | AccountsWorker,
) -> Iterator[database.Connection]:
    """A connection for one run.  A run after a failure logs that the connection works again."""
    name = f"penstock {worker.name}"
    with database.connect(worker.url, application_name=name) as connection:
        sessions.of_connection(connection).answer_within(connection, LONGEST_ANSWER_SECONDS)
        if worker.runs:
            logger.info("%s is connected again", worker.name)
        worker.runs += 1
        yield connection
