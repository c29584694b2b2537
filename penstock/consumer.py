"""A consumer with a handler function: polls, handles, commits, in order per partition."""

from __future__ import annotations

import inspect
import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock import stream
from penstock.dialects import work
from penstock.errors import InvalidArgument, PenstockError, StaleLease
from penstock.lease_loop import ConnectionLost, LeaseLoop
from penstock.records import Event, Lease
from penstock.stream import Membership

if TYPE_CHECKING:
    from penstock.database import Connection

log = logging.getLogger(__name__)

MAX_RETRY_SECONDS = 60.0


class HandlerFailed(PenstockError):
    """A handler raised, and nobody waits for the next attempt."""


class OutlivedLease(PenstockError):
    """The server ended a transaction that would have outlived its lease; the events come again."""


class HandlerRolledBack(PenstockError):
    """A handler committed the position and rolled its transaction back; the events come again."""


class Batch:
    """Events of one partition, in order, under one lease; iterate over it.

    A handler that returns without having committed has its events committed for it: at least once.
    For exactly-once effect it writes inside :meth:`transaction`.
    """

    def __init__(
        self, connection: Connection, member: Membership, lease: Lease, events: list[Event]
    ) -> None:
        self.events = events
        self.lease = lease
        self._connection = connection
        self._member = member
        self._work = work.of_connection(connection)
        self._handed_over = False
        self._committed = False
        self._began = 0.0

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    @property
    def last_sequence(self) -> int:
        """The sequence of the last event."""
        return self.events[-1].sequence

    @property
    def subscription(self) -> str:
        """The name of the subscription."""
        return self._member.subscription

    @property
    def in_order(self) -> bool:
        """Whether everything before these events is done."""
        return True

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction that commits the block's writes and the position together, or neither.

        The position is committed first: that takes the fence, so a consumer that lost its lease
        fails before it writes, and the server ends a transaction that would outlive the lease.  So
        the work inside must be shorter than a lease less a heartbeat (6.6 s by default); longer
        work needs longer leases, see :func:`penstock.stream.configure_subscription`.
        """
        self._began = time.monotonic()
        with self._work.transaction(self._connection):
            self.commit(self._connection)
            yield self._connection
            if self._work.is_broken(self._connection):
                raise HandlerRolledBack("a statement failed in the transaction and was passed over")
        self._committed = True

    def commit(self, connection: Connection) -> None:
        """Commit the position in the transaction that a connection to the same database is in.

        Raises StaleLease when the lease was lost; then the transaction must be rolled back.
        """
        self._handed_over = True
        done = [(self.lease, self.last_sequence)]
        # The answer to an earlier COMMIT may have been lost, and some of these events been done.
        stream.commit(connection, self._member, done, after=[self.events[0].sequence - 1])

    def finish(self) -> bool:
        """Commit what the handler has not; answers whether the position really moved.

        A handler may have called :meth:`commit` and then rolled back: the database is asked.
        """
        if not self._handed_over:
            self.commit(self._connection)
        elif not self._committed:
            return self.stored_position() >= self.last_sequence
        return True

    def stored_position(self) -> int:
        """Where the partition stands in the database."""
        done = stream.position(self._connection, self._member.subscription, self.lease.topic)
        return done[self.lease.partition]

    @property
    def cut_off(self) -> bool:
        """Whether the consumer's own connection is gone, and not one of the handler's."""
        return self._work.is_closed(self._connection)

    def outlived_lease(self, error: BaseException) -> bool:
        """Whether it is gone because the transaction went on for too long."""
        seconds = time.monotonic() - self._began if self._began else 0.0
        return self._work.outlived_lease(error, seconds, self._member.lease_seconds)


class Consumer(LeaseLoop):
    """Reads a subscription until it is told to stop.

    Give ``handler``, called with each event, or ``batch_handler``, called with each :class:`Batch`.
    A handler that raises gets the same events again, after a pause that doubles up to a minute.
    """

    def __init__(
        self,
        url: str | None,
        subscription: str,
        *,
        handler: Callable[[Event], object] | None = None,
        batch_handler: Callable[[Batch], object] | None = None,
        consumer_id: str | None = None,
        weight: float = 1.0,
        batch_size: int = 500,
        idle_seconds: float = 0.5,
    ) -> None:
        if (handler is None) == (batch_handler is None):
            raise InvalidArgument("a consumer has exactly one of handler and batch_handler")
        given = handler or batch_handler
        if not callable(given) or inspect.iscoroutinefunction(given):
            raise InvalidArgument("the handler is not a synchronous function")
        if batch_size < 1:
            raise InvalidArgument("batch_size is below 1")
        super().__init__(
            url, subscription, consumer_id=consumer_id, weight=weight, idle_seconds=idle_seconds
        )
        self._handle = batch_handler or self._by_event(handler)
        self._batch_size = batch_size

    def run_until_idle(self) -> int:
        """Work off what is there now; answers how many events were handled.

        HandlerFailed when a handler raised: its events, and those behind them, are left.
        """
        before = self.stats.events
        with self.keeper, self.open() as connection:
            while self.keeper.leases() and self.turn(connection):
                pass
        if self.has_postponed:
            raise HandlerFailed(
                f"a handler failed: {self.stats.last_error}",
                hint="the events are left as they were; run again",
            )
        return self.stats.events - before

    def round(self, connection: Connection) -> int:
        """One poll over the held leases; answers how many events were handled."""
        ready = self.ready_leases()
        if not ready:
            return 0
        member = self.keeper.member
        polled = stream.poll(connection, member, ready, self._batch_size)
        return sum(
            self._handle_batch(Batch(connection, member, lease, events))
            for lease, events in polled
            if self.still_held(lease)
        )

    def _handle_batch(self, batch: Batch) -> int:
        try:
            self._handle(batch)
            if not batch.finish():
                raise HandlerRolledBack("the handler gave the position back by a rollback")
        except StaleLease as error:
            self.stale(batch.lease, error)
            return 0
        except Exception as error:
            if batch.cut_off:
                if batch.outlived_lease(error):
                    error = OutlivedLease(
                        f"the work on {len(batch)} events took longer than the lease: {error}",
                        hint="use a smaller batch_size, or penstock.stream.configure_subscription",
                    )
                    self._retry_later(batch, error)
                raise ConnectionLost(str(error)) from error
            self._retry_later(batch, error)
            self.keeper.moved(batch.lease, batch.stored_position())
            return 0
        self.done(batch.lease, batch.last_sequence, len(batch))
        return len(batch)

    def _retry_later(self, batch: Batch, error: Exception) -> None:
        doubled = 0.1 * 2.0 ** min(self.attempts(batch.lease) + 1, 20)
        pause = min(MAX_RETRY_SECONDS, doubled) * random.uniform(0.5, 1)
        attempt = self.postpone(batch.lease, pause)
        self.failed(error)
        log.error(
            "handler failed at %s partition %s sequence %s, attempt %s, again in %.1f s",
            batch.lease.topic,
            batch.lease.partition,
            batch.events[0].sequence,
            attempt,
            pause,
            exc_info=error,
        )

    def _by_event(self, handler: Callable[[Event], object] | None) -> Callable[[Batch], object]:
        assert handler is not None

        def handle(batch: Batch) -> None:
            for event in batch:
                handler(event)
                # A batch of slow events is work and no standstill.
                self.stats.last_round = time.monotonic()

        return handle
