"""A consumer with a handler: polls, handles, commits, in order per partition or per key.

The loop's thread reads events, hands them to an executor (:mod:`penstock.consumer.executors`),
takes back the outcomes and commits.  :mod:`penstock.consumer.in_flight` keeps what is in flight.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from penstock.consumer.assignment import TopicPartition
from penstock.consumer.delivery import (
    Batch,
    HandlerFailed,
    HandlerRolledBack,
    HandlerTimedOut,
    OutlivedLease,
)
from penstock.consumer.executors import Hands, Inline, Outcome, Threads
from penstock.consumer.handler import Handler, Middleware, handling
from penstock.consumer.in_flight import InHand, Unit
from penstock.consumer.options import above_zero, at_least, callback, event_filter, whole
from penstock.consumer.reading import Bounds
from penstock.consumer.retrying import Failing
from penstock.consumer.signals import stopped_by_signals
from penstock.consumer.task_executor import BLOCKED_LOOP_FACTOR, Tasks
from penstock.errors import PenstockError, StaleLease
from penstock.leases.loop import ConnectionLost

if TYPE_CHECKING:
    from penstock.database import Connection

__all__ = [
    "Batch",
    "Consumer",
    "HandlerFailed",
    "HandlerRolledBack",
    "HandlerTimedOut",
    "OutlivedLease",
    "TopicPartition",
]

log = logging.getLogger(__name__)

#: What is read ahead where handlers run beside the loop.
PREFETCH_ROWS = 5_000
PREFETCH_BYTES = 64 * 1024 * 1024
#: In the loop's own thread a commit keeps what comes next waiting: one for all rounds of so long.
INLINE_COMMIT_SECONDS = 0.01
#: Events of one key that are handed over together.
KEY_RUN = 16
#: How soon to look again whose fault it is that a handler takes too long.
HANGING_LOOK_SECONDS = 0.05


class Consumer(Failing):
    """Reads a subscription until it is told to stop.

    Give ``handler``, called with each event, or ``batch_handler``, called with each :class:`Batch`;
    ``def`` or ``async def``.  What fails comes again after a pause, as the subscription's retry
    policy says.  docs/consumers.md explains every option.
    """

    def __init__(
        self,
        url: str | None,
        subscription: str,
        *,
        handler: Handler | None = None,
        batch_handler: Handler | None = None,
        consumer_id: str | None = None,
        weight: float = 1.0,
        topics: Sequence[str] | None = None,
        batch_size: int = 500,
        idle_seconds: float = 0.5,
        concurrency: int = 1,
        types: Collection[str] | None = None,
        headers: Mapping[str, Any] | None = None,
        prefetch_rows: int | None = None,
        prefetch_bytes: int = PREFETCH_BYTES,
        commit_every_events: int | None = None,
        commit_every_seconds: float = 1.0,
        handler_seconds: float | None = None,
        middleware: Sequence[Middleware] = (),
        on_assigned: Callable[[dict[TopicPartition, int]], Any] | None = None,
        on_revoked: Callable[[list[TopicPartition]], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        coordination: str | None = None,
        assign: str = "stealing",
    ) -> None:
        self._handling = handling(subscription, handler, batch_handler, middleware)
        whole("batch_size", batch_size, 1)
        whole("concurrency", concurrency, 1)
        whole("prefetch_bytes", prefetch_bytes, 1)
        whole("prefetch_rows", 0 if prefetch_rows is None else prefetch_rows, 0)
        at_least("idle_seconds", idle_seconds, 0)
        at_least("commit_every_seconds", commit_every_seconds, 0)
        callback("on_assigned", on_assigned)
        callback("on_revoked", on_revoked)
        above_zero("commit_every_events", commit_every_events)
        above_zero("handler_seconds", handler_seconds)
        by_key = concurrency > 1 and batch_handler is None
        inline = concurrency == 1 and handler_seconds is None and not self._handling.is_async
        at_once = INLINE_COMMIT_SECONDS if inline and commit_every_events is None else math.inf
        rows = (0 if inline else PREFETCH_ROWS) if prefetch_rows is None else prefetch_rows
        super().__init__(
            url,
            subscription,
            consumer_id=consumer_id,
            weight=weight,
            topics=topics,
            idle_seconds=idle_seconds,
            clock=clock,
            by_key=by_key,
            commit_every_events=commit_every_events or batch_size,
            commit_every_seconds=min(commit_every_seconds, at_once),
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            bounds=Bounds(rows, prefetch_bytes, batch_size),
            wanted=event_filter(types, headers),
            by_batch=self._handling.by_batch,
            rng=rng,
            coordination=coordination,
            assign=assign,
        )
        self._batch_size = batch_size
        self._slice_seconds = commit_every_seconds
        self._handler_seconds = self._overdue_seconds = handler_seconds
        if handler_seconds is not None and self._handling.is_async:
            self._overdue_seconds = handler_seconds * BLOCKED_LOOP_FACTOR
        self.hands = self._make_hands(concurrency, inline=inline)

    def tell(self, callback: Callable[[Any], Any], said: Any) -> None:
        """Where the handlers run."""
        self.hands.tell(callback, said)

    def connection(self) -> Connection:
        """The connection on which the caller's thread may work."""
        return self.hands.connection

    def async_connection(self) -> AbstractAsyncContextManager[Any]:
        """The same for a coroutine."""
        return self.hands.async_connection()

    def run(self, stop: threading.Event | None = None) -> None:
        """Work until ``stop`` is set; the events in hand are finished and committed first.

        Without one, SIGINT (Ctrl-C) and SIGTERM end it in the same way, in the main thread.
        """
        with stopped_by_signals(stop) as asked:
            super().run(asked)

    def run_until_idle(self) -> int:
        """Work off what is there now; answers how many events were handled.

        HandlerFailed when a handler raised: its events, and those behind them, are left.
        """
        before = self.stats.events
        with (
            self.keeper,
            self.at_work(),
            self.open() as connection,
            self._session(connection, read_ahead=False),
        ):
            while self.keeper.leases() and (self.turn(connection) or self.hands.under_way):
                if self.hands.under_way:
                    self._wait_for_hands()
        if self.has_postponed:
            raise HandlerFailed(
                f"a handler failed: {self.stats.last_error}",
                hint="the events are left as they were; run again",
            )
        return self.stats.events - before

    @property
    def is_async(self) -> bool:
        """Whether its handler is a coroutine function."""
        return self._handling.is_async

    def use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the handlers on this event loop, and not on one of its own."""
        assert isinstance(self.hands, Tasks)
        self.hands.loop = loop

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Handlers run from here on."""
        with self.hands.at_work(), self.woken(self.hands.wake):
            yield

    @contextmanager
    def session(self, connection: Connection) -> Iterator[None]:
        """What is in hand is read on this connection, and forgotten with it."""
        with self._session(connection, read_ahead=self.reads_ahead):
            yield

    def round(self, connection: Connection) -> int:
        """Read, hand over, take back, commit; answers how much was done."""
        self.look_around(connection, self.look_at_leases())
        if self._reader is None:
            self.poll(connection)
        elif self._reader.error is not None:
            raise self._reader.error
        done = self._hand_over(connection)
        self._give_up_overdue(connection)
        self.commit_due(connection, idle=not done)
        return done

    # -- handing over ---------------------------------------------------------------------------

    def busy(self) -> set[int]:
        """Where a handler is at work that was begun before the lease was lost, or an outage."""
        return {each.work.lease.partition_id for each in self.hands.under_way if each.work.closed}

    def _hand_over(self, connection: Connection) -> int:
        """Begin what can be begun; answers how much came to an end."""
        done, committed_at = self._settle(connection), self._clock()
        ready = [
            self._hand[lease.partition_id]
            for lease in self.ready_leases()
            if lease.partition_id in self._hand
        ]
        while ready and self.hands.free:
            still: list[InHand] = []
            for each in ready:
                if not self.hands.free or self.is_stopping():
                    break
                unit = self._next(connection, each) if self.holds(each.lease) else None
                if unit is not None:
                    self.hands.submit(unit)
                    done += self._settle(connection)
                    committed_at = self._committed_between(connection, committed_at)
                    still.append(each)
            # The loop's own thread has to commit in between.
            ready = [] if isinstance(self.hands, Inline) or self.is_stopping() else still
        return done

    def _committed_between(self, connection: Connection, committed_at: float) -> float:
        """A round over many partitions may take long; answers when something was committed last."""
        now = self._clock()
        if now - committed_at < self._slice_seconds:
            return committed_at
        self.commit_due(connection, idle=True)
        return now

    def _next(self, connection: Connection, each: InHand) -> Unit | None:
        """The next unit of a partition that may be handed out."""
        left = self.most_uncommitted() - each.handled
        limit = KEY_RUN if self._by_key else max(1, min(self._batch_size, left))
        while not each.closed:
            with self._lock:
                unit = each.begin_letter() or each.begin(limit, self._clock())
            if unit is None:
                break
            unit.policy = self._policy
            if unit.letter is not None or self.prepared(connection, unit):
                return unit
        return None

    def careful_under_way(self) -> bool:
        """Whether something is being handled that may be what ended an earlier consumer."""
        return any(unit.careful for unit in self.hands.under_way)

    def _settle(self, connection: Connection) -> int:
        done = 0
        for outcome in self.hands.arrived():
            try:
                done += self._settled(connection, outcome)
            except StaleLease as error:
                self.lease_lost(outcome.unit.work, error)
        return done

    def _settled(self, connection: Connection, outcome: Outcome) -> int:
        """Take back a unit; answers what it has brought forward.  StaleLease: nothing."""
        unit, error = outcome.unit, outcome.error
        self.stats.last_round = self._clock()
        if unit.work.closed:
            self._look_at_late_commit(connection, outcome)
            return 0
        if isinstance(error, StaleLease):
            raise error
        if unit.letter is not None and not outcome.cut_off:
            finished = outcome.batch.handed_over
            if outcome.disturbed and error is not None:
                return self.unit_disturbed(unit, error)
            return self.letter_ended(connection, unit, error, finished=finished)
        if outcome.cut_off and isinstance(self.hands, Inline):
            raise self._cut_off(unit, error, outcome.outlived)
        if outcome.batch.handed_over:
            error = self._compare(connection, outcome)
        if error is not None:
            failed = self.unit_disturbed if outcome.disturbed else self.unit_failed
            return failed(unit, error)
        self.end(unit)
        with self._lock:
            unit.work.widen(unit)
        if unit.careful:  # what ends this process next is not to be counted for it as well
            self.keep_what_is_done(connection)
        return unit.done

    def _cut_off(self, unit: Unit, error: BaseException | None, outlived: bool) -> PenstockError:
        """The loop's own connection went away under a handler: what to raise."""
        if outlived and unit.letter is None:
            error = OutlivedLease(
                f"the work on {len(unit.events)} events took longer than the lease: {error}",
                hint="use a smaller batch_size, or penstock.stream.configure_subscription",
            )
            self.postpone_unit(unit, error)
        else:
            self._put_down(unit)
        return ConnectionLost(str(error))

    def _compare(self, connection: Connection, outcome: Outcome) -> BaseException | None:
        """The handler had a hand in the position: how far it stands, the database knows."""
        unit, error = outcome.unit, outcome.error
        stored = self.keeper.position(connection, unit.work.lease)
        committed = sum(event.sequence <= stored for event in unit.events)
        if stored >= outcome.batch.claimed:
            unit.done = max(unit.done, committed)
        else:
            unit.done = committed
            error = error or HandlerRolledBack("the handler gave the position back by a rollback")
        self.stands_at(unit.work, stored)
        return error

    def _look_at_late_commit(self, connection: Connection, outcome: Outcome) -> None:
        """A handler has committed by itself under a lease that had ended here, and may be back."""
        lease = outcome.unit.work.lease
        if not outcome.batch.handed_over or not self.keeper.knows(lease):
            return
        try:
            self.keeper.moved(lease, self.keeper.position(connection, lease))
        except StaleLease as error:
            self.stale(lease, error)

    # -- failing --------------------------------------------------------------------------------

    def _give_up_overdue(self, connection: Connection) -> None:
        """A thread cannot be ended: what hangs loses its lease, and can commit nothing."""
        if self._overdue_seconds is None:
            return
        latest = self._clock() - self._overdue_seconds
        overdue = [unit for unit in self.hands.under_way if unit.began < latest]
        for unit in self.hands.hanging(overdue):
            if self.hands.abandon(unit):
                self._hangs(connection, unit)
        for unit in self.hands.stranded():
            self._put_down(unit)

    def _put_down(self, unit: Unit) -> None:
        """What it has done is done, and the rest comes again; that was no attempt."""
        if unit.letter is not None:
            unit.work.end_letter()
        else:
            self.end(unit)

    def _hangs(self, connection: Connection, unit: Unit) -> None:
        each = unit.work
        if each.closed:
            return
        error = HandlerTimedOut(f"the handler is at it for more than {self._overdue_seconds} s")
        if unit.letter is not None:
            self.letter_ended(connection, unit, error, finished=False)
        else:
            self.unit_failed(unit, error)
        self.part_with(connection, [each])
        self.release(connection, [each.lease])

    # -- the frame ------------------------------------------------------------------------------

    @contextmanager
    def _session(self, connection: Connection, *, read_ahead: bool) -> Iterator[None]:
        if isinstance(self.hands, Inline):
            self.hands.on(connection)
        if read_ahead:
            self.start_reading(self.hands.wake.set)
        try:
            yield
            self.stop_reading()
            self._drain(connection)
        finally:
            self.stop_reading()
            left = list(self._hand.values())
            if left:
                self.forget(left)
                self.tell_revoked(left)

    def _drain(self, connection: Connection) -> None:
        """Finish what was begun, and give everything back."""
        while self.hands.under_way:
            self._wait_for_hands()
            self._settle(connection)
            self._give_up_overdue(connection)
        self.part_with(connection, list(self._hand.values()))

    def _wait_for_hands(self) -> None:
        self.hands.wake.wait(self.longest_rest())
        self.hands.wake.clear()

    def longest_rest(self) -> float:
        """Until the next thing is due that nobody wakes us for: a handler that ends does."""
        now = self._clock()
        due = [now + self._idle_seconds]
        with self._lock:
            for each in self._hand.values():
                if each.next_pause_end is not None:
                    due.append(each.next_pause_end)
                if each.first_done_at is not None:
                    due.append(each.first_done_at + self._commit_seconds)
        if self._overdue_seconds is not None:
            limits = [unit.began + self._overdue_seconds for unit in self.hands.under_way]
            due += [each if each > now else now + HANGING_LOOK_SECONDS for each in limits]
        return max(0.0, min(due) - now)

    def _make_hands(self, concurrency: int, *, inline: bool) -> Hands:
        common: dict[str, Any] = {
            "deliver": lambda unit: Batch(unit, self),
            "clock": self._clock,
            "slice_seconds": self._slice_seconds,
            "stopping": self.is_stopping,
        }
        if self._handling.is_async:
            return Tasks(
                self._handling,
                concurrency,
                url=self._url,
                application_name=f"penstock {self._subscription}"[:63],
                handler_seconds=self._handler_seconds,
                **common,
            )
        if inline:
            return Inline(self._handling, 1, **common)
        return Threads(self._handling, concurrency, connect=lambda: self.open(), **common)
