"""What the tests of queues share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock import database
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.subscriptions import queue, stream
from penstock.subscriptions.queue import Delivery, Receipt
from penstock.testing import MemoryConnection
from tests.kit.log import Connection, drain, topic

QUEUE = "mails"
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
    """Further events in each partition.  A consumer hears of them: its clock may stand still."""
    publish_batch(
        connection,
        [
            Message(TOPIC, str(number).encode(), partition=partition)
            for number in range(start, start + events)
            for partition in range(partitions)
        ],
    )
    drain(connection, announce=True)


def pass_time(connection: Connection, seconds: float) -> None:
    """The database's clock as the protocol sees it goes on: all that it has stored is older."""
    own: Any = connection
    if isinstance(own, MemoryConnection):
        own._store.clock.advance(seconds)
        return
    for table in _TIMES:
        pass_time_of(connection, table, seconds)


def pass_time_of(connection: Connection, table: str, seconds: float) -> None:
    """As pass_time, for one of its tables.  The rest between two turns is over in any case."""
    rest = 1000 if table == "queue_turns" else 0
    _earlier(connection, table, _TIMES[table], seconds + rest)


def all_older(connection: Connection, seconds: float, table: str = "chunks") -> None:
    """The events of the log, or of another table, got their sequences so much earlier."""
    _earlier(connection, table, "sequenced_at", seconds)


def _earlier(connection: Connection, table: str, column: str, seconds: float) -> None:
    interval = "interval '1 second' * %(seconds)s"
    if database.dialect_of(connection) == "mysql":
        interval, seconds = "INTERVAL %(seconds)s MICROSECOND", int(seconds * 1_000_000)
    database.execute(
        connection,
        f"UPDATE penstock.{table} SET {column} = {column} - {interval}",
        {"seconds": seconds},
    )


def rows(connection: Connection, sql: str) -> list[tuple[Any, ...]]:
    """What a query returns, on each engine."""
    return database.execute(connection, sql)


def mutated(db: Any, change: dict[str, tuple[str, list[tuple[str, str]]]]) -> None:
    """Functions without a guard; change has one for each dialect: function, old and new texts."""
    if db.engine in ("postgres", "memory"):
        function, texts_of_it = change[db.engine]
        for old, new in texts_of_it:
            db.without_guard(function, old, new)
    else:
        db.without_guards(*change["mysql"])


def count(connection: Connection, table: str) -> int:
    """How many rows a table has."""
    return int(rows(connection, f"SELECT count(*) FROM penstock.{table}")[0][0])


def receive(connection: Connection, max_events: int = 1, **options: float) -> list[Delivery]:
    """Receive after a moment in which the sweep that receivers share is due again."""
    pass_time(connection, 1)
    return queue.receive(connection, QUEUE, max_events, **options)


def position(connection: Connection) -> int:
    """Where the queue stands in the first partition of its topic."""
    return stream.position(connection, QUEUE, TOPIC)[0]


def acknowledge(connection: Connection, deliveries: Iterable[Delivery]) -> None:
    """Finish all of them."""
    queue.acknowledge(connection, QUEUE, receipts(deliveries))


def receipts(deliveries: Iterable[Delivery]) -> list[Receipt]:
    """Their receipts."""
    return [each.receipt for each in deliveries]


def texts(deliveries: Iterable[Delivery]) -> list[str]:
    """Their payloads."""
    return [each.event.payload.decode() for each in deliveries]
