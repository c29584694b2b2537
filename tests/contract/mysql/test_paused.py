"""A process that is paused inside a call delays no other, also on MySQL and MariaDB.

There a call that changes something is three statements of its client, the last of which commits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
import pytest

from penstock import database, log
from penstock.database.mysql import connection as mysql
from penstock.subscriptions import stream
from tests.contract.databases import MySQLDatabase
from tests.kit.log import put, topic, wait_until
from tests.kit.proof import proves
from tests.kit.stream import SUBSCRIPTION, filled, member_with_lease

pytestmark = pytest.mark.mariadb_differs("limits of transactions are each server's own")


@contextmanager
def paused_before_commit(connection: Any, call: Callable[[], object]) -> Iterator[list[Exception]]:
    """The call in a thread that stops between its statement and its COMMIT."""
    reached, go_on = threading.Event(), threading.Event()
    failures: list[Exception] = []
    query = connection.query

    def late_commit(statement: str, *rest: object) -> object:
        if statement.startswith("SET autocommit = 1"):
            reached.set()
            assert go_on.wait(60)
        return query(statement, *rest)

    def run() -> None:
        try:
            call()
        except Exception as error:
            failures.append(error)

    connection.query = late_commit
    thread = threading.Thread(target=run)
    thread.start()
    assert reached.wait(60)
    yield failures
    go_on.set()
    thread.join(60)


def _check_in_beside_a_paused_one(db: MySQLDatabase) -> list[Exception]:
    own, other = db.connect(), db.connect()
    filled(own)
    paused, _ = member_with_lease(own, "a")
    beside = stream.join(own, SUBSCRIPTION, "b")
    database.execute(other, "SET SESSION innodb_lock_wait_timeout = 4")
    with paused_before_commit(own, lambda: stream.check_in(own, paused)) as failures:
        stream.check_in(other, beside)
    return failures


@proves("L1, D8", how="inside a call")
@proves("F3")
def test_a_consumer_that_is_paused_in_a_check_in(
    mysql_db: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D8. Guard: the time limit of a call's own transaction."""
    monkeypatch.setattr(mysql, "OWN_IDLE_SECONDS", 1)
    (error,) = _check_in_beside_a_paused_one(mysql_db)
    assert database.is_unavailable(error)


@proves("L1, D8", guard="time limits of the server")
@pytest.mark.long_on("mariadb")
def test_without_the_limit_nobody_checks_in(
    mysql_db: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: no limit. The subscription's row stays locked."""
    monkeypatch.setattr(mysql, "OWN_IDLE_SECONDS", 3600)
    with pytest.raises(pymysql.err.OperationalError, match="Lock wait timeout"):
        _check_in_beside_a_paused_one(mysql_db)


@proves("F5", how="paused")
def test_a_sequencer_that_is_paused_in_a_pass(
    mysql_db: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F5. Guard: the same; somebody else sequences after it."""
    monkeypatch.setattr(mysql, "OWN_IDLE_SECONDS", 1)
    own, other = mysql_db.connect(), mysql_db.connect()
    name = topic(own)
    put(own, "x", name=name)
    with paused_before_commit(own, lambda: log.sequence(own)):
        wait_until(lambda: log.sequence(other).sequenced == 1, "another one sequences")


def test_the_limit_is_the_calls_own(mysql_db: MySQLDatabase) -> None:
    """Guard: what was set before is set again after each call."""
    own = mysql_db.connect()
    filled(own)
    name = "wait_timeout" if mysql_db.engine == "mysql" else "idle_transaction_timeout"
    for wanted in (77, 2):
        database.execute(own, f"SET SESSION {name} = {wanted}")
        member, lease = member_with_lease(own, f"c{wanted}")
        stream.commit(own, member, [(lease, 1)]) if wanted == 77 else stream.check_in(own, member)
        assert database.execute(own, f"SELECT @@SESSION.{name}") == [(wanted,)]
        stream.leave(own, member)
