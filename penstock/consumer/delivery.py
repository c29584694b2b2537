"""What a handler is given: an event, or a batch of them, and the transaction that commits both."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from penstock import database
from penstock.database import sessions, steps
from penstock.database.async_connections import run_on
from penstock.errors import InvalidArgument, PenstockError, PositionsElsewhere, StaleLease
from penstock.records import Event, Lease
from penstock.subscriptions import dead_letters, stream

if TYPE_CHECKING:
    from types import TracebackType

    from penstock.consumer.in_flight import Unit
    from penstock.database import Connection
    from penstock.database.steps import Steps
    from penstock.leases.keeper import Keeper


#: Where a transaction is: before the handler's block, in it, or after it.
_BEFORE, _WITHIN, _BEHIND = range(3)


@dataclass(slots=True)
class _At:
    step: int = _BEFORE


class HandlerFailed(PenstockError):
    """A handler raised, and this run does not wait for the next attempt."""


class HandlerTimedOut(PenstockError):
    """A handler took longer than ``handler_seconds``; its event is tried again, or given up."""


class OutlivedLease(PenstockError):
    """The server ended a transaction that would have outlived its lease; the events come again."""


class HandlerRolledBack(PenstockError):
    """A handler committed the position and rolled its transaction back; the events come again."""


class Connections(Protocol):
    """Gives a handler its connection; the executor that runs the handler is one."""

    @property
    def connection(self) -> Connection:
        """The connection on which the caller's thread may work."""

    def async_connection(self) -> AbstractAsyncContextManager[Any]:
        """The same for a coroutine."""


class Batch:
    """Events of one partition, in order, under one lease; iterate over it.

    A handler that returns without having committed has its events committed for it: at least once.
    For exactly-once effect it writes inside :meth:`transaction`.
    """

    def __init__(
        self, unit: Unit, keeper: Keeper, connections: Connections, *, in_order: bool
    ) -> None:
        self.events = unit.events
        self.lease = unit.work.lease
        #: Whether the handler may have moved the position: then the database is asked for it.
        self.handed_over = False
        #: Whether the last transaction failed, and not because of the handler: that was no attempt.
        self.disturbed = False
        self._unit = unit
        self._keeper = keeper
        self._connections = connections
        self._in_order = in_order
        self._after = unit.after
        self._began = 0.0
        self._used: Any = None

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
        return self._keeper.subscription

    @property
    def in_order(self) -> bool:
        """Whether everything before these events is done."""
        return self._in_order and self._unit.letter is None

    @property
    def claimed(self) -> int:
        """How far the handler believes it has committed."""
        return self._after

    def transaction(self) -> Transaction:
        """A transaction that commits the block's writes and the position together, or neither.

            with batch.transaction() as connection: ...        # async with, in an async handler

        The position is committed first: that takes the fence, so a consumer that lost its lease
        fails before it writes, and the server ends a transaction that would outlive the lease.  So
        the work inside must be shorter than a lease less a heartbeat (6.6 s by default); longer
        work needs longer leases, see :func:`penstock.stream.configure_subscription`.
        """
        return Transaction(self, self._unit.through)

    def commit(self, connection: Any) -> None:
        """Commit the position in the transaction that a connection to the same database is in.

        Raises StaleLease when the lease was lost; then the transaction must be rolled back.
        """
        self.commit_to(connection, self._unit.through)

    async def commit_async(self, connection: Any) -> None:
        """The same on an asynchronous connection, as :mod:`penstock.aio` takes them."""
        await self.commit_to_async(connection, self._unit.through)

    def commit_to(self, connection: Any, position: int) -> None:
        """Commit as far as an event of the batch."""
        steps.run(connection, self._commit_steps(position))

    async def commit_to_async(self, connection: Any, position: int) -> None:
        """The same on an asynchronous connection."""
        await run_on(connection, self._commit_steps(position))

    def _commit_steps(self, position: int) -> Steps[None]:
        before, member = self._before_commit(), self._keeper.member
        letter, parked = self._unit.letter, self._parked(position)
        if letter is not None:
            yield from dead_letters.finish_steps(member, letter)
        elif parked:
            brought = [event for event in self._unit.brought if event.sequence in parked]
            yield from dead_letters.parking_steps(
                member, self.lease, position, before, parked, brought=brought
            )
        else:
            # The answer to an earlier COMMIT may have been lost, and some of these been done.
            yield from stream.commit_steps(member, [(self.lease, position)], [before])
        self._after = position

    def _parked(self, position: int) -> list[int]:
        """The events in between that have to wait because their key is parked."""
        return [each for each in self._unit.parked if self._after < each <= position]

    def _before_commit(self) -> int:
        if not self._keeper.in_database:
            raise PositionsElsewhere(
                "the positions of this consumer are not in the database: coordination keeps them",
                hint="use the inbox (penstock.inbox) for exactly-once effect, or return and have "
                "the events committed for you",
            )
        if not self._in_order and self._unit.letter is None:
            raise InvalidArgument(
                "with concurrency, an event may be done before an earlier one of its partition",
                hint="a position cannot record that: use concurrency=1",
            )
        self.handed_over = True
        if self._unit.abandoned or not self._keeper.holds(self.lease):
            raise StaleLease(
                f"the lease of {self.lease.topic} partition {self.lease.partition} has ended"
            )
        return self._after

    @contextmanager
    def work_on(self, position: int) -> Iterator[Connection]:
        """The transaction of :meth:`transaction`, committing up to a position."""
        with self._trying() as at:
            connection = self._used = self._connections.connection
            kind = sessions.of_connection(connection)
            with kind.transaction(connection):
                self.commit_to(connection, position)
                at.step = _WITHIN
                yield connection
                at.step = _BEHIND
                if kind.is_broken(connection):
                    raise _swallowed()

    @asynccontextmanager
    async def work_on_async(self, position: int) -> AsyncIterator[Any]:
        """The same on the consumer's asynchronous connection."""
        with self._trying() as at:
            async with self._connections.async_connection() as connection:
                kind = sessions.of_async_connection(connection)
                async with connection.transaction():
                    await self.commit_to_async(connection, position)
                    at.step = _WITHIN
                    yield connection
                    at.step = _BEHIND
                    if kind.is_broken(connection):
                        raise _swallowed()

    @contextmanager
    def _trying(self) -> Iterator[_At]:
        """Record that a block which ends in an error has committed nothing, and what caused it."""
        before, self._began = self._after, time.monotonic()
        self.disturbed, at = False, _At()
        try:
            yield at
        except BaseException as error:
            self._after = before
            self.disturbed = _is_disturbed(at.step, error)
            raise

    @property
    def cut_off(self) -> bool:
        """Whether the consumer's own connection is lost, and not one of the handler's."""
        return self._used is not None and sessions.of_connection(self._used).is_closed(self._used)

    def outlived_lease(self, error: BaseException) -> bool:
        """Whether it is lost because the transaction took too long."""
        seconds = time.monotonic() - self._began if self._began else 0.0
        kind = sessions.of_connection(self._used)
        return kind.outlived_lease(error, seconds, self._keeper.member.lease_seconds)


