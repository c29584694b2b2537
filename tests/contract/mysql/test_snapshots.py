"""Dedup keys in a transaction at REPEATABLE READ whose snapshot is older than another's commit.

MariaDB from 11.6.2 on refuses what locks a row that is newer than the snapshot (error 1020,
innodb_snapshot_isolation), and rolls back the whole transaction.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from penstock import database
from penstock.errors import TransactionRolledBack
from penstock.publishing.publish import publish, publish_batch, publish_once
from penstock.records import Message
from tests.contract.databases import MySQLDatabase
from tests.contract.kit import sql
from tests.kit.log import TOPIC, drain, texts, topic
from tests.kit.proof import proves

pytestmark = pytest.mark.mariadb_differs("rows newer than the snapshot are refused")


def _claimed_meanwhile(db: MySQLDatabase) -> tuple[Any, uuid.UUID]:
    """A transaction at the servers' own level that has work, and a key that came after it began."""
    own = db.connect(autocommit=False)
    topic(own)
    sql(own, f"CREATE TABLE {db.app}.orders (id INT PRIMARY KEY)")
    sql(own, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    own.commit()
    sql(own, f"SELECT COUNT(*) FROM {db.app}.orders")
    sql(own, f"INSERT INTO {db.app}.orders VALUES (1)")
    publish(own, TOPIC, b"mine")
    return own, publish(db.connect(), TOPIC, b"first", dedup_key="k")


@proves("F12", how="a dedup key that is newer than the snapshot of MariaDB")
@pytest.mark.parametrize("way", ["publish", "publish_batch"])
def test_a_key_that_is_newer_than_the_snapshot_is_a_duplicate(
    mysql_db: MySQLDatabase, way: str
) -> None:
    """D1. Guard: claim_dedup_key takes the error of newer rows off its own statements."""
    own, first = _claimed_meanwhile(mysql_db)
    message = Message(TOPIC, b"second", dedup_key="k")
    if way == "publish":
        assert publish_once(own, message).event_id == first
    else:
        assert publish_batch(own, [message]) == [first]
    sql(own, f"INSERT INTO {mysql_db.app}.orders VALUES (2)")
    own.commit()
    assert mysql_db.run(f"SELECT COUNT(*) FROM {mysql_db.app}.orders") == [(2,)]
    drain(mysql_db.connect())
    assert sorted(texts(mysql_db.connect())) == ["first", "mine"]


#: Without the guard: the server's own setting holds.
OWN_SETTING = "/*M!110602 SET STATEMENT innodb_snapshot_isolation = OFF FOR */"


def _checks_snapshots(own: Any) -> bool:
    rows = database.execute(own, "SHOW SESSION VARIABLES LIKE 'innodb_snapshot_isolation'")
    return [value for _, value in rows] == ["ON"]


def _without_guard(db: MySQLDatabase) -> None:
    # The first of the two looks meets the newer row.
    place = f"{OWN_SETTING}\n    INSERT"
    db.without_guard("claim_dedup_key", place, "INSERT")


@proves("F12", guard="the look for a newer key")
def test_without_the_guard_the_whole_transaction_is_gone_and_the_error_says_so(
    mysql_db: MySQLDatabase,
) -> None:
    """Mutant of claim_dedup_key: on MariaDB it is the typed error that a program may try again."""
    _without_guard(mysql_db)
    own, first = _claimed_meanwhile(mysql_db)
    message = Message(TOPIC, b"second", dedup_key="k")
    if not _checks_snapshots(own):
        assert publish_once(own, message).event_id == first
        return
    with pytest.raises(TransactionRolledBack, match="begin the transaction again") as caught:
        publish_once(own, message)
    assert database.is_contention(caught.value)
    assert database.is_passing(caught.value)
    assert caught.value.__cause__ is not None
    assert database.is_contention(caught.value.__cause__)
    own.rollback()
    # Begun again, it has a snapshot of now.
    assert publish_once(own, message).event_id == first
    own.commit()
    assert mysql_db.run(f"SELECT COUNT(*) FROM {mysql_db.app}.orders") == [(0,)]


@proves("F12", how="a dedup key that is newer than the snapshot of MariaDB")
def test_the_callers_own_rows_are_still_checked(mysql_db: MySQLDatabase) -> None:
    """Guard: only the two statements switch it off; what the caller asked for is his."""
    own, _ = _claimed_meanwhile(mysql_db)
    checks = _checks_snapshots(own)
    publish_once(own, Message(TOPIC, b"second", dedup_key="k"))
    assert _checks_snapshots(own) is checks
    mysql_db.run(f"INSERT INTO {mysql_db.app}.orders VALUES (3)")
    look = f"SELECT id FROM {mysql_db.app}.orders WHERE id = 3 FOR UPDATE"
    try:
        assert database.execute(own, look) == [(3,)]
        assert not checks
    except TransactionRolledBack:
        assert checks
