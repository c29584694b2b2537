"""Small things that the tests of the log share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from penstock import log
from penstock.publishing.publish import publish
from penstock.records import Event
from penstock.topics import names

Connection = psycopg.Connection[tuple[Any, ...]]

TOPIC = "tests/log"
#: The log as another cluster has left it: the server that wrote the last tick is not this one.
ANOTHER_CLUSTER = (
    "WITH written AS (UPDATE penstock.ticks SET server_started = NULL)"
    " UPDATE penstock.eras SET system_identifier = 1"
)


def topic(connection: Connection, partitions: int = 1, name: str = TOPIC) -> str:
    """A new topic."""
    names.create_topic(connection, name, partitions, create_namespaces=True)
    return name


def part(connection: Connection, number: int = 0, name: str = TOPIC) -> int:
    """The id of a partition of a topic."""
    return names.describe_topic(connection, name).partitions[number].partition_id


def known_as(connection: Connection, name: str = TOPIC) -> str:
    """The name by which sinks and archives know a topic."""
    return names.describe_topic(connection, name).known_as


def put(connection: Connection, text: str, *, key: str | None = None, name: str = TOPIC) -> None:
    """Publish one event."""
    publish(connection, name, text.encode(), key=key)


def drain(connection: Connection, max_events: int = 10_000, *, announce: bool = False) -> int:
    """Sequence until nothing is left.  Returns how many events got their sequence.

    ``announce``: consumers hear of it, as of a sequencer's passes.
    """
    total = 0
    while (
        result := log.sequence(connection, max_events, announce=announce)
    ).sequenced or result.more:
        total += result.sequenced
    assert not result.busy
    return total


def read(connection: Connection, partition: int = 0, name: str = TOPIC) -> list[Event]:
    """All events of a partition."""
    events: list[Event] = []
    while found := log.fetch(connection, name, partition, len(events) + 1, 1000):
        events += found
    return events


def texts(connection: Connection, partition: int = 0, name: str = TOPIC) -> list[str]:
    """The payloads of a partition, in order."""
    return [event.payload.decode() for event in read(connection, partition, name)]


def value(connection: Connection, query: str, *binds: Any) -> Any:
    """The one value that a query returns."""
    row = connection.execute(query.encode(), binds or None).fetchone()
    assert row is not None
    return row[0]


@contextmanager
def open_transaction(url: str) -> Iterator[Connection]:
    """A connection inside a transaction, rolled back unless the test commits it."""
    connection = psycopg.connect(url)
    try:
        connection.execute("SELECT 1")
        yield connection
    finally:
        connection.close()


def backend_pid(connection: Connection) -> int:
    """The server process of a connection."""
    return int(connection.info.backend_pid)


def wait_until(condition: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    """Wait until another connection or thread has made the condition true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.01)


def wait_until_blocked(connection: Connection, pid: int) -> None:
    """Wait until a server process waits for a lock."""
    wait_until(
        lambda: value(
            connection,
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s"
            " AND wait_event_type = 'Lock')",
            pid,
        ),
        f"process {pid} waits for a lock",
    )
