"""How the sequencer on MySQL and MariaDB treats the locks of others."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pymysql
import pytest

from penstock import Message, database, log
from penstock.database import calls
from penstock.publishing.publish import publish_batch
from penstock.topics import names
from penstock.upkeep.sequencing import sequence_round
from tests.contract.databases import MySQLDatabase
from tests.contract.kit import open_transaction, sql
from tests.kit.log import TOPIC, put, texts, topic
from tests.kit.proof import proves

pytestmark = pytest.mark.mariadb_differs("locks")

_DISCARD = "UPDATE (\n        SELECT h.partition_id"


def _pass_beside_a_locked_row(db: MySQLDatabase) -> None:
    """A pass with nothing of a deleted topic, whose row somebody has locked."""
    own = db.connect()
    topic(own)
    names.delete_topic(own, TOPIC)
    topic(own, name="tests/other")
    put(own, "x", name="tests/other")
    with open_transaction(db) as other:
        sql(other, "SELECT * FROM penstock.deleted_topics FOR UPDATE")
        sql(own, "SET SESSION innodb_lock_wait_timeout = 1")
        assert log.sequence(own).sequenced == 1


def test_a_pass_locks_only_the_deleted_topics_it_counts_in(mysql_db: MySQLDatabase) -> None:
    """Guard: what was discarded comes first in the join, and the key is forced."""
    _pass_beside_a_locked_row(mysql_db)


def test_the_other_way_round_it_waits_for_all(mysql_db: MySQLDatabase) -> None:
    """Mutant: deleted topics first, which is a scan."""
    mysql_db.without_guard(
        "append_chunks", _DISCARD, "UPDATE deleted_topics AS d SET d.discarded = 0; " + _DISCARD
    )
    with pytest.raises(pymysql.err.OperationalError):
        _pass_beside_a_locked_row(mysql_db)


def _rates_beside_a_publisher(db: MySQLDatabase) -> None:
    own = db.connect()
    topic(own)
    log.ensure_slices(own)
    with open_transaction(db) as publisher:
        put(publisher, "x")
        sql(own, "SET SESSION innodb_lock_wait_timeout = 1")
        database.call(own, "note_slice_rates")


@proves("F10")
def test_upkeep_waits_for_no_publisher(mysql_db: MySQLDatabase) -> None:
    """F10. Guard: how much was published is read by INSERT .. SELECT, which locks nothing."""
    _rates_beside_a_publisher(mysql_db)


def test_an_update_with_a_join_waits_for_all_of_them(mysql_db: MySQLDatabase) -> None:
    """Mutant: the rates are an UPDATE that reads what is pending."""
    mysql_db.without_guard(
        "note_slice_rates",
        "INSERT INTO slice_rates",
        "UPDATE slice_rates AS r JOIN slice_sources AS s ON s.parent = r.parent"
        " SET r.used = s.used; INSERT INTO slice_rates",
    )
    with pytest.raises(pymysql.err.OperationalError):
        _rates_beside_a_publisher(mysql_db)


def _deadlocked(db: MySQLDatabase, run: Callable[[Any], Any]) -> Future[Any]:
    """What becomes of ``run`` when its pass is the victim of a deadlock.

    The engines end whoever has written less, and spare who has written to tables that cannot be
    rolled back, as the temporary ones of a pass are: the other has done more of both.
    """
    own, sequencer = db.connect(), db.connect()
    topic(own)
    put(own, "1")
    put(own, "2")
    first, second = (block for (block,) in db.run("SELECT block FROM penstock.pending ORDER BY 1"))
    lock = "SELECT * FROM penstock.pending WHERE block = {} FOR UPDATE"
    for engine in ("InnoDB", "MEMORY"):
        sql(own, f"CREATE TABLE {db.app}.{engine} (n INT PRIMARY KEY) ENGINE = {engine}")
    with open_transaction(db) as other, ThreadPoolExecutor(1) as pool:
        for table in ("InnoDB", "MEMORY"):
            sql(
                other,
                f"INSERT INTO {db.app}.{table} SELECT n FROM penstock.places WHERE size = 512",
            )
        sql(other, lock.format(second))
        done = pool.submit(run, sequencer)
        db.wait_until_blocked(sequencer)
        sql(other, lock.format(first))
        other.rollback()
    return done


def test_a_pass_that_a_deadlock_ends_is_made_again(mysql_db: MySQLDatabase) -> None:
    """F5, F12. Guard: the tries of a call that is a transaction of its own."""
    found = _deadlocked(mysql_db, sequence_round).result()
    assert (found.events, found.busy) == (2, False)
    assert texts(mysql_db.connect()) == ["1", "2"]


@proves("F5")
def test_a_deadlock_ends_a_pass_and_no_sequencer(
    mysql_db: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F5, F12. Guard: upkeep.sequencing.unless_locked; the next pass does what this one had to.

    Here without the tries, of which a pass may need more than there are.
    """
    monkeypatch.setattr(calls, "_TRIES", 1)
    assert _deadlocked(mysql_db, sequence_round).result().busy
    own = mysql_db.connect()
    assert sequence_round(own).events == 2
    assert texts(own) == ["1", "2"]


def test_without_it_the_sequencer_dies(
    mysql_db: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the pass alone, without the tries of its call."""
    monkeypatch.setattr(calls, "_TRIES", 1)
    error = _deadlocked(mysql_db, log.sequence).exception()
    assert isinstance(error, pymysql.err.OperationalError)
    assert error.args[0] == 1213


def _names_beside_a_batch(db: MySQLDatabase, *, strict: bool) -> None:
    """Names change while a batch is open, published at the engines' own isolation.

    A strict one goes by publish_batch, a plain one by publish_packed.
    """
    own = db.connect()
    topic(own)
    with open_transaction(db) as publisher:
        publisher.rollback()
        sql(publisher, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        publish_batch(publisher, [Message(TOPIC, b"1"), Message(TOPIC, b"2")], strict=strict)
        sql(own, "SET SESSION innodb_lock_wait_timeout = 1")
        names.create_topic(own, "tests/other", 1)
        names.delete_topic(own, TOPIC)


@proves("F23")
@pytest.mark.parametrize("strict", [False, True])
def test_a_batch_locks_no_topic(mysql_db: MySQLDatabase, strict: bool) -> None:
    """F23. Guard: what decides about a topic is selected before the events are inserted."""
    _names_beside_a_batch(mysql_db, strict=strict)


@pytest.mark.parametrize("strict", [False, True])
def test_a_batch_that_reads_topics_in_its_insert_does(
    mysql_db: MySQLDatabase, strict: bool
) -> None:
    """Mutant: INSERT .. SELECT from topics, which locks them at REPEATABLE READ."""
    locking = "CROSS JOIN (SELECT COUNT(*) FROM topics) AS t WHERE"
    mutant = (
        ("insert_batch", ")) AS i\n    WHERE", f")) AS i {locking}")
        if strict
        else ("insert_packed", ") AS e\n        WHERE", f") AS e {locking}")
    )
    mysql_db.without_guard(*mutant)
    with pytest.raises(pymysql.err.OperationalError):
        _names_beside_a_batch(mysql_db, strict=strict)
