"""What the handler of a queue is given: an event, and the transaction that finishes it."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.consumer.handlers.working import Connections, Transaction, Working
from penstock.database import steps
from penstock.database.async_connections import run_on
from penstock.errors import InvalidArgument, StaleReceipt
from penstock.records import Event
from penstock.subscriptions import queue
from penstock.subscriptions.queue import Receipt
from penstock.subscriptions.verdicts import DONE, Verdict, again

if TYPE_CHECKING:
    from penstock.database import Connection
    from penstock.database.steps import Steps

log = logging.getLogger(__name__)

#: How often a coroutine looks whether the consumer has renewed its receipt.
_LOOK_SECONDS = 0.002


@dataclass(slots=True, eq=False)
class HeldDelivery:
    """A delivery that the consumer has: it waits for a handler, or is under way."""

    delivery: queue.Delivery
    #: The present one: each extension renews it.
    receipt: Receipt
    #: Others may get it from then on, by the consumer's clock.
    until: float
    #: It was handed out before, and its workers said nothing of it: it may be what ends them.
    is_suspect: bool = False
    done: int = 0
    began: float = math.inf
    ended: float | None = None
    abandoned: bool = False
    #: Somebody else has it, or may have it.
    lost: bool = False
    #: How many transactions use the receipt, so that it must not be renewed.
    in_use: int = 0
    #: Whether one ever did.
    in_transaction: bool = False
    #: Held while the receipt is renewed, and to begin to use it.
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def events(self) -> list[Event]:
        """The one event."""
        return [self.delivery.event]

    def use(self) -> None:
        """A transaction uses the receipt.  The caller has the lock."""
        self.in_use += 1
        self.in_transaction = True


class DeliveryWork(Working):
    """The work of one handler on one delivery."""

    def __init__(
        self,
        unit: HeldDelivery,
        subscription: str,
        visibility_seconds: float,
        connections: Connections,
    ) -> None:
        super().__init__(connections)
        self.unit = unit
        self.subscription = subscription
        self.verdict = DONE
        #: Whether the handler has finished the event itself, as far as it knows.
        self.acknowledged = False
        self._visibility_seconds = visibility_seconds

    def each(self, event: Event) -> QueueDelivery:
        """The event as a handler gets it."""
        return QueueDelivery.of(event, self)

    def finish_steps(self, position: int) -> Steps[None]:
        """Acknowledge it."""
        if self.unit.abandoned or self.unit.lost:
            raise StaleReceipt(
                "the event is no longer this handler's", hint="roll back: it comes again"
            )
        yield from queue.acknowledge_steps(self.subscription, [self.unit.receipt])
        self.acknowledged = True

    @property
    def limit_seconds(self) -> float:
        """The time of the claim."""
        return self._visibility_seconds

    def mark(self) -> int:
        """Whether it is finished."""
        return int(self.acknowledged)

    def back_to(self, mark: int) -> None:
        """A transaction has committed nothing."""
        self.acknowledged = bool(mark)

    @contextmanager
    def work_on(self, position: int) -> Iterator[Connection]:
        """The transaction of :meth:`QueueDelivery.transaction`."""
        with self.unit.lock:
            self.unit.use()
        try:
            with super().work_on(position) as connection:
                yield connection
        finally:
            self.unit.in_use -= 1

    @asynccontextmanager
    async def work_on_async(self, position: int) -> AsyncIterator[Any]:
        """The same on the consumer's asynchronous connection."""
        await self.use_async()
        try:
            async with super().work_on_async(position) as connection:
                yield connection
        finally:
            self.unit.in_use -= 1

    async def use_async(self) -> None:
        """From now on the receipt is not renewed.  The event loop goes on while this waits."""
        while not self.unit.lock.acquire(blocking=False):
            await asyncio.sleep(_LOOK_SECONDS)
        self.unit.use()
        self.unit.lock.release()

    def say(self, verdict: Any) -> None:
        """What the handler has returned.  Anything but a verdict: it has returned, so it is done.

        Its effects are there, and as a failure it would have them again.
        """
        if verdict is again or (isinstance(verdict, type) and issubclass(verdict, Verdict)):
            raise InvalidArgument(
                "the handler returned no verdict, but the function that makes one",
                hint="call it, such as `return queue.again(60)`; or return queue.AGAIN",
            )
        if verdict is not None and not isinstance(verdict, Verdict):
            _warn_once(self.subscription, type(verdict).__name__)
            verdict = None
        self.verdict = DONE if verdict is None else verdict


def _warn_once(subscription: str, kind: str) -> None:
    """Once for each queue in a process: a handler does the same every time."""
    if subscription not in _warned:
        _warned.add(subscription)
        log.warning(
            "a handler of %s returned a %s, which says nothing: its event is finished. "
            "Return nothing, or a verdict: queue.DONE, queue.AGAIN, queue.DISCARD",
            subscription,
            kind,
        )


#: The queues whose handlers were warned of.
_warned: set[str] = set()


class QueueDelivery(Event):
    """An event of a queue as a handler gets it: it can be finished in one transaction."""

    __slots__ = ("_claim",)

    _claim: DeliveryWork

    @classmethod
    def of(cls, event: Event, claim: DeliveryWork) -> QueueDelivery:
        """The event as a handler gets it."""
        delivery = object.__new__(cls)
        Event.__dict__["_place"].__set__(delivery, event._place)
        Event.__dict__["_row"].__set__(delivery, event._row)
        cls.__dict__["_claim"].__set__(delivery, claim)
        return delivery

    @property
    def subscription(self) -> str:
        """The name of the queue."""
        return self._claim.subscription

    @property
    def deliveries(self) -> int:
        """How often it was handed out, with this time."""
        return self._claim.unit.delivery.deliveries

    @property
    def failures(self) -> int:
        """How often it has failed."""
        return self._claim.unit.delivery.failures

    @property
    def tag(self) -> str:
        """A short random text that stays the same over all deliveries of the event."""
        return self._claim.unit.delivery.tag

    @property
    def events(self) -> list[Event]:
        """This event alone: :mod:`penstock.inbox` takes events and batches."""
        return [self]

    def transaction(self) -> Transaction:
        """A transaction that commits the block's writes and the end of the event, or neither.

            with delivery.transaction() as connection: ...     # async with, in an async handler

        The event is finished first: that takes the fence, so a worker that lost it fails before
        it writes, and the server ends a transaction that would outlive the claim.
        """
        return Transaction(self._claim, self.sequence)

    def acknowledge(self, connection: Any) -> None:
        """Finish the event in the transaction that a connection to the same database is in.

        Raises StaleReceipt when somebody else has it; then the transaction must be rolled back.
        """
        with self._claim.unit.lock:
            self._claim.unit.use()
        steps.run(connection, self._claim.finish_steps(self.sequence))

    async def acknowledge_async(self, connection: Any) -> None:
        """The same on an asynchronous connection, as :mod:`penstock.aio` takes them."""
        await self._claim.use_async()
        await run_on(connection, self._claim.finish_steps(self.sequence))


def record(delivery: QueueDelivery, call_next: Any) -> None:
    """The innermost middleware: keeps what the handler says."""
    delivery._claim.say(call_next(delivery))


async def record_async(delivery: QueueDelivery, call_next: Any) -> None:
    """The same for a coroutine."""
    delivery._claim.say(await call_next(delivery))
