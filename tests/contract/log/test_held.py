"""Under a held snapshot, the work for an event does not grow with the number of events (R6).

Work is counted, never timed: dead rows and pages that were looked at.  The long form holds it for
ten minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import Any

import pytest

from penstock import database, log
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.subscriptions import stream
from tests.contract.databases import ContractDatabase
from tests.contract.kit import sql
from tests.kit.log import put
from tests.kit.proof import proves
from tests.kit.stream import STREAM, SUBSCRIPTION, filled

#: Events of a beat: so many one by one, so many at once.
SINGLE, BATCH = 10, 90
BEATS = 24
#: At the begin and at the end so many beats are compared.
COMPARED = 8
#: So many events make the indexes as deep as ten minutes leave them; the rest is the snapshot's.
DEEP = 60_000

#: Of PostgreSQL, in the transaction so far: pages looked at, and rows of which dead ones are left.
POSTGRES = """
    SELECT sum(pg_stat_get_xact_blocks_fetched(c.oid))::bigint,
           sum(pg_stat_get_xact_tuples_updated(c.oid)
               + pg_stat_get_xact_tuples_deleted(c.oid))::bigint
    FROM pg_class AS c WHERE c.relnamespace = 'penstock'::regnamespace AND c.relkind IN ('r', 'i')
"""
#: Of MySQL and MariaDB: pages looked at by everybody.
MYSQL = "SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_read_requests'"


@contextmanager
def _snapshot(db: ContractDatabase) -> Iterator[None]:
    """A session that has read one table of Penstock, and reads it as of then."""
    with db.connect(autocommit=False) as held:
        session = "" if db.engine == "postgres" else "SESSION "
        sql(held, f"SET {session}TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        before = database.execute(held, "SELECT COUNT(*) FROM penstock.chunks")
        yield
        assert database.execute(held, "SELECT COUNT(*) FROM penstock.chunks") == before


def _work(connection: Any, act: Callable[[], object]) -> tuple[int, int]:
    """Pages that a transaction looks at, and dead rows that it leaves."""
    before = _counters(connection)
    act()
    pages, dead = _counters(connection)
    connection.commit()
    return pages - before[0], dead - before[1]


def _counters(connection: Any) -> tuple[int, int]:
    if database.dialect_of(connection) == "mysql":
        return int(database.execute(connection, MYSQL)[0][-1]), 0
    ((pages, dead),) = database.execute(connection, POSTGRES)
    return int(pages), int(dead)


class Consumer:
    """It takes what is there and commits it."""

    def __init__(self, connection: Any, before: int) -> None:
        self.connection = connection
        self.member = stream.join(connection, SUBSCRIPTION, "a")
        self.leases = stream.check_in(connection, self.member)
        self.take(40 + before)
        connection.commit()

    def take(self, expected: int) -> None:
        """Poll and commit everything."""
        polled = stream.poll(self.connection, self.member, self.leases, expected)
        assert sum(len(events) for _, events in polled) == expected
        done = {lease.partition_id: events[-1].sequence for lease, events in polled}
        stream.commit(
            self.connection, self.member, [(lease, done[lease.partition_id]) for lease, _ in polled]
        )
        self.leases = [
            replace(each, position=done.get(each.partition_id, each.position))
            for each in self.leases
        ]


def _publish(connection: Any) -> None:
    for _ in range(SINGLE):
        put(connection, "x", name=STREAM)
    publish_batch(connection, [Message(STREAM, b"x" * 200) for _ in range(BATCH)])


def _sequence(connection: Any) -> None:
    assert log.sequence(connection).sequenced == SINGLE + BATCH


def _seconds(db: ContractDatabase) -> float:
    word = "extract(epoch FROM now())" if db.engine == "postgres" else "UNIX_TIMESTAMP(SYSDATE(6))"
    return float(db.run(f"SELECT {word}")[0][0])


def work_under_a_snapshot(
    db: ContractDatabase, seconds: int, before: int = 0
) -> list[tuple[int, int]]:
    """Pages that were looked at and dead rows that were left by each beat."""
    filled(db.connect(), 4, 10 + before // 4)
    stream.configure_subscription(
        db.connect(), SUBSCRIPTION, heartbeat_seconds=600, lease_seconds=3600
    )
    own = db.connect(autocommit=False)
    consumer = Consumer(own, before)
    work: list[tuple[int, int]] = []
    with _snapshot(db):
        begun = _seconds(db)
        while len(work) < BEATS or _seconds(db) < begun + seconds:
            parts = [
                _work(own, lambda: _publish(own)),
                _work(own, lambda: _sequence(own)),
                _work(own, lambda: consumer.take(SINGLE + BATCH)),
            ]
            work.append((sum(pages for pages, _ in parts), sum(dead for _, dead in parts)))
    assert log.gaps(own, STREAM) == []
    return work


@proves("R6")
@pytest.mark.parametrize(
    ("seconds", "before"), [(0, 0), pytest.param(600, DEEP, marks=pytest.mark.long)]
)
def test_under_a_snapshot_the_work_does_not_grow(
    db: ContractDatabase, seconds: int, before: int
) -> None:
    """Guards: nothing of the hot path is updated, and what is deleted is not looked at again."""
    work = work_under_a_snapshot(db, seconds, before)
    assert sum(dead for _, dead in work) == 0
    pages = [pages for pages, _ in work]
    assert median(pages[-COMPARED:]) <= 1.5 * median(pages[:COMPARED]), (pages[:20], pages[-20:])
