"""The limit of a transaction that holds a claim does not outlive it, whoever ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy

from penstock import database
from penstock.database.mysql import limits
from penstock.subscriptions import queue
from penstock.subscriptions.queue import Receipt
from tests.contract.databases import MySQLDatabase
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, filled, receipts, receive

pytestmark = pytest.mark.mariadb_differs("settings of sessions are each server's own")

_NAMES = {"mysql": "wait_timeout", "mariadb": "idle_transaction_timeout"}


def _limit(db: MySQLDatabase, connection: Any) -> int:
    """How long the session may be idle, in a transaction or at all."""
    ((seconds,),) = database.execute(connection, f"SELECT @@SESSION.{_NAMES[db.engine]}")
    return int(seconds)


def _held(db: MySQLDatabase) -> Receipt:
    return receipts(receive(filled(db.connect(), 2), visibility_seconds=1000))[0]


@contextmanager
def _engine(db: MySQLDatabase) -> Iterator[sqlalchemy.Engine]:
    """A pool of one connection of PyMySQL itself."""
    engine = sqlalchemy.create_engine(
        db.url.replace("mysql://", "mysql+pymysql://"),
        isolation_level="READ COMMITTED",
        pool_size=1,
        max_overflow=0,
    )
    try:
        yield engine
    finally:
        engine.dispose()


@proves("a limit ends with its transaction")
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_commit_puts_it_back(mysql_db: MySQLDatabase, end: str) -> None:
    held = _held(mysql_db)
    mine = mysql_db.connect(autocommit=False)
    before = _limit(mysql_db, mine)
    queue.acknowledge(mine, QUEUE, [held])
    assert 0 < _limit(mysql_db, mine) <= 1000, "it has one inside"
    getattr(mine, end)()
    assert _limit(mysql_db, mine) == before


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_what_is_committed_is_no_failure(
    mysql_db: MySQLDatabase, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The connection is lost before the limit is put back: who commits has committed."""
    held = _held(mysql_db)
    mine, lift = mysql_db.connect(autocommit=False), limits.lift
    queue.acknowledge(mine, QUEUE, [held])

    def lost(driver: Any) -> None:
        mysql_db.run(f"KILL {driver.thread_id()}")
        lift(driver)

    monkeypatch.setattr(limits, "lift", lost)
    getattr(mine, end)()
    assert queue.statistics(mysql_db.connect(), QUEUE).size == (1 if end == "commit" else 2)


@proves("a limit ends with its transaction")
def test_a_pool_gets_no_limited_connection(mysql_db: MySQLDatabase) -> None:
    """By a Connection of SQLAlchemy, whose COMMIT nobody hears: when it is given back."""
    held = _held(mysql_db)
    with _engine(mysql_db) as engine:
        with engine.begin() as mine:
            before = _limit(mysql_db, mine)
            queue.acknowledge(mine, QUEUE, [held])
            assert 0 < _limit(mysql_db, mine) <= 1000
        with engine.begin() as next_one:
            assert _limit(mysql_db, next_one) == before


@proves("a limit ends with its transaction")
def test_the_next_call_puts_it_back(mysql_db: MySQLDatabase) -> None:
    """On any other connection, once its transaction has ended, and not before."""
    held = _held(mysql_db)
    with _engine(mysql_db) as engine:
        taken = engine.raw_connection()
        mine: Any = taken.driver_connection
        before = _limit(mysql_db, mine)
        queue.acknowledge(mine, QUEUE, [held])
        queue.statistics(mine, QUEUE)
        assert 0 < _limit(mysql_db, mine) <= 1000, "the transaction is still open"
        mine.commit()
        queue.statistics(mine, QUEUE)
        assert _limit(mysql_db, mine) == before
        taken.close()


@proves("a limit ends with its transaction")
def test_a_block_puts_it_back(mysql_db: MySQLDatabase) -> None:
    """A transaction of penstock.connect's connection that commits by itself otherwise."""
    held = _held(mysql_db)
    mine: Any = mysql_db.connect()
    before = _limit(mysql_db, mine)
    with mine.transaction():
        queue.acknowledge(mine, QUEUE, [held])
    assert _limit(mysql_db, mine) == before


@proves("a limit ends with its transaction", guard="the note of the limit")
@pytest.mark.parametrize(
    "scenario", [test_a_pool_gets_no_limited_connection, test_the_next_call_puts_it_back]
)
def test_without_that_it_stays(
    mysql_db: MySQLDatabase,
    monkeypatch: pytest.MonkeyPatch,
    scenario: Callable[[MySQLDatabase], None],
) -> None:
    """Mutant: nothing remembers the limit."""
    monkeypatch.setattr(limits, "note", lambda *_: None)
    with pytest.raises(AssertionError):
        scenario(mysql_db)
