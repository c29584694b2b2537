"""What becomes of events that a queue's handlers are done with: one call for many."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.consumer.handlers.executors import Outcome
from penstock.consumer.handlers.failures import HandlerTimedOut
from penstock.consumer.queue.delivery import DeliveryWork, HeldDelivery
from penstock.errors import StaleReceipt, error_text
from penstock.subscriptions import queue
from penstock.subscriptions.queue import Receipt
from penstock.subscriptions.verdicts import AGAIN, DISCARD, again

if TYPE_CHECKING:
    from penstock.database import Connection
    from penstock.leases.loop import LoopStats

log = logging.getLogger(__name__)


class Settler:
    """Acknowledges, rejects and releases.  An outcome stays until the database has answered.

    ``together`` is how many outcomes at most wait for each other, ``clock`` that of the units.
    """

    def __init__(
        self, subscription: str, stats: LoopStats, clock: Callable[[], float], *, together: int
    ) -> None:
        self._subscription = subscription
        self._stats = stats
        self._clock = clock
        self._together = together
        self.outcomes: list[Outcome[HeldDelivery, DeliveryWork]] = []
        #: When the database has to be told at the latest.
        self.due_at = math.inf
        #: When the first of their claims is near its end.
        self.late_at = math.inf

    def add(
        self, outcome: Outcome[HeldDelivery, DeliveryWork], due_at: float, late_at: float
    ) -> None:
        """One more, which waits until then at most.  What has failed is told at once."""
        self.outcomes.append(outcome)
        self.late_at = min(self.late_at, late_at)
        self.due_at = min(self.due_at, late_at, due_at if is_done(outcome) else -math.inf)

    def is_due(self, now: float) -> bool:
        """Whether one of them has waited long enough, or they are enough for a call."""
        return now >= self.due_at or len(self.outcomes) >= self._together

    def settle(self, connection: Connection) -> int:
        """Tell the database of all outcomes.  Returns how many events came to an end."""
        if not self.outcomes:
            return 0
        settled = len(self.outcomes)
        self._acknowledge(connection, [each for each in self.outcomes if is_done(each)])
        for each in list(self.outcomes):
            self._fail(connection, each)
            self.outcomes.remove(each)
        self.due_at = self.late_at = math.inf
        return settled

    def _acknowledge(
        self, connection: Connection, done: list[Outcome[HeldDelivery, DeliveryWork]]
    ) -> None:
        """Those that the handler has finished itself are only counted."""
        receipts = [each.unit.receipt for each in done if not each.batch.acknowledged]
        good = len(done) - len(receipts)
        try:
            queue.acknowledge(connection, self._subscription, receipts)
            good += len(receipts)
        except StaleReceipt:
            good += self._acknowledge_partly(connection, receipts)
        for each in done:
            self.outcomes.remove(each)
            if each.batch.verdict is DISCARD:
                log.warning("the handler discarded %s", _place(each.unit))
        self._stats.done(good)

    def _acknowledge_partly(self, connection: Connection, receipts: list[Receipt]) -> int:
        good = queue.acknowledge(connection, self._subscription, receipts, partly=True)
        stale = good.count(False)
        self._stats.stale_commits += stale
        log.warning("%s events were handled, but others have them by now", stale)
        return len(good) - stale

    def _fail(self, connection: Connection, outcome: Outcome[HeldDelivery, DeliveryWork]) -> None:
        """An event that is not done: it comes again."""
        unit, error = outcome.unit, outcome.error
        verdict = outcome.batch.verdict
        if error is not None:
            self._stats.failed(error)
            self._stats.timeouts += isinstance(error, HandlerTimedOut)
            log.error("handler failed at %s", _place(unit), exc_info=error)
            verdict = again(reason=error_text(error))
        is_locked = unit.abandoned and unit.in_use > 0
        if outcome.batch.acknowledged or is_locked or isinstance(error, StaleReceipt):
            return
        if outcome.disturbed or (error is None and verdict.kind != AGAIN.kind):
            queue.release(connection, self._subscription, [unit.receipt], partly=True)
            return
        queue.reject(
            connection,
            self._subscription,
            [unit.receipt],
            reason=verdict.reason,
            delay_seconds=self._rest_of(verdict.delay_seconds, unit),
            partly=True,
        )

    def _rest_of(self, delay: float | None, unit: HeldDelivery) -> float | None:
        """What is left of a delay, which began when the handler said so.

        Each failure is told by a call of its own, so the last one of many is told much later.
        """
        if delay is None or unit.ended is None:
            return delay
        return max(0.0, delay - (self._clock() - unit.ended))


def is_done(outcome: Outcome[HeldDelivery, DeliveryWork]) -> bool:
    """Whether the event is finished.  A handler may have been cut off before it began."""
    has_ended = outcome.error is None and outcome.unit.done > 0
    return has_ended and outcome.batch.verdict.kind != AGAIN.kind


def _place(unit: HeldDelivery) -> str:
    event = unit.delivery.event
    return f"{event.topic} partition {event.partition} sequence {event.sequence}"
