"""A consumer with a handler: polls, handles, commits, in order per partition or per key.

The loop is here.  It works with these parts, each in a separate file: the assignment (the events in
hand of each partition), the reader, the executor (runs the handlers), the retrier (decides what
follows when an event fails) and the committer.  The loop's thread hands events over and takes
outcomes back.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.consumer.handlers.choosing import executor_for
from penstock.consumer.handlers.executors import Executor, InlineExecutor, Outcome
from penstock.consumer.handlers.failures import (
    HandlerFailed,
    OutlivedLease,
)
from penstock.consumer.handlers.handler import handling
from penstock.consumer.handlers.options import ConsumerOptions, taking
from penstock.consumer.stream.assignment import PartitionBuffers
from penstock.consumer.stream.committing import Committer
from penstock.consumer.stream.delivery import Batch
from penstock.consumer.stream.in_flight import PartitionBuffer, Unit
from penstock.consumer.stream.reading import Reader
from penstock.consumer.stream.retrying import Retrier
from penstock.errors import PenstockError, StaleLease, said
from penstock.leases.held import HeldLeases
from penstock.leases.keepers import keeper_for
from penstock.leases.loop import ConnectionLost, Rounds

if TYPE_CHECKING:
    from penstock.database import Connection
    from penstock.records import Lease

__all__ = ["Batch", "Consumer"]

#: How much is read ahead where handlers run beside the loop.
PREFETCH_ROWS = 5_000
#: In the loop's own thread a commit delays the next events, so one commit covers this many seconds.
INLINE_COMMIT_SECONDS = 0.01


class Consumer(Rounds):
    """Reads a subscription until it is told to stop.

    Give ``handler``, called with each event, or ``batch_handler``, called with each :class:`Batch`;
    ``def`` or ``async def``.  An event that fails comes again after a pause, as the subscription's
    retry policy says.  The options are those of :class:`ConsumerOptions`;
    docs/reference/consumers.md explains them.
    """

    @taking(ConsumerOptions)
    def __init__(self, url: str | None, subscription: str, options: ConsumerOptions) -> None:
        handled = handling(subscription, options)
        keeper = keeper_for(
            url,
            subscription,
            consumer_id=options.consumer_id,
            weight=options.weight,
            topics=options.topics,
            clock=options.clock,
            coordination=options.coordination,
            assign=options.assign,
        )
        self.keeper = keeper
        self._held = HeldLeases(keeper)
        super().__init__(self._held, idle_seconds=options.idle_seconds)
        self.is_async = handled.is_async
        self._clock = options.clock
        self._slice_seconds = options.commit_every_seconds
        self.executor: Executor[Unit, Batch] = executor_for(
            self,
            handled,
            options.concurrency,
            handler_seconds=options.handler_seconds,
            may_be_inline=True,
            deliver=functools.partial(Batch, keeper=keeper, in_order=not options.by_key),
            clock=options.clock,
            slice_seconds=options.commit_every_seconds,
        )
        is_inline = isinstance(self.executor, InlineExecutor)
        self.assignment = PartitionBuffers(keeper, self.stats, self.executor, options)
        self.reader = Reader(
            self.assignment,
            keeper,
            options,
            connect=lambda: self.open(),
            ahead_rows=_ahead_rows(options, is_inline=is_inline),
        )
        self.committer = Committer(
            self.assignment,
            keeper,
            self.stats,
            options,
            every_seconds=_commit_seconds(options, is_inline=is_inline),
        )
        self.retrier = Retrier(
            assignment=self.assignment,
            committer=self.committer,
            reader=self.reader,
            executor=self.executor,
            keeper=keeper,
            stats=self.stats,
            options=options,
        )

    @classmethod
    def of(cls, url: str | None, subscription: str, options: ConsumerOptions) -> Consumer:
        """A consumer with an existing ConsumerOptions."""
        return cls(url, subscription, **options.given())

    def run_until_idle(self) -> int:
        """Handle the events that are there now.  Returns how many were handled.

        Raises HandlerFailed when a handler raised: its events, and those after them, are left.
        """
        before = self.stats.events
        with (
            self.keeper,
            self.at_work(),
            self.open() as connection,
            self._session(connection, read_ahead=False),
        ):
            while self.keeper.leases() and (self.turn(connection) or self.executor.under_way):
                if self.executor.under_way:
                    self.executor.wait(self.longest_rest())
        if self.has_postponed:
            raise HandlerFailed(
                f"a handler failed: {self.stats.last_error}",
                hint="the events are left as they were; run again",
            )
        return self.stats.events - before

    @property
    def has_postponed(self) -> bool:
        """Whether an event waits for its next attempt."""
        return bool(self.retrier.failures)

    # -- one round ------------------------------------------------------------------------------

    def round(self, connection: Connection) -> int:
        """Read, hand over, take back, commit.  Returns how much was done."""
        if not self.keeper.in_database:
            self.keeper.take_up(connection)
        new, ready = self.assignment.look_at_leases(), self.assignment.ready()
        self.retrier.look_around(connection, new)
        self.reader.read(connection, self._listener, ready)
        done = self._hand_over(connection, [each for _, each in ready])
        self._give_up_overdue(connection)
        self.committer.commit_due(connection, idle=not done)
        return done

    def let_go(self, connection: Connection, asked: list[Lease]) -> list[Lease]:
        """Those that have nothing in hand, after what they have done is committed."""
        return self.committer.let_go(connection, asked)

    def heard(self, notices: Sequence[str]) -> None:
        """The database says that these partitions have grown."""
        self.reader.heard(notices)

    def _hand_over(self, connection: Connection, ready: list[PartitionBuffer]) -> int:
        """Begin the units that can begin.  Returns how much came to an end."""
        done, committed_at = self._settle(connection), self._clock()
        while ready and self.executor.free:
            still: list[PartitionBuffer] = []
            for each in ready:
                if not self.executor.free or self.is_stopping():
                    break
                unit = self._next(connection, each) if self.keeper.holds(each.lease) else None
                if unit is not None:
                    self.executor.submit(unit)
                    done += self._settle(connection)
                    committed_at = self._committed_between(connection, committed_at)
                    still.append(each)
            # The loop's own thread has to commit in between.
            inline = isinstance(self.executor, InlineExecutor)
            ready = [] if inline or self.is_stopping() else still
        return done

    def _committed_between(self, connection: Connection, committed_at: float) -> float:
        """Commit within a long round over many partitions.  Returns the time of the last commit."""
        now = self._clock()
        if now - committed_at < self._slice_seconds:
            return committed_at
        self.committer.commit_done(connection)
        return now

    def _next(self, connection: Connection, buffer: PartitionBuffer) -> Unit | None:
        """The next unit of a partition that may be handed to a handler."""
        while not buffer.closed:
            unit = self.assignment.begin(buffer)
            if unit is None:
                break
            unit.policy = self.retrier.policy
            if unit.letter is not None or self.retrier.prepared(connection, unit):
                return unit
        return None

    # -- outcomes -------------------------------------------------------------------------------

    def _settle(self, connection: Connection) -> int:
        """Take back the outcomes that have come.  Returns how many events made progress."""
        done = 0
        for outcome in self.executor.arrived():
            try:
                done += self._settled(connection, outcome)
            except StaleLease as error:
                self.committer.lease_lost(outcome.unit.work, error)
        return done

    def _settled(self, connection: Connection, outcome: Outcome[Unit, Batch]) -> int:
        """Take back a unit.  Returns how many events made progress: 0 when the lease is stale."""
        unit, error = outcome.unit, outcome.error
        self.stats.last_round = self._clock()
        if unit.work.closed:
            self.committer.look_at_late_commit(connection, outcome)
            return 0
        if isinstance(error, StaleLease):
            raise error
        if outcome.cut_off and isinstance(self.executor, InlineExecutor):
            raise self._cut_off(unit, error, outcome.outlived)
        if unit.letter is not None:
            return self._letter_settled(connection, outcome)
        if outcome.batch.handed_over:
            error = self.committer.compare(connection, outcome)
        if error is None:
            return self.retrier.unit_done(connection, unit)
        failed = self.retrier.unit_disturbed if outcome.disturbed else self.retrier.unit_failed
        return failed(unit, error)

    def _letter_settled(self, connection: Connection, outcome: Outcome[Unit, Batch]) -> int:
        unit, error = outcome.unit, outcome.error
        if outcome.disturbed and error is not None:
            return self.retrier.unit_disturbed(unit, error)
        finished = outcome.batch.handed_over
        return self.retrier.letter_ended(connection, unit, error, finished=finished)

    def _cut_off(self, unit: Unit, error: BaseException | None, outlived: bool) -> PenstockError:
        """The loop's own connection was lost while a handler used it: the error to raise."""
        text = said(error) if error is not None else ""
        if outlived and unit.letter is None:
            error = OutlivedLease(
                f"the work on {len(unit.events)} events took longer than the lease: {text}",
                hint="use a smaller batch_size, or a longer lease:"
                " penstock.stream.configure_subscription",
            )
            text = str(error)
            self.retrier.postpone_unit(unit, error)
        else:
            self.retrier.put_down(unit)
        return ConnectionLost(text)

    # -- handlers that take too long ------------------------------------------------------------

    def _give_up_overdue(self, connection: Connection) -> None:
        """Give up the lease of each handler that hangs, so that it can commit nothing."""
        if self.executor.overdue_seconds is None:
            return
        for unit in self.executor.give_up_overdue():
            self._hangs(connection, unit)
        for unit in self.executor.stranded():
            self.retrier.put_down(unit)

    def _hangs(self, connection: Connection, unit: Unit) -> None:
        each = unit.work
        if each.closed:
            return
        error = self.executor.overdue_error()
        if unit.letter is not None:
            self.retrier.letter_ended(connection, unit, error, finished=False)
        else:
            self.retrier.unit_failed(unit, error)
        self.committer.part_with(connection, [each])
        self._held.release(connection, [each.lease])

    # -- the frame ------------------------------------------------------------------------------

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Handlers run from here on."""
        with self.executor.at_work(), self.woken(self.executor.wake):
            yield

    @contextmanager
    def session(self, connection: Connection) -> Iterator[None]:
        """Events in hand are read on this connection, and forgotten when it ends."""
        with self._session(connection, read_ahead=self.reader.reads_ahead):
            yield

    @contextmanager
    def _session(self, connection: Connection, *, read_ahead: bool) -> Iterator[None]:
        if isinstance(self.executor, InlineExecutor):
            self.executor.on(connection)
        if read_ahead:
            self.reader.start(self.executor.wake.set)
        try:
            yield
            self.reader.stop()
            self._drain(connection)
        finally:
            self.reader.stop()
            left = self.assignment.all()
            if left:
                self.assignment.forget(left)
                self.assignment.tell_revoked(left)

    def _drain(self, connection: Connection) -> None:
        """Finish what was begun, and give everything back."""
        while self.executor.under_way:
            self.executor.wait(self.longest_rest())
            self._settle(connection)
            self._give_up_overdue(connection)
        self.committer.part_with(connection, self.assignment.all())

    def longest_rest(self) -> float:
        """How long the loop may rest: until the next thing is due.

        Things that wake the loop are left out, such as the end of a handler.
        """
        now = self._clock()
        due = [now + self._idle_seconds, *self.assignment.next_due(), *self.committer.next_due()]
        due += self.executor.next_limits(now)
        return max(0.0, min(due) - now)


def _ahead_rows(options: ConsumerOptions, *, is_inline: bool) -> int:
    """How many events are read ahead.  With 0, the loop reads between handlers."""
    if options.prefetch_rows is not None:
        return options.prefetch_rows
    return 0 if is_inline else PREFETCH_ROWS


def _commit_seconds(options: ConsumerOptions, *, is_inline: bool) -> float:
    """The time between two commits."""
    if is_inline and options.commit_every_events is None:
        return min(options.commit_every_seconds, INLINE_COMMIT_SECONDS)
    return options.commit_every_seconds
