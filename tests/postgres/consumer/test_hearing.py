"""What a consumer is told of partitions that grew, and what it then reads from the database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg

from penstock import database, log
from penstock.consumer.stream.consumer import Consumer
from penstock.database import sessions
from penstock.database.wake import Wake
from penstock.leases.database_keeper import LeaseKeeper
from penstock.publishing.publish import publish
from penstock.records import Event, Lease
from penstock.subscriptions import stream
from penstock.upkeep.sequencing import sequence_round
from tests.guards import without_guard
from tests.kit.log import put, topic
from tests.kit.proof import proves
from tests.kit.stream import SUBSCRIPTION

Connection = psycopg.Connection[tuple[Any, ...]]


class Listener:
    """Says what it was told to say."""

    def __init__(self, *, is_told: bool = True) -> None:
        self.is_told = is_told
        self.said: list[str] = []

    def heard(self) -> list[str]:
        """What was said since."""
        said, self.said = self.said, []
        return said

    def wait(self, most_seconds: float, wake: Wake) -> list[str]:
        """Nothing really waits."""
        return self.heard()


class Told(Consumer):
    """A consumer that is told by a scripted ear, and writes down what it asks for."""

    def __init__(self, url: str, listener: Listener) -> None:
        self.now = 0.0
        self.came: list[bytes] = []
        self.asked: list[list[int]] = []
        super().__init__(
            url, SUBSCRIPTION, handler=self._handle, clock=lambda: self.now, idle_seconds=0.5
        )
        self._listener = listener
        poll = self.reader._poll_leases

        def written_down(
            connection: Any, leases: Sequence[Lease], max_events: int, max_each: int | None = None
        ) -> list[tuple[Lease, list[Event]]]:
            self.asked.append(sorted(lease.partition for lease in leases))
            return poll(connection, leases, max_events, max_each)

        self.reader._poll_leases = written_down

    def _handle(self, event: Event) -> None:
        self.came.append(event.payload)

    def rounds(self, connection: Connection, count: int) -> list[list[int]]:
        """The partitions that were asked for in so many rounds."""
        self.asked.clear()
        for _ in range(count):
            self.turn(connection)
        return self.asked


@contextmanager
def _told(connection: Connection, url: str, listener: Listener) -> Iterator[Told]:
    """It holds two partitions with an event each; one round has read and handled both."""
    name = topic(connection, 2)
    stream.subscribe(connection, SUBSCRIPTION, [name])
    for partition in range(2):
        publish(connection, name, b"first", partition=partition)
    log.sequence(connection)
    consumer = Told(url, listener)
    with consumer.keeper, consumer.at_work(), consumer.session(connection):
        assert consumer.rounds(connection, 1) == [[0, 1]]
        yield consumer


def _grow(connection: Connection, partition: int) -> str:
    """One more event.  Returns the notice of its pass."""
    publish(connection, "tests/log", b"next", partition=partition)
    return ",".join(map(str, log.sequence(connection).grown))


def test_what_was_read_to_its_end_is_asked_again_when_it_grew(
    connection: Connection, database_url: str
) -> None:
    """Guard: Reader._read_out."""
    listener = Listener()
    with _told(connection, database_url, listener) as consumer:
        assert consumer.rounds(connection, 3) == []
        listener.said.append(_grow(connection, 1))
        assert consumer.rounds(connection, 3) == [[1]]
        assert consumer.came.count(b"next") == 1
        listener.said.append("all")
        assert consumer.rounds(connection, 2) == [[0, 1]]
        listener.said.append("what another login says")
        assert consumer.rounds(connection, 2) == [[0, 1]]


@proves("L6, told")
def test_a_notice_that_was_lost_is_made_up_for(connection: Connection, database_url: str) -> None:
    """Guard: all are asked once in idle_seconds, whatever is heard of others."""
    listener = Listener()
    with _told(connection, database_url, listener) as consumer:
        _grow(connection, 0)
        listener.said.append(_grow(connection, 1))
        assert consumer.rounds(connection, 2) == [[1]]
        consumer.now += 0.5
        assert consumer.rounds(connection, 2) == [[0, 1]]
        assert consumer.came.count(b"next") == 2


@proves("L6, told", guard="idle_seconds")
def test_who_was_never_told_asks_each_time(connection: Connection, database_url: str) -> None:
    """Guard: Listener.is_told. A pooler may swallow the LISTEN."""
    listener = Listener(is_told=False)
    with _told(connection, database_url, listener) as consumer:
        _grow(connection, 0)
        assert consumer.rounds(connection, 2) == [[0, 1], [0, 1]]
        assert consumer.came.count(b"next") == 1


def test_a_batch_that_was_cut_off_is_asked_on(connection: Connection, database_url: str) -> None:
    """Guard: only a poll that brought less than it asked for has read to the end."""
    listener = Listener()
    with _told(connection, database_url, listener) as consumer:
        reader = consumer.reader
        reader._bounds = replace(reader._bounds, batch=2)
        listener.said += [_grow(connection, 0) for _ in range(3)]
        assert consumer.rounds(connection, 4) == [[0], [0]]
        assert consumer.came.count(b"next") == 3


def test_what_is_heard_is_read_before_it_is_committed(
    connection: Connection, database_url: str
) -> None:
    """Guard: a round that brought something commits by time only: a commit waits for the disk."""
    listener = Listener()
    with _told(connection, database_url, listener) as consumer:
        listener.said.append(_grow(connection, 0))
        consumer.turn(connection)
        assert stream.position(connection, SUBSCRIPTION, "tests/log") == {0: 0, 1: 0}
        consumer.now += 0.005
        consumer.turn(connection)
        assert stream.position(connection, SUBSCRIPTION, "tests/log") == {0: 2, 1: 1}
        consumer.now += 0.5
        listener.said.append(_grow(connection, 1))
        consumer.turn(connection)
        consumer.now += 0.01
        listener.said.append(_grow(connection, 1))
        consumer.turn(connection)
        assert stream.position(connection, SUBSCRIPTION, "tests/log") == {0: 2, 1: 3}


def test_a_check_in_wakes_the_loop(connection: Connection, database_url: str) -> None:
    """Guard: Keeper.wake. Else leases lie there until idle_seconds are over."""
    stream.subscribe(connection, SUBSCRIPTION, [topic(connection)])
    keeper = LeaseKeeper(database_url, SUBSCRIPTION)
    wake = Wake()
    try:
        with keeper:
            keeper.wake = wake.set
            keeper.check_in_soon()
            assert wake.wait(10)
    finally:
        wake.close()


def test_a_pass_tells_with_its_commit(connection: Connection, database_url: str) -> None:
    """Guard: announce in the statement of the pass; none where it found nothing."""
    partition_id = str(_partition(connection))
    with database.connect(database_url) as listening:
        listener = sessions.of_connection(listening).listen(listening)
        assert [listener.is_told] == [False]
        sequence_round(connection)
        put(connection, "x")
        with connection.transaction():
            log.sequence(connection, announce=True)
            assert listener.heard() == []
        wake = Wake()
        assert listener.wait(10, wake) == [partition_id]
        assert [listener.is_told] == [True]
        wake.close()


def test_a_queue_that_fills_up_stops_no_pass(connection: Connection, database_url: str) -> None:
    """Guard: announce looks at the queue; a full one refuses the commit. Here any is too full."""
    _partition(connection)
    without_guard(connection, "announce", "notices_used() < 0.5", "false")
    with database.connect(database_url) as listening:
        listener = sessions.of_connection(listening).listen(listening)
        put(connection, "x")
        assert sequence_round(connection).events == 1
        assert listener.heard() == []


def _partition(connection: Connection) -> int:
    name = topic(connection)
    return int(database.call(connection, "high_watermarks", topic=name)[0][4])
