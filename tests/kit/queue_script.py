"""A worker of a queue by script: a clock that stands, handlers that wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock import database, queue
from penstock.consumer.handlers.executors import Outcome
from penstock.consumer.queue.consumer import QueueConsumer
from penstock.consumer.queue.delivery import DeliveryWork, HeldDelivery, QueueDelivery
from penstock.testing import MemoryDatabase
from tests.kit.log import wait_until
from tests.kit.queue import QUEUE, filled

#: What a unit has that nobody looks at.
NOTHING: Any = None


class Script:
    """A worker with two handlers on a queue in memory, one of which waits at the last event."""

    def __init__(self, events: int, **options: Any) -> None:
        self.now = 0.0
        self.open = threading.Event()
        self.begun: list[str] = []
        self.last = str(events)
        self.database = MemoryDatabase()
        connection: Any = self.database.connect()
        self.own = filled(connection, events, visibility_seconds=30)
        self.options = {"concurrency": 2, "prefetch": 50, "idle_seconds": 0.02} | options
        self.use(self.handle)

    def use(self, handler: Any) -> None:
        """Handle the events in this way."""
        self.consumer = QueueConsumer(
            self.database.url, QUEUE, handler=handler, clock=lambda: self.now, **self.options
        )

    def handle(self, delivery: QueueDelivery) -> None:
        text = delivery.payload.decode()
        self.begun.append(text)
        if text == self.last:
            assert self.open.wait(30)

    @property
    def unfinished(self) -> int:
        """As the queue knows it."""
        return queue.statistics(self.own, QUEUE).size

    @contextmanager
    def handed_over(self) -> Iterator[database.Connection]:
        """At work by hand, with the first events received and given to open handlers."""
        self.open.set()
        consumer = self.consumer
        with consumer.at_work(), consumer.open() as connection, consumer.session(connection):
            consumer._receive(connection)
            consumer._hand_over()
            yield connection

    def waits(self, events: int) -> None:
        """Until so many are done and wait to be acknowledged, for as long as the clock stands."""
        outcomes = self.consumer.settler.outcomes
        wait_until(lambda: len(outcomes) == events, "they wait")


def in_hand(until: float) -> HeldDelivery:
    """An event that a worker holds until then."""
    return HeldDelivery(NOTHING, NOTHING, until, done=1)


def outcome_of(error: Exception | None = None) -> Outcome[HeldDelivery, DeliveryWork]:
    """How its handler ended."""
    unit = in_hand(30.0)
    return Outcome(unit, DeliveryWork(unit, QUEUE, 30.0, NOTHING), error)
