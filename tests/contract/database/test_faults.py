"""Faults of the catalogue on every engine: unknown outcomes, two-phase commits, deadlocks, changes.

F9, F11, F12 and F23; docs/evidence/invariants.md names the tests of the others.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pymysql
import pytest

from penstock import log
from penstock.errors import PenstockError
from penstock.publishing.publish import publish
from penstock.subscriptions import stream
from penstock.topics import names
from tests.contract.databases import ContractDatabase
from tests.contract.kit import open_transaction, sql
from tests.kit.log import TOPIC, drain, put, texts, topic
from tests.kit.proof import proves

DRIVER_ERRORS = (psycopg.Error, pymysql.MySQLError)


def _committed(connection: Any) -> None:
    connection.commit()
    connection.close()


def _lost(connection: Any) -> None:
    connection.close()


@proves("F9")
@pytest.mark.parametrize("outcome", [_committed, _lost])
@pytest.mark.parametrize("dedup_key", ["order 7", None])
def test_a_retry_after_an_unknown_outcome(
    db: ContractDatabase, outcome: Callable[[Any], None], dedup_key: str | None
) -> None:
    """F9. Guard: the dedup key. Mutant: none; then what was committed after all is there twice."""
    own = db.connect()
    topic(own)
    first = db.connect(autocommit=False)
    publish(first, TOPIC, b"paid", dedup_key=dedup_key)
    outcome(first)
    publish(own, TOPIC, b"paid", dedup_key=dedup_key)
    drain(own)
    twice = outcome is _committed and dedup_key is None
    assert texts(own) == ["paid", "paid"] if twice else ["paid"]


@proves("F11")
def test_a_prepared_transaction_holds_nobody_up(db: ContractDatabase) -> None:
    """F11. Guard: nothing waits for what is open; its events come when it is committed."""
    own = db.connect()
    topic(own)
    two_phase = db.connect(autocommit=False)
    prepare, finish = ["PREPARE TRANSACTION 'penstock'"], "COMMIT PREPARED 'penstock'"
    if db.engine != "postgres":
        sql(two_phase, "XA START 'penstock'")
        prepare, finish = ["XA END 'penstock'", "XA PREPARE 'penstock'"], "XA COMMIT 'penstock'"
    put(two_phase, "prepared")
    for statement in prepare:
        sql(two_phase, statement)
    two_phase.close()
    put(own, "quick")
    drain(own)
    assert texts(own) == ["quick"]
    sql(own, finish)
    drain(own)
    assert texts(own) == ["quick", "prepared"]


@proves("F12")
def test_a_deadlock_is_the_callers_own_error(db: ContractDatabase) -> None:
    """F12. Guard: errors that are not ours pass untouched; the victim's events are gone."""
    own = db.connect()
    topic(own)
    sql(own, "CREATE TABLE accounts (id INT PRIMARY KEY, total INT)")
    sql(own, "INSERT INTO accounts VALUES (1, 0), (2, 0)")
    with open_transaction(db) as a, open_transaction(db) as b, ThreadPoolExecutor(1) as pool:
        for connection, number in ((a, 1), (b, 2)):
            put(connection, str(number))
            sql(connection, f"UPDATE accounts SET total = 1 WHERE id = {number}")
        waiting = pool.submit(sql, a, "UPDATE accounts SET total = 1 WHERE id = 2")
        db.wait_until_blocked(a)
        errors = []
        for step in (lambda: sql(b, "UPDATE accounts SET total = 1 WHERE id = 1"), waiting.result):
            try:
                step()
            except Exception as error:
                errors.append(error)
            if step is not waiting.result and not errors:
                b.commit()
        assert len(errors) == 1
        assert isinstance(errors[0], DRIVER_ERRORS)
        assert not isinstance(errors[0], PenstockError)
        survivor = a if not waiting.exception() else b
        survivor.commit()
        (a if survivor is b else b).rollback()
    drain(own)
    assert texts(own) == (["1"] if survivor is a else ["2"])


ORPHANS = (
    "SELECT COUNT(*) FROM penstock.leases AS l WHERE NOT EXISTS"
    " (SELECT 1 FROM penstock.subscription_topics AS t JOIN penstock.partitions AS p"
    " ON p.topic_id = t.topic_id WHERE t.subscription_id = l.subscription_id"
    " AND p.id = l.partition_id)"
)
UNREAD = (
    "SELECT COUNT(*) FROM penstock.subscription_topics AS t JOIN penstock.partitions AS p"
    " ON p.topic_id = t.topic_id WHERE NOT EXISTS (SELECT 1 FROM penstock.leases AS l WHERE"
    " l.subscription_id = t.subscription_id AND l.partition_id = p.id)"
)


@proves("F23")
@pytest.mark.parametrize("seed", range(2))
def test_names_and_subscriptions_change_during_traffic(db: ContractDatabase, seed: int) -> None:
    """F23. Guards: resize gives every subscription its positions, delete takes them all."""
    chance = random.Random(seed)
    own, busy = db.connect(), db.connect(autocommit=False)
    addresses = [f"tests/t{number}" for number in range(4)]

    def address() -> str:
        return chance.choice(addresses)

    def subscription() -> str:
        return chance.choice(["a", "b", "c"])

    changes: list[Callable[[], object]] = [
        lambda: put(busy, "x", key=str(chance.random()), name=address()),
        lambda: put(own, "x", key=str(chance.random()), name=address()),
        busy.commit,
        lambda: log.sequence(own, chance.choice([1, 10])),
        lambda: names.create_topic(own, address(), chance.choice([1, 3]), create_namespaces=True),
        lambda: names.resize_topic(own, address(), chance.choice([4, 5, 6])),
        lambda: names.delete_topic(own, address(), with_subscriptions=True),
        lambda: stream.subscribe(own, subscription(), [address()]),
        lambda: stream.unsubscribe(own, subscription()),
    ]
    for _ in range(80):
        try:
            chance.choices(changes, weights=[6, 6, 3, 5, 4, 2, 1, 3, 1])[0]()
        except PenstockError:
            busy.rollback()
        assert db.run(ORPHANS) == db.run(UNREAD) == [(0,)]
    busy.commit()
    drain(own)
    assert log.status(own).unsequenced_events == 0
    for each in names.list_topics(own):
        assert log.gaps(own, each.address) == []
