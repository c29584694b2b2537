"""What the tests of queues share."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.subscriptions import queue
from penstock.subscriptions.queue import Delivery, Receipt
from tests.kit.log import Connection, drain, topic

QUEUE = "mails"
#: The engines that have queue mode.
ENGINES = ["postgres"]
TOPIC = "tests/mails"

#: The times that the protocol has stored.
_TIMES = {
    "queue_ranges": "deadline",
    "queue_waiting": "due_at",
    "queue_turns": "rest_until",
}


def filled(
    connection: Connection, events: int, partitions: int = 1, **settings: float
) -> Connection:
    """A queue on a new topic with events 1, 2, 3, ... in each partition."""
    topic(connection, partitions, TOPIC)
    queue.subscribe(connection, QUEUE, [TOPIC])
    if settings:
        queue.configure(connection, QUEUE, **settings)
    more(connection, events, partitions)
    return connection


def more(connection: Connection, events: int, partitions: int = 1, start: int = 1) -> None:
    """Further events in each partition."""
    publish_batch(
        connection,
        [
            Message(TOPIC, str(number).encode(), partition=partition)
            for number in range(start, start + events)
            for partition in range(partitions)
        ],
    )
    drain(connection)


def pass_time(connection: Connection, seconds: float) -> None:
    """The database's clock as the protocol sees it goes on: all that it has stored is older."""
    for table, column in _TIMES.items():
        connection.execute(
            f"UPDATE penstock.{table} SET {column} = {column} - %s * interval '1 second'".encode(),
            (seconds,),
        )


def receive(connection: Connection, max_events: int = 1, **options: float) -> list[Delivery]:
    """Receive after a moment in which the sweep that receivers share is due again."""
    pass_time(connection, 1)
    return queue.receive(connection, QUEUE, max_events, **options)


def acknowledge(connection: Connection, deliveries: Iterable[Delivery]) -> None:
    """Finish all of them."""
    queue.acknowledge(connection, QUEUE, receipts(deliveries))


def receipts(deliveries: Iterable[Delivery]) -> list[Receipt]:
    """Their receipts."""
    return [each.receipt for each in deliveries]


def texts(deliveries: Iterable[Delivery]) -> list[str]:
    """Their payloads."""
    return [each.event.payload.decode() for each in deliveries]