class Delivery(Event):
    """An event as a handler gets it: it can be handled in one transaction with the position."""

    __slots__ = ("_batch",)

    _batch: Batch

    @classmethod
    def of(cls, event: Event, batch: Batch) -> Delivery:
        """The event as a handler gets it."""
        delivery = _new(cls)
        _set_place(delivery, event._place)
        _set_row(delivery, event._row)
        _set_batch(delivery, batch)
        return delivery

    @property
    def subscription(self) -> str:
        """The name of the subscription."""
        return self._batch.subscription

    @property
    def lease(self) -> Lease:
        """The lease under which it was read."""
        return self._batch.lease

    @property
    def events(self) -> list[Event]:
        """This event alone: :mod:`penstock.inbox` takes events and batches."""
        return [self]

    @property
    def in_order(self) -> bool:
        """Whether everything before it is done."""
        return self._batch.in_order

    def transaction(self) -> Transaction:
        """A transaction that commits the block's writes and the position together, or neither.

        See :meth:`Batch.transaction`.  The events before this one are done by then.
        """
        return Transaction(self._batch, self.sequence)

    def commit(self, connection: Any) -> None:
        """Commit the position in the transaction that a connection to the same database is in."""
        self._batch.commit_to(connection, self.sequence)

    async def commit_async(self, connection: Any) -> None:
        """The same on an asynchronous connection, as :mod:`penstock.aio` takes them."""
        await self._batch.commit_to_async(connection, self.sequence)


class Transaction:
    """``with`` it, or ``async with`` it in an async handler."""

    def __init__(self, batch: Batch, position: int) -> None:
        self._batch = batch
        self._position = position
        self._sync: AbstractContextManager[Connection] | None = None
        self._async: AbstractAsyncContextManager[Any] | None = None

    def __enter__(self) -> Connection:
        self._sync = self._batch.work_on(self._position)
        return self._sync.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        assert self._sync is not None
        return self._sync.__exit__(kind, error, trace)

    async def __aenter__(self) -> Any:
        self._async = self._batch.work_on_async(self._position)
        return await self._async.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        assert self._async is not None
        return await self._async.__aexit__(kind, error, trace)


def _is_disturbed(step: int, error: BaseException) -> bool:
    """Whether a step of Penstock failed, and not one of the handler's.

    A COMMIT that takes too long counts as the handler's step: it does what the handler left to
    it, a deferred constraint for example.
    """
    if step == _WITHIN or not database.is_passing(error):
        return False
    return step == _BEFORE or not database.is_cancelled(error)


def _swallowed() -> HandlerRolledBack:
    return HandlerRolledBack("a statement failed in the transaction and was passed over")


_new = object.__new__
_set_place = Event.__dict__["_place"].__set__
_set_row = Event.__dict__["_row"].__set__
_set_batch = Delivery.__dict__["_batch"].__set__
