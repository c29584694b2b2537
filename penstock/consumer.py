"""A consumer with a handler function: polls, handles, commits, in order per partition."""

from __future__ import annotations

import inspect
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock import config, database, stream
from penstock.errors import DatabaseUnavailable, InvalidArgument, PenstockError, StaleLease
from penstock.lease_keeper import LeaseKeeper
from penstock.records import Event, Lease
from penstock.stream import Membership

if TYPE_CHECKING:
    from penstock.database import Connection

log = logging.getLogger(__name__)

MAX_RETRY_SECONDS = 60.0

_IN_ERROR = 3  # libpq's PQTRANS_INERROR


class HandlerRolledBack(PenstockError):
    """A handler committed the position and rolled its transaction back; the events come again."""


class ConnectionLost(PenstockError):
    """The consumer's connection ended under a handler; the consumer opens another one."""


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
        self._handed_over = False
        self._committed = False

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    @property
    def last_sequence(self) -> int:
        """The sequence of the last event."""
        return self.events[-1].sequence

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction that commits the block's writes and the position together, or neither.

        The position is committed first: that takes the fence, so a consumer that lost its lease
        fails before it writes, and the server ends a transaction that would outlive the lease.  So
        the work inside must be shorter than a lease less a heartbeat (6.6 s by default); longer
        work needs longer leases, see :func:`penstock.stream.configure_subscription`.
        """
        with self._connection.transaction():
            self.commit(self._connection)
            yield self._connection
            if self._connection.info.transaction_status == _IN_ERROR:
                # The server answers COMMIT with a rollback and without an error.
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
        return self._connection.closed


@dataclass(slots=True)
class ConsumerStats:
    """What a consumer has done since it started."""

    events: int = 0
    batches: int = 0
    failures: int = 0
    stale_commits: int = 0
    last_error: str = ""
    last_round: float = field(default_factory=time.monotonic)


class Consumer:
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
        self._url = url or config.database_url()
        self._subscription = subscription
        self._handle = batch_handler or self._by_event(handler)
        self._batch_size = batch_size
        self._idle_seconds = idle_seconds
        self._retries: dict[int, tuple[int, float]] = {}
        self._turn = 0
        self._outages = 0
        self.stats = ConsumerStats()
        self.keeper = LeaseKeeper(self._url, subscription, consumer=consumer_id, weight=weight)

    def run(self, stop: threading.Event) -> None:
        """Work until ``stop`` is set; the events in hand are finished and committed first."""
        with self.keeper:
            while not stop.is_set():
                try:
                    self._work(stop)
                except Exception as error:
                    if not _is_lost(error):
                        raise
                    self._outages += 1
                    self._failed(error)
                    stop.wait(random.uniform(0.1, min(10.0, 0.5 * 2.0 ** min(self._outages, 10))))

    def run_until_idle(self) -> int:
        """Work off what is there now; answers how many events were handled."""
        before = self.stats.events
        with self.keeper, self._open() as connection:
            while self.keeper.leases() and self._round(connection):
                pass
        return self.stats.events - before

    def _open(self) -> Connection:
        return database.connect(self._url, application_name=f"penstock {self._subscription}"[:63])

    def _work(self, stop: threading.Event) -> None:
        with self._open() as connection:
            connection.execute(f'LISTEN "{config.schema_name()}_log"')
            while not stop.is_set():
                handled = self._round(connection)
                self._outages = 0
                if not handled:
                    self._wait(connection)

    def _wait(self, connection: Connection) -> None:
        """Until something was sequenced, at most ``idle_seconds``."""
        held = {str(lease.partition_id) for lease in self.keeper.leases()}
        for notice in connection.notifies(timeout=self._idle_seconds, stop_after=1):
            # Any login may notify this channel: a payload that is no list of partitions is "all".
            if not held.issuperset(notice.payload.split(",")):
                self.keeper.check_in_soon()

    def _round(self, connection: Connection) -> int:
        """One poll over the held leases; answers how many events were handled."""
        self.stats.last_round = time.monotonic()
        ready = self._ready_leases()
        if not ready:
            self._give_back(connection)
            return 0
        handled = 0
        member = self.keeper.member
        for lease, events in stream.poll(connection, member, ready, self._batch_size):
            handled += self._handle_batch(Batch(connection, member, lease, events))
        self._give_back(connection)
        return handled

    def _ready_leases(self) -> list[Lease]:
        """Leases to work on, each round beginning with another one, so that none is starved."""
        now = time.monotonic()
        leases = [
            lease
            for lease in self.keeper.leases()
            if lease.state == "ACTIVE" and self._retries.get(lease.partition_id, (0, 0.0))[1] <= now
        ]
        self._turn += 1
        start = self._turn % len(leases) if leases else 0
        return leases[start:] + leases[:start]

    def _handle_batch(self, batch: Batch) -> int:
        if not any(held.lease_epoch == batch.lease.lease_epoch for held in self._held(batch.lease)):
            return 0  # lost while another batch was handled
        try:
            self._handle(batch)
            if not batch.finish():
                raise HandlerRolledBack("the handler gave the position back by a rollback")
        except StaleLease as error:
            self.stats.stale_commits += 1
            self._failed(error)
            self.keeper.lost(batch.lease)
            return 0
        except Exception as error:
            if batch.cut_off:
                raise ConnectionLost(str(error)) from error
            self._retry_later(batch, error)
            self.keeper.moved(batch.lease, batch.stored_position())
            return 0
        self._retries.pop(batch.lease.partition_id, None)
        self.keeper.moved(batch.lease, batch.last_sequence)
        self.stats.events += len(batch)
        self.stats.batches += 1
        return len(batch)

    def _held(self, lease: Lease) -> list[Lease]:
        return [held for held in self.keeper.leases() if held.partition_id == lease.partition_id]

    def _retry_later(self, batch: Batch, error: Exception) -> None:
        attempt = self._retries.get(batch.lease.partition_id, (0, 0.0))[0] + 1
        pause = min(MAX_RETRY_SECONDS, 0.1 * 2.0 ** min(attempt, 20)) * random.uniform(0.5, 1)
        self._retries[batch.lease.partition_id] = (attempt, time.monotonic() + pause)
        self._failed(error)
        log.error(
            "handler failed at %s partition %s sequence %s, attempt %s, again in %.1f s",
            batch.lease.topic,
            batch.lease.partition,
            batch.events[0].sequence,
            attempt,
            pause,
            exc_info=error,
        )

    def _give_back(self, connection: Connection) -> None:
        """Answer RELEASING: what was in hand is committed, so the lease can go."""
        asked = [lease for lease in self.keeper.leases() if lease.state == "RELEASING"]
        if asked:
            stream.release(connection, self.keeper.member, asked)
            for lease in asked:
                self.keeper.lost(lease)

    def _failed(self, error: Exception) -> None:
        self.stats.last_round = time.monotonic()
        self.stats.failures += 1
        self.stats.last_error = f"{type(error).__name__}: {error}"
        if isinstance(error, PenstockError) or database.is_unavailable(error):
            log.warning("%s", self.stats.last_error)

    def _by_event(self, handler: Callable[[Event], object] | None) -> Callable[[Batch], object]:
        assert handler is not None

        def handle(batch: Batch) -> None:
            for event in batch:
                handler(event)
                # A batch of slow events is work and no standstill.
                self.stats.last_round = time.monotonic()

        return handle


def _is_lost(error: BaseException) -> bool:
    return isinstance(error, DatabaseUnavailable | ConnectionLost) or database.is_unavailable(error)
