"""What a handler is given: an event, or a batch of them, and the transaction that commits both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.consumer.handlers.working import (
    Connections,
    Transaction,
    Working,
)
from penstock.database import steps
from penstock.database.async_connections import run_on
from penstock.errors import InvalidArgument, PositionsElsewhere, StaleLease
from penstock.records import Event, Lease
from penstock.subscriptions import dead_letters, stream

if TYPE_CHECKING:
    from penstock.consumer.stream.in_flight import Unit
    from penstock.database.steps import Steps
    from penstock.leases.keeper import Keeper


class Batch(Working):
    """Events of one partition, in order, under one lease; iterate over it.

    A handler that returns without having committed has its events committed for it: at least once.
    For exactly-once effect it writes inside :meth:`transaction`.
    """

    def __init__(
        self, unit: Unit, connections: Connections, *, keeper: Keeper, in_order: bool
    ) -> None:
        super().__init__(connections)
        self.events = unit.events
        self.lease = unit.work.lease
        #: Whether the handler may have moved the position: then the database is asked for it.
        self.handed_over = False
        self._unit = unit
        self._keeper = keeper
        self._in_order = in_order
        self._after = unit.after

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    def each(self, event: Event) -> StreamDelivery:
        """An event of the batch as a handler gets it."""
        delivery = _new(StreamDelivery)
        _set_place(delivery, event._place)
        _set_row(delivery, event._row)
        _set_batch(delivery, self)
        return delivery

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
        steps.run(connection, self.finish_steps(position))

    async def commit_to_async(self, connection: Any, position: int) -> None:
        """The same on an asynchronous connection."""
        await run_on(connection, self.finish_steps(position))

    def finish_steps(self, position: int) -> Steps[None]:
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

    @property
    def limit_seconds(self) -> float:
        """How long a transaction may take: the lease."""
        return self._keeper.member.lease_seconds

    def mark(self) -> int:
        """Where the handler is."""
        return self._after

    def back_to(self, mark: int) -> None:
        """A transaction has committed nothing."""
        self._after = mark


class StreamDelivery(Event):
    """An event as a handler gets it: it can be handled in one transaction with the position."""

    __slots__ = ("_batch",)

    _batch: Batch

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


_new = object.__new__
_set_place = Event.__dict__["_place"].__set__
_set_row = Event.__dict__["_row"].__set__
_set_batch = StreamDelivery.__dict__["_batch"].__set__
