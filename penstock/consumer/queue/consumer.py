"""A consumer of a queue with a handler: receives, handles, extends, acknowledges.

The loop is here, and it alone talks to the database for the consumer.  Handlers run in other
threads, or as tasks of an event loop, so the loop extends the claims of handlers that take long.
"""

from __future__ import annotations

import logging
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from penstock.consumer.handlers.choosing import executor_for
from penstock.consumer.handlers.executors import Executor, Outcome
from penstock.consumer.handlers.failures import HandlerFailed, HandlerTimedOut
from penstock.consumer.handlers.handler import is_coroutine_function, wrapped
from penstock.consumer.handlers.options import taking
from penstock.consumer.handlers.working import Connections
from penstock.consumer.queue.backlog import Backlog
from penstock.consumer.queue.delivery import DeliveryWork, HeldDelivery, record, record_async
from penstock.consumer.queue.options import QueueOptions
from penstock.consumer.queue.settling import Settler, is_done
from penstock.database import config
from penstock.errors import StaleReceipt, SubscriptionNotFound
from penstock.leases.keeper import consumer_id
from penstock.leases.loop import LoopSetting, Rounds
from penstock.subscriptions import queue

if TYPE_CHECKING:
    from penstock.database import Connection

__all__ = ["QueueConsumer"]

log = logging.getLogger(__name__)

#: The sizes of a receive: few, because ranges that are dealt in one size are not cut for another.
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500)
#: How much time the handlers' work may take that is received ahead of them.
AHEAD_SECONDS = 1.0
#: The same as a share of the visibility.
AHEAD_SHARE = 0.25
#: A claim is extended when this share of its time is left, and given back when nobody began it.
EXTEND_SHARE = 0.5
#: From so many deliveries on of which no worker has said anything, an event is handled alone.
SUSPECT_DELIVERIES = 2
#: How long the acknowledgement of an event waits for those of others.
TOGETHER_SECONDS = 0.005
#: The first pause after a look that found nothing; each one is twice as long.
FIRST_PAUSE_SECONDS = 0.01
#: The weight of a new measurement in the mean time of a handler.
_WEIGHT = 0.2


