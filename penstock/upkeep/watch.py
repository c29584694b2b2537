"""One connection for what the pages say about the database: whether it answers, and the lags."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from penstock import database, log, subscriptions
from penstock.database import pace as reconnect
from penstock.log.sequencer_state import second_look
from penstock.subscriptions.relay_groups import by_quorum
from penstock.upkeep import operations, waiting
from penstock.upkeep.metrics import Figures, labels_of

logger = logging.getLogger(__name__)

#: How old a result may be, so that probes and scrapes of several systems cost one query.
FRESH_SECONDS = 1.0
MEASURE_SECONDS = 5.0
STATEMENT_TIMEOUT_MS = 2_000
#: How long a request waits for another one that is already asking the database.
PATIENCE_SECONDS = 3.0
#: Events of a long transaction are old when they appear.  The next pass takes them.
LOOK_AGAIN_SECONDS = 0.5
#: The time between the two looks.
pause = time.sleep


class Watch:
    """Asks the database only when a page is requested.

    ``served`` are the subscriptions that the program reads.  With ``everything``, the lags are
    those of all subscriptions.  With ``waiting_seconds`` it also looks whether a sequencer works.
    Without ``measures`` it only asks whether the database answers, for logins that may ask no more.
    """

    def __init__(
        self,
        url: str,
        served: list[str],
        *,
        everything: bool,
        waiting_seconds: float | None = None,
        measures: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.waiting_seconds = waiting_seconds
        self._url = url
        self._served = served
        self._everything = everything
        self._measures = measures
        self._clock = clock
        self._lock = threading.Lock()
        self._connection: database.Connection | None = None
        self._asked_at = self._measured_at = float("-inf")
        self._problem = self._stalled = ""
        self._figures: Figures = {}

    def problem(self) -> str:
        """Why the program cannot work with the database now, or ''."""
        return self._looked()[0]

    def not_ready(self) -> str:
        """The same, or that events wait and no sequencer takes them."""
        problem, stalled = self._looked()
        return problem or stalled

    def figures(self) -> Figures:
        """Lags, and what the database counts.  When it is down, only that."""
        problem = self.problem()
        if self._measures and not problem and self._lock.acquire(timeout=PATIENCE_SECONDS):
            try:
                if self._clock() - self._measured_at > MEASURE_SECONDS:
                    problem = self._ask(self._measure)
                    self._measured_at = self._clock()
            finally:
                self._lock.release()
        up: Figures = {("database_up", ""): 0.0 if problem else 1.0}
        return up if problem else up | self._figures

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._drop()

    def _looked(self) -> tuple[str, str]:
        """What is wrong with the database, and with sequencing."""
        if not self._lock.acquire(timeout=PATIENCE_SECONDS):
            return "the database does not answer", ""
        try:
            if self._clock() - self._asked_at > FRESH_SECONDS:
                before, self._problem = self._problem, self._ask(self._look)
                self._asked_at = self._clock()
                if before and not self._problem:
                    logger.info("the database can be used again")
            return self._problem, self._stalled
        finally:
            self._lock.release()

    def _look(self, connection: Any) -> None:
        if self.waiting_seconds is None:
            database.execute(connection, "SELECT 1")
        else:
            self._stalled = self._waiting(connection, self.waiting_seconds)

    def _waiting(self, connection: Any, limit: float) -> str:
        """Says so when events wait for longer than this and no sequencer makes a pass."""
        if float(database.call(connection, "unsequenced")[0][1]) <= limit:
            return ""

        def is_stalled(found: log.LogStatus) -> bool:
            last_pass = found.last_pass_age_seconds
            is_late = found.unsequenced_age_seconds > limit
            return is_late and (last_pass is None or last_pass > limit)

        def look() -> log.LogStatus:
            return log.status(connection)

        # After it was said once, one look is enough.
        again = (lambda: None) if self._stalled else (lambda: pause(LOOK_AGAIN_SECONDS))
        found = second_look(look, is_stalled, again)
        if not is_stalled(found):
            return ""
        age = found.unsequenced_age_seconds
        return f"events have waited for {age:.0f} s for their sequence, and no pass was made"

    def _ask(self, question: Callable[[Any], Any]) -> str:
        """What is wrong, or ''.  One lost connection does not mean that the database is down."""
        if self._connection is not None and not self._asked(question):
            return ""
        return self._asked(question)

    def _asked(self, question: Callable[[Any], Any]) -> str:
        try:
            if self._connection is None:
                self._connection = database.connect(
                    self._url,
                    application_name="penstock watch",
                    statement_timeout_ms=STATEMENT_TIMEOUT_MS,
                )
            question(self._connection)
        except Exception as error:  # whatever the error is, the page must say something
            self._drop()
            problem = f"the database cannot be used ({type(error).__name__})"
            if problem != self._problem:  # probes come every few seconds
                # Anybody may read the page: addresses and logins in the error belong in the log.
                logger.warning("the database cannot be used: %s", error)
            return problem
        return ""

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):  # PyMySQL raises if it is already lost
                connection.close()

    def _measure(self, connection: Any) -> None:
        status = log.status(connection)
        found: Figures = {
            ("sequencer_lag_events", ""): float(status.unsequenced_events),
            ("sequencer_lag_seconds", ""): float(status.unsequenced_age_seconds),
        }
        if status.rejected_commits is not None:
            found["rejected_commits", ""] = float(status.rejected_commits)
        for name in self._served:
            found["take_overs", name] = float(subscriptions.take_overs(connection, name))
        each_lag = self._lags(connection)
        counted = by_quorum(connection, each_lag)
        for name, lags in _by_subscription(counted).items():
            found["lag_events", name] = float(sum(each.lag_events for each in lags))
            found["lag_seconds", name] = float(max(each.lag_seconds for each in lags))
        alone = {each.subscription for each in counted}
        sinks = [each for each in each_lag if each.subscription not in alone]
        for name, lags in _by_subscription(sinks).items():
            found["sink_lag_events", name] = float(sum(each.lag_events for each in lags))
            found["sink_lag_seconds", name] = float(max(each.lag_seconds for each in lags))
        for name, lags in _by_subscription(each_lag).items():
            held = [each for each in lags if each.holder is not None]
            found["leased_partitions", name] = float(len(held))
        self._figures = found | waiting.figures(connection, status, self._served_or_all())

    def _served_or_all(self) -> list[str] | None:
        return None if self._everything else self._served

    def _lags(self, connection: Any) -> list[subscriptions.Lag]:
        if self._everything:
            return subscriptions.lag(connection)
        return [lag for name in self._served for lag in subscriptions.lag(connection, name)]


def _by_subscription(lags: Iterable[subscriptions.Lag]) -> dict[str, list[subscriptions.Lag]]:
    lags = list(lags)
    labels = labels_of(each.subscription for each in lags)
    found: dict[str, list[subscriptions.Lag]] = {}
    for each in lags:
        found.setdefault(labels[each.subscription], []).append(each)
    return found


def of_this_process() -> Figures:
    """What the pace has counted in this process, and how long its calls took."""
    pace = reconnect.present()
    if pace is None:
        return operations.figures()
    return operations.figures() | {
        ("database_reconnects", ""): float(pace.opened),
        ("database_connect_failures", ""): float(pace.failures),
    }
