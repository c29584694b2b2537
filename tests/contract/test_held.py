"""Under a snapshot that somebody holds, the work for an event does not grow with the events (R6).

Work is counted, never timed: dead rows and pages that were looked at.  The long form holds it for
ten minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import Any

import pytest

from penstock import database, log, stream
from penstock.publish import publish_batch
from penstock.records import Lease, Message
from tests.contract.databases import ContractDatabase
from tests.contract.kit import sql
from tests.log.kit import drain, put
from tests.stream.kit import STREAM, SUBSCRIPTION, filled

#: Events of a beat: so many one by one, so many at once.
SINGLE, BATCH = 10, 90
BEATS = 24
#: At the begin and at the end so many beats are compared.
COMPARED = 8

#: Whoever joins, checks in or makes storage leaves a few; no event does.
MOST_DEAD = 15

DEAD = """
    SELECT COALESCE(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables
    WHERE schemaname = 'penstock'
"""
PAGES = {
    "postgres": "SELECT sum(blks_hit + blks_read)::bigint FROM pg_stat_database"
    " WHERE datname = current_database()",
    "mysql": "SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_read_requests'",
}


@contextmanager
def _snapshot(db: ContractDatabase) -> Iterator[None]:
    """A session that has read one table of Penstock, and reads it as of then."""
    with db.connect(autocommit=False) as held:
        session = "" if db.engine == "postgres" else "SESSION "
        sql(held, f"SET {session}TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        before = database.execute(held, "SELECT COUNT(*) FROM penstock.chunks")
        yield
        assert database.execute(held, "SELECT COUNT(*) FROM penstock.chunks") == before


def _pages(db: ContractDatabase, own: Any) -> int:
    """Pages that the server has looked at so far, for everybody."""
    if db.engine == "postgres":
        sql(own, "SELECT pg_stat_force_next_flush()")
    dialect = "postgres" if db.engine == "postgres" else "mysql"
    return int(database.execute(own, PAGES[dialect])[0][-1])


def _beat(own: Any, member: stream.Membership, leases: list[Lease]) -> list[Lease]:
    """Events take the whole road; answers where the consumer stands."""
    assert drain(own) == SINGLE + BATCH
    polled = stream.poll(own, member, leases, SINGLE + BATCH)
    done = {lease.partition_id: events[-1].sequence for lease, events in polled}
    assert sum(len(events) for _, events in polled) == SINGLE + BATCH
    stream.commit(own, member, [(lease, done[lease.partition_id]) for lease, _ in polled])
    return [replace(each, position=done.get(each.partition_id, each.position)) for each in leases]


def _seconds(db: ContractDatabase) -> float:
    word = "extract(epoch FROM now())" if db.engine == "postgres" else "UNIX_TIMESTAMP(SYSDATE(6))"
    return float(db.run(f"SELECT {word}")[0][0])


def work_under_a_snapshot(db: ContractDatabase, seconds: int) -> tuple[int, list[int]]:
    """Dead rows in the end (of PostgreSQL), and how many pages were looked at in each beat."""
    own, dead = db.connect(), 0
    filled(own, 4)
    stream.configure_subscription(own, SUBSCRIPTION, heartbeat_seconds=600, lease_seconds=3600)
    member = stream.join(own, SUBSCRIPTION, "a")
    leases = stream.check_in(own, member)
    polled = stream.poll(own, member, leases)
    stream.commit(own, member, [(lease, events[-1].sequence) for lease, events in polled])
    leases = [replace(lease, position=10) for lease in leases]
    work: list[int] = []
    with _snapshot(db):
        begun = _seconds(db)
        while len(work) < BEATS or _seconds(db) < begun + seconds:
            for _ in range(SINGLE):
                put(own, "x", name=STREAM)
            publish_batch(own, [Message(STREAM, b"x" * 200) for _ in range(BATCH)])
            before = _pages(db, own)
            leases = _beat(own, member, leases)
            work.append(_pages(db, own) - before)
        if db.engine == "postgres":
            sql(own, "SELECT pg_stat_force_next_flush()")
            ((dead,),) = database.execute(own, DEAD)
    assert log.gaps(own, STREAM) == []
    return dead, work


@pytest.mark.parametrize("seconds", [0, pytest.param(600, marks=pytest.mark.long)])
def test_under_a_snapshot_the_work_does_not_grow(db: ContractDatabase, seconds: int) -> None:
    """Guards: nothing of the hot path is updated, and what is deleted is not looked at again."""
    dead, work = work_under_a_snapshot(db, seconds)
    assert dead <= MOST_DEAD
    assert median(work[-COMPARED:]) <= 1.5 * median(work[:COMPARED]), (work[:20], work[-20:])