class QueueConsumer(Rounds):
    """Receives from a queue until it is told to stop.

    ``handler`` is called with each :class:`penstock.QueueDelivery`.  When it returns, the event is
    finished; when it raises, the event comes again after a pause.  It may return a verdict
    (:data:`penstock.queue.AGAIN`).  The options are those of
    :class:`penstock.consumer.queue.options.QueueOptions`; docs/reference/queue.md explains them.
    """

    @taking(QueueOptions)
    def __init__(self, url: str | None, subscription: str, options: QueueOptions) -> None:
        is_async = is_coroutine_function(options.handler, "the handler")
        middleware = (*options.middleware, record_async if is_async else record)
        handled = wrapped(subscription, options.handler, middleware)
        setting = LoopSetting(url or config.database_url(), subscription, consumer_id())
        super().__init__(setting, idle_seconds=options.idle_seconds)
        self.is_async = is_async
        self._options = options
        self._clock = options.clock
        self._visibility = options.visibility_seconds or 1.0
        self._together_seconds = options.acknowledge_every_seconds or 0.0
        together = options.acknowledge_every_events
        self.backlog = Backlog(options.clock, together=together)
        # Not the loop's own thread, which extends claims.
        self.executor: Executor[HeldDelivery, DeliveryWork] = executor_for(
            self,
            handled,
            options.concurrency,
            handler_seconds=options.handler_seconds,
            may_be_inline=False,
            deliver=self._deliver,
            clock=options.clock,
            slice_seconds=0.0,
            supply=self.backlog,
        )
        self.settler = Settler(subscription, self.stats, options.clock, together=together)
        self._pause = FIRST_PAUSE_SECONDS
        #: When to receive again, and whether the last time brought all that there was room for.
        self._look_at, self._was_full = -math.inf, True
        self._is_ordered = True
        #: How long a handler takes in the mean; None before the first has ended.
        self._mean: float | None = None
        #: Whether handlers finish events in transactions; None before the first has ended.
        self._in_transactions: bool | None = None

    @classmethod
    def of(cls, url: str | None, subscription: str, options: QueueOptions) -> QueueConsumer:
        """A consumer with existing options."""
        return cls(url, subscription, **options.given())

    def run_until_idle(self) -> int:
        """Handle the events that are there now.  Returns how many are finished.

        Raises HandlerFailed when a handler raised: its event comes again later.
        """
        before, failures = self.stats.events, self.stats.failures
        with self.at_work(), self.open() as connection, self.session(connection):
            while self.turn(connection) or self._in_hand:
                if self.executor.under_way:
                    self.executor.wait(self.longest_rest())
                else:
                    self._look_at = -math.inf
        if self.stats.failures > failures:
            raise HandlerFailed(
                f"a handler failed: {self.stats.last_error}",
                hint="the event comes again after its pause, or is a dead letter",
            )
        return self.stats.events - before

    def gauges(self) -> dict[str, float]:
        """How many events it has in hand."""
        return {"queue_in_hand": float(self._in_hand)}

    # -- one round ------------------------------------------------------------------------------

    def round(self, connection: Connection) -> int:
        """Hand over, settle, extend, receive.  Returns 0 when there is nothing more to do now."""
        self._collect()
        self._hand_over()
        is_first = self._receives_first()
        is_full = is_first and self._receive(connection)
        self._hand_over()
        done = self._settle(connection)
        self._keep_claims(connection)
        self._give_up_overdue(connection)
        if not is_first:
            is_full = self._receive(connection)
            self._hand_over()
        return done + is_full

    def _receives_first(self) -> bool:
        """A handler that has nothing to do does not wait for an acknowledgement.

        But that may be what the next event waits for.  And what was in hand for too long would come
        back to this worker before it is acknowledged.
        """
        is_free = self.executor.free > len(self.backlog)
        return is_free and self._together_seconds > 0 and self._clock() < self.settler.late_at

    def heard(self, notices: Sequence[str]) -> None:
        """There are new events: the pace of an idle worker ends."""
        if notices:
            self._pause = FIRST_PAUSE_SECONDS
            self._look_at = -math.inf

    def rest(self) -> None:
        """News of the log matter only while there is room for events."""
        if self._room() > 0:
            super().rest()
        else:
            self.executor.wait(self.longest_rest())

    def longest_rest(self) -> float:
        """Until the next look, or until a claim or a handler needs something."""
        now = self._clock()
        looks = self._room() > 0 and not self.is_stopping()
        # Otherwise the end of a handler wakes the loop.
        due = [self._look_at if looks else now + self._idle_seconds * 10]
        share = self._visibility * EXTEND_SHARE
        due += [self.settler.due_at, self.backlog.late_at()]
        due += [each.until - share for each in self.executor.under_way]
        due += self.executor.next_limits(now)
        return max(0.001, min(due) - now)

    @property
    def _in_hand(self) -> int:
        return len(self.backlog) + len(self.executor.under_way) + len(self.settler.outcomes)

    def _collect(self) -> None:
        """Take back the outcomes that have come."""
        for outcome in self.executor.arrived():
            mean = outcome.took if self._mean is None else self._mean
            self._mean = mean + _WEIGHT * (outcome.took - mean)
            unit = outcome.unit
            self._in_transactions = bool(self._in_transactions) or unit.in_transaction
            assert unit.ended is not None
            late_at = unit.until - self._visibility * EXTEND_SHARE
            self.settler.add(outcome, unit.ended + self._together_seconds, late_at)

    def _settle(self, connection: Connection) -> int:
        """Tell the database what has ended, if that is due: when nothing else is in hand, too."""
        is_idle = not len(self.backlog) or self.backlog.suspect() is not None
        is_idle = is_idle and not self.executor.under_way
        if not is_idle and not self.settler.is_due(self._clock()):
            return 0
        before = len(self.settler.outcomes)
        # What comes again, or waited behind one of them, may be there at once.
        if self._is_ordered or not all(map(is_done, self.settler.outcomes)):
            self._look_at = -math.inf
        try:
            return self.settler.settle(connection)
        finally:
            self.backlog.count(len(self.settler.outcomes) - before)

    def _ahead(self) -> int:
        """How many events to receive ahead of the handlers."""
        if self._options.prefetch is not None:
            return self._options.prefetch
        seconds = min(AHEAD_SECONDS, self._visibility * AHEAD_SHARE)
        most = SIZES[-1] if self._mean is not None else 0
        per_second = self.executor.count / max(self._mean or 0.0, 1e-6)
        return min(most, int(seconds * per_second))

    def _room(self) -> int:
        """How many more events to receive; 0 until half of what is received ahead is gone.

        None beside a suspect: they would be in hand when it ends the worker.
        """
        if self._has_suspect():
            return 0
        ahead = self._ahead()
        missing = self.executor.free + ahead - len(self.backlog)
        idle = self.executor.free > len(self.backlog)
        return missing if idle or missing > ahead // 2 else 0

    def _receive(self, connection: Connection) -> bool:
        """Receive what there is room for, if it is time.  Returns whether more may be there now.

        Each handler that ends begins a round, but between two notices there is nothing to receive.
        """
        room = 0 if self.is_stopping() or self._clock() < self._look_at else self._room()
        if room <= 0:
            return False
        size = max(each for each in SIZES if each <= room)
        begun = self._clock()
        found = queue.receive(
            connection, self._subscription, size, visibility_seconds=self._visibility
        )
        self.stats.hand_outs += len(found)
        self.stats.expirations += sum(each.deliveries > each.failures + 1 for each in found)
        until = begun + self._visibility
        self.backlog.low = (self._ahead() - 1) // 2
        units = [
            HeldDelivery(
                each, each.receipt, until, each.deliveries > each.failures + SUSPECT_DELIVERIES
            )
            for each in found
        ]
        try:
            self._part(connection, units)
        finally:
            self.backlog.extend(units)
        return self._look_again(begun, found=bool(found), is_full=len(found) == size)

    def _look_again(self, begun: float, *, found: bool, is_full: bool) -> bool:
        """When to receive next, if no notice comes before.  Returns whether that is at once.

        A backlog is dealt in parts, so what ends one part need not be the end of the backlog.
        """
        at_once = is_full or (found and self._was_full)
        pause = FIRST_PAUSE_SECONDS if found else self._pause
        self._look_at = -math.inf if at_once else begun + pause * random.uniform(0.5, 1.0)
        self._was_full = is_full
        self._pause = FIRST_PAUSE_SECONDS if found else min(2 * self._pause, self._idle_seconds)
        return at_once

    def _part(self, connection: Connection, units: list[HeldDelivery]) -> None:
        """Give each event a claim of its own, where handlers finish them in transactions.

        A transaction locks a claim: those of events of one claim would wait for each other.
        """
        if self._in_transactions is False or len(units) == 1:
            return
        claims = Counter(each.receipt.claim for each in units)
        joined = [each for each in units if claims[each.receipt.claim] > 1]
        with suppress(StaleReceipt):
            for each, receipt in self._extended(connection, joined, apart=True):
                each.receipt = receipt

    def _hand_over(self) -> None:
        """Give the next events to handlers that have none.  The others take theirs themselves."""
        while self.executor.free and not self.is_stopping():
            alone = not self.executor.under_way and not self.settler.outcomes
            unit = self.backlog.take(alone=alone)
            if unit is None:
                break
            self.executor.submit(unit)

    def _has_suspect(self) -> bool:
        under_way = any(each.is_suspect for each in self.executor.under_way)
        return under_way or self.backlog.has_suspect()

    # -- claims ---------------------------------------------------------------------------------

    def _keep_claims(self, connection: Connection) -> None:
        """Extend the claims of handlers that take long, and give back what nobody has begun."""
        self._put_back(connection, self.backlog.take_late())
        soon = self._clock() + self._visibility * EXTEND_SHARE
        suspect = self.backlog.suspect()
        kept = [*self.executor.under_way, *([] if suspect is None else [suspect])]
        due = [
            each
            for each in kept
            if each.until <= soon and not each.in_use and not each.lost and each.ended is None
        ]
        if due:
            self._extend(connection, due)
            self.backlog.drop_lost()

    def _extend(self, connection: Connection, due: list[HeldDelivery]) -> None:
        """Extend claims together; where one of them is lost, one by one."""
        locked = [each for each in due if each.lock.acquire(blocking=False)]
        try:
            free = [each for each in locked if not each.in_use]
            begun = self._clock()
            try:
                renewed = self._extended(connection, free)
            except StaleReceipt:
                renewed = []
                for each in free:
                    renewed += self._extended_alone(connection, each)
            for each, receipt in renewed:
                each.receipt, each.until = receipt, begun + self._visibility
        finally:
            for each in locked:
                each.lock.release()

    def _extended(
        self, connection: Connection, units: list[HeldDelivery], *, apart: bool = False
    ) -> list[tuple[HeldDelivery, queue.Receipt]]:
        receipts = [each.receipt for each in units]
        renewed = queue.extend(
            connection, self._subscription, receipts, self._visibility, apart=apart
        )
        return list(zip(units, renewed, strict=True))

    def _extended_alone(
        self, connection: Connection, unit: HeldDelivery
    ) -> list[tuple[HeldDelivery, queue.Receipt]]:
        try:
            return self._extended(connection, [unit])
        except StaleReceipt:
            unit.lost = True
            self.stats.stale_commits += 1
            log.warning("a handler has lost its event: it took longer than its claim")
            return []

    def _put_back(self, connection: Connection, units: list[HeldDelivery]) -> None:
        """Release events that nobody has begun: that was no delivery."""
        receipts = [each.receipt for each in units]
        queue.release(connection, self._subscription, receipts, partly=True)

    # -- handlers that take too long ------------------------------------------------------------

    def _give_up_overdue(self, connection: Connection) -> None:
        """Reject the event of each handler that hangs.

        The event that such a handler has in a transaction is locked, and nobody waits for that: it
        comes again when its time is over, if the transaction does not finish it.
        """
        error = self.executor.overdue_error()
        for unit in self.executor.give_up_overdue():
            self._give_up(unit, self._claim(unit), error)
        for unit in self.executor.stranded():
            self._give_up(unit, self._claim(unit, disturbed=True), error)

    def _give_up(self, unit: HeldDelivery, claim: DeliveryWork, error: HandlerTimedOut) -> None:
        self.backlog.count(1)
        self.settler.add(Outcome(unit, claim, error), -math.inf, math.inf)

    def _claim(self, unit: HeldDelivery, *, disturbed: bool = False) -> DeliveryWork:
        """A claim whose handler says nothing any more."""
        claim = DeliveryWork(unit, self._subscription, self._visibility, self.executor)
        claim.disturbed = disturbed
        return claim

    # -- the frame ------------------------------------------------------------------------------

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Handlers run from here on."""
        with self.executor.at_work(), self.woken(self.executor.wake):
            yield

    @contextmanager
    def session(self, connection: Connection) -> Iterator[None]:
        """What is in hand stays in hand when the connection is lost: receipts are good on any."""
        self._look_at_settings(connection)
        yield
        self._put_back(connection, self.backlog.take_all())
        self._collect()  # the last rest may have ended with their wake
        while self.executor.under_way:
            self._settle(connection)
            self._keep_claims(connection)
            self._give_up_overdue(connection)
            self.executor.wait(self.longest_rest())
            self._collect()
        self._settle(connection)

    def _look_at_settings(self, connection: Connection) -> None:
        """What the options leave to the queue.  Who may only receive and acknowledge sees nothing.

        Then the order of keys may matter.
        """
        options = self._options
        self._is_ordered, self._look_at = True, -math.inf
        try:
            found = queue.describe(connection, self._subscription)
        except SubscriptionNotFound:
            if options.visibility_seconds is None:
                raise
        else:
            self._is_ordered = found.order == "key"
            self._visibility = options.visibility_seconds or max(1.0, found.visibility_seconds)
        if options.acknowledge_every_seconds is None:
            self._together_seconds = 0.0 if self._is_ordered else TOGETHER_SECONDS
        self.backlog.spare_seconds = self._visibility * EXTEND_SHARE

    def _deliver(self, unit: HeldDelivery, connections: Connections) -> DeliveryWork:
        return DeliveryWork(unit, self._subscription, self._visibility, connections)
