"""A consumer that polls, handles nothing and commits.  The peer is a loop over a cursor row."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter
from typing import Any

from benchmarks.bench import PARTITIONS, Bench
from benchmarks.fetch import filled
from benchmarks.measure import Aim, Case, Settings
from penstock.consumer.stream.consumer import Batch, Consumer
from penstock.records import Lease
from penstock.subscriptions import stream

ROWS = {"postgres": 300_000, "mysql": 100_000, "mariadb": 100_000}
BATCH_SIZE = 500
AHEAD = 2 * BATCH_SIZE * PARTITIONS  # while one batch of a partition is handled, the next is read
AIM = Aim(value=80_000)
#: How many tuples of three columns are read at once where nothing is made of them.
TUPLES = 16_000
AIM_OF_TUPLES = Aim(value=250_000)

_TUPLES = """
SELECT partition_id, sequence, payload
FROM penstock.poll(%s, %s, %s::bigint[], %s::bigint[], %s::bigint[], %s)
"""


def cases(bench: Bench, settings: Settings) -> Iterator[Case]:
    """Consuming, with a commit for each batch.

    The peer is what people write by hand for a single reader: SELECT the next 500 rows by id,
    UPDATE the one row that holds the position, COMMIT.
    """
    count = settings.amount(ROWS[bench.engine])
    topic, table = filled(bench, count)
    bench.execute(f"CREATE TABLE {table}_position (last {bench.id_type} NOT NULL)")
    bench.execute(f"INSERT INTO {table}_position VALUES (%s)", (bench.first_id,))

    def peer() -> float:
        bench.execute(f"UPDATE {table}_position SET last = %s", (bench.first_id,))
        bench.settle()
        begun = perf_counter()
        handled = _cursor_loop(bench, table)
        spent = perf_counter() - begun
        if handled != count:
            raise RuntimeError(f"handled {handled} of {count} events")
        return spent

    aim = AIM if bench.engine == "postgres" else None
    yield Case(
        "consume", count, BATCH_SIZE, Consuming(bench, topic, count), peer, "a cursor row", aim
    )
    yield Case(
        "consume_class", count, BATCH_SIZE, WithConsumer(bench, topic, count), peer,
        "a cursor row", aim,
    )  # fmt: skip
    if bench.engine == "postgres":
        tuples = WithTuples(bench, topic, count)
        yield Case("consume_tuples", count, TUPLES, tuples, aim=AIM_OF_TUPLES)


class Consuming:
    """Runs that read a whole topic, each by a new subscription.  The time to join is counted."""

    def __init__(self, bench: Bench, topic: str, count: int) -> None:
        self._bench = bench
        self._topic = topic
        self._count = count
        self._numbers = itertools.count(1)

    def __call__(self) -> float:
        connection = self._bench.connection
        subscription = f"{self._topic.rpartition('/')[2]}-{next(self._numbers)}"
        stream.subscribe(connection, subscription, [self._topic])
        self._bench.settle()
        begun = perf_counter()
        member, leases = join_all(connection, subscription)
        handled = self.work(member, leases)
        stream.leave(connection, member)
        spent = perf_counter() - begun
        stream.unsubscribe(connection, subscription)
        if handled != self._count:
            raise RuntimeError(f"handled {handled} of {self._count} events")
        return spent

    def work(self, member: stream.Membership, leases: dict[int, Lease]) -> int:
        """Read until nothing is left.  Returns how many events."""
        connection = self._bench.connection
        handled = 0
        heartbeat_due = perf_counter() + member.heartbeat_seconds
        while polled := stream.poll(connection, member, list(leases.values()), BATCH_SIZE):
            done = [(lease, events[-1].sequence) for lease, events in polled]
            stream.commit(connection, member, done)
            handled += sum(len(events) for _, events in polled)
            for lease, position in done:
                leases[lease.partition_id] = replace(lease, position=position)
            if perf_counter() >= heartbeat_due:
                stream.heartbeat(connection, member)
                heartbeat_due = perf_counter() + member.heartbeat_seconds
        return handled


class WithTuples(Consuming):
    """The same by SQL and of three columns, in large batches, without a record of an event."""

    def work(self, member: stream.Membership, leases: dict[int, Lease]) -> int:
        """Read until nothing is left.  Returns how many events."""
        connection = self._bench.connection
        handled = 0
        while rows := tuples_after(self._bench.connection, member, list(leases.values())):
            ends = {partition_id: sequence for partition_id, sequence, _ in rows}
            done = [(leases[each], sequence) for each, sequence in ends.items()]
            stream.commit(connection, member, done)
            handled += len(rows)
            for lease, position in done:
                leases[lease.partition_id] = replace(lease, position=position)
        return handled


class WithConsumer(Consuming):
    """The same by penstock.Consumer, which reads ahead.  Its start and its end are counted."""

    def __call__(self) -> float:
        connection = self._bench.connection
        subscription = f"{self._topic.rpartition('/')[2]}-class-{next(self._numbers)}"
        stream.subscribe(connection, subscription, [self._topic])
        self._bench.settle()
        stop = threading.Event()
        left = [self._count]

        def handle(batch: Batch) -> None:
            left[0] -= len(batch)
            if left[0] <= 0:
                stop.set()

        consumer = Consumer(
            self._bench.url,
            subscription,
            batch_handler=handle,
            batch_size=BATCH_SIZE,
            prefetch_rows=AHEAD,
        )
        begun = perf_counter()
        consumer.run(stop)
        spent = perf_counter() - begun
        stream.unsubscribe(connection, subscription)
        if consumer.stats.events != self._count:
            raise RuntimeError(f"handled {consumer.stats.events} of {self._count} events")
        return spent


def tuples_after(
    connection: Any, member: stream.Membership, held: list[Lease]
) -> list[tuple[int, int, bytes]]:
    """What comes after the positions of the leases, without a record of an event."""
    ids, epochs, after = (
        [getattr(each, name) for each in held]
        for name in ("partition_id", "lease_epoch", "position")
    )
    binds = (member.subscription, member.consumer, ids, epochs, after, TUPLES)
    found: list[Any] = connection.execute(_TUPLES, binds, binary=True).fetchall()
    return found


def join_all(connection: Any, subscription: str) -> tuple[stream.Membership, dict[int, Lease]]:
    """One consumer that holds every partition with unread events, by partition id."""
    member = stream.join(connection, subscription, "bench")
    return member, hold_all(connection, member)


def hold_all(connection: Any, member: stream.Membership) -> dict[int, Lease]:
    """The leases of the only consumer, once it holds all partitions with unread events."""
    leases: dict[int, Lease] = {}
    while True:
        held = {lease.partition_id: lease for lease in stream.check_in(connection, member)}
        if held.keys() <= leases.keys():
            return held
        leases = held


def _cursor_loop(bench: Bench, table: str) -> int:
    select = (
        f"SELECT {bench.bare_columns} FROM {table} "
        f"WHERE id > (SELECT last FROM {table}_position) ORDER BY id LIMIT {BATCH_SIZE}"
    )
    update = f"UPDATE {table}_position SET last = %s"
    handled = 0
    while True:
        with bench.transaction():
            found = bench.rows(select)
            if not found:
                return handled
            bench.execute(update, (found[-1][0],))
        handled += len(found)
