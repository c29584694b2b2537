"""A pass of the sequencer on MySQL and MariaDB, stopped at one of its statements."""

from __future__ import annotations

import pytest

from penstock import database, log
from tests.contract.databases import MySQLDatabase, routines
from tests.contract.kit import count, open_transaction, sql
from tests.contract.mysql_kit import WAIT, stopped
from tests.kit.log import drain, put, read, texts, topic, wait_until
from tests.kit.proof import proves

pytestmark = pytest.mark.mariadb_differs("what the sequencer sees of open transactions")


def _claim_around_a_commit(db: MySQLDatabase, place: str, mutant: str | None = None) -> list[str]:
    """The log, when A commits and B begins while a claim is at work."""
    own = db.connect()
    topic(own)
    with open_transaction(db) as first:
        put(first, "A1")
        put(own, "X")
        put(first, "A2")
        put(own, "Y")
        with stopped(db, "claim_blocks", place, mutant):
            first.commit()
            put(own, "B")
    drain(own)
    found = texts(own)
    assert sorted(found) == ["A1", "A2", "B", "X", "Y"]
    return found


def test_a_claim_sees_one_moment(mysql_db: MySQLDatabase) -> None:
    """S6. Guard: a claim is one statement, so it sees all of a transaction or nothing of it."""
    found = _claim_around_a_commit(
        mysql_db, "INSERT INTO claimed (block, event_count, taken, used)"
    )
    assert found.index("A1") < found.index("A2") < found.index("B")


def _claim_by_a_locking_scan(db: MySQLDatabase, bound: str) -> list[str]:
    """The same with a scan that passes by locked rows, stopped after the first that it has."""
    present = routines()["claim_blocks"]
    snapshot = present[present.index("DELETE FROM claimed;") : present.index("SELECT COUNT(*)")]
    find = (
        "INSERT INTO claimed (block, event_count, taken, used)"
        " SELECT p.block, p.event_count, p.taken, p.event_count - p.taken"
        " FROM pending AS p FORCE INDEX (PRIMARY)"
        f" WHERE p.block > @reached {bound} ORDER BY p.block LIMIT %s FOR UPDATE SKIP LOCKED;"
    )
    scan = (
        "DELETE FROM claimed; SET @reached = bottom;"
        " SELECT MAX(p.block) INTO @bound FROM pending AS p;"
        f" {find % 1} SELECT MAX(c.block) INTO @reached FROM claimed AS c; {WAIT} {find % 100} "
    )
    return _claim_around_a_commit(db, snapshot, scan)


@proves("S6", guard="a claim on MySQL is one consistent read")
def test_a_claim_without_its_bound_reorders_transactions(mysql_db: MySQLDatabase) -> None:
    """Mutant: a locking scan. It passes A1, which is open, and meets B, which began after it."""
    found = _claim_by_a_locking_scan(mysql_db, "")
    assert found.index("B") < found.index("A1")


@proves("S6", guard="a claim on MySQL is one consistent read")
def test_a_claim_with_its_bound_reorders_a_transaction(mysql_db: MySQLDatabase) -> None:
    """Mutant: the same up to the highest block that was seen before: A2 still comes before A1."""
    found = _claim_by_a_locking_scan(mysql_db, "AND p.block <= @bound")
    assert found.index("A2") < found.index("A1") < found.index("B")


def test_a_number_that_the_sequencer_has_taken_stops_no_pass(mysql_db: MySQLDatabase) -> None:
    """Guard: claim_blocks leaves out blocks without events, which lie above a lowered floor."""
    own = mysql_db.connect()
    topic(own)
    put(own, "1")
    mysql_db.run("INSERT INTO penstock.pending (event_count) VALUES (0)")
    put(own, "2")
    drain(own)
    assert texts(own) == ["1", "2"]


@proves("F5")
@pytest.mark.parametrize(
    ("function", "place"),
    [
        ("sequence", "CALL cut_claimed(wanted - from_delayed"),
        ("sequence", "CALL append_chunks(present"),
        ("sequence", "CALL forget_claimed();"),
        ("sequence", "UPDATE sequencer\n"),
        ("append_chunks", "UPDATE (\n"),
    ],
)
def test_a_pass_that_is_killed_leaves_nothing(
    mysql_db: MySQLDatabase, function: str, place: str
) -> None:
    """S4, S5. Guard: a pass is one transaction, without control over it."""
    own = mysql_db.connect()
    topic(own)
    for number in range(5):
        put(own, str(number))
    with stopped(mysql_db, function, place) as a_pass:
        sql(own, f"KILL {a_pass.connection.thread_id()}")
    wait_until(lambda: not log.sequence(own, 1).busy, "the dead sequencer's lock is gone")
    drain(own)
    assert texts(own) == list(map(str, range(5)))
    assert count(mysql_db, "pending") == 0


def test_a_pass_deletes_by_the_primary_key(mysql_db: MySQLDatabase) -> None:
    """Guard: the forced index; the tables are small here, and a scan would look cheaper."""
    own = mysql_db.connect()
    topic(own)
    with open_transaction(mysql_db) as late:
        put(late, "late")
        put(own, "1")
        sql(own, "SET SESSION innodb_lock_wait_timeout = 1")
        assert log.sequence(own).sequenced == 1
    assert texts(own) == ["1"]


def test_a_late_commit_comes_before_what_begins_after_it(mysql_db: MySQLDatabase) -> None:
    """Guard: a claim sees all above the floor, also past deletes that a read view keeps."""
    own = mysql_db.connect()
    topic(own)
    with open_transaction(mysql_db) as viewer, open_transaction(mysql_db) as late:
        sql(viewer, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        viewer.rollback()
        sql(viewer, "SELECT COUNT(*) FROM penstock.pending")
        put(late, "late")
        for number in range(100):
            put(own, str(number))
            drain(own)
        late.commit()
        put(own, "after")
        drain(own)
    assert texts(own)[-2:] == ["late", "after"]


def test_publishers_may_be_at_repeatable_read(mysql_db: MySQLDatabase) -> None:
    """Guard: publish reads the topic by one probe and writes; it needs no view of its own."""
    own = mysql_db.connect()
    topic(own)
    with mysql_db.connect(autocommit=False) as publisher:
        sql(publisher, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        put(publisher, "1")
        assert log.sequence(own).sequenced == 0
        publisher.commit()
    drain(own)
    assert [event.payload for event in read(own)] == [b"1"]


def test_publish_keeps_the_callers_last_insert_id(mysql_db: MySQLDatabase) -> None:
    """Guard: LAST_INSERT_ID is set back."""
    own = mysql_db.connect()
    topic(own)
    orders = f"{mysql_db.app}.orders"
    sql(own, f"CREATE TABLE {orders} (id INT AUTO_INCREMENT PRIMARY KEY) AUTO_INCREMENT = 77")
    with open_transaction(mysql_db) as app:
        sql(app, f"INSERT INTO {orders} VALUES ()")
        put(app, "1")
        assert database.execute(app, "SELECT LAST_INSERT_ID()") == [(77,)]
