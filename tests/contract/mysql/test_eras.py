"""MySQL and MariaDB after a restore: events that a dump cut apart are sequenced once (S21, F7).

The database pretends that it was loaded from a dump: the newest era says that it was made at
another time.  Drills with real dumps and real second servers are in test_mysql_drills.
"""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pymysql
import pytest

from penstock import database, log
from penstock.log.histories import histories, reconcile
from penstock.publishing.publish import publish, publish_batch
from penstock.records import Message
from penstock.subscriptions import stream
from penstock.topics import names
from tests.contract.databases import MySQLDatabase
from tests.contract.kit import count, open_transaction
from tests.kit.log import TOPIC, drain, texts, topic
from tests.kit.proof import proves

LOADED = "UPDATE penstock.eras SET made = 1 WHERE era = 1"


def _put(connection: Any, *payloads: str) -> None:
    publish_batch(connection, [Message(TOPIC, each.encode()) for each in payloads])


def _log(db: MySQLDatabase) -> Any:
    """Ten sequenced events, and five that wait."""
    own = db.connect()
    topic(own)
    _put(own, *(f"old {number}" for number in range(10)))
    drain(own)
    _put(own, *(f"waiting {number}" for number in range(5)))
    return own


def _found(db: MySQLDatabase) -> list[str]:
    """Everything, in order, once a new session has worked the log off."""
    own = db.connect()
    drain(own, 3)
    _put(own, "new")
    drain(own, 3)
    assert log.gaps(own, TOPIC) == []
    return texts(own)


OLD = [f"old {number}" for number in range(10)]
WAITING = [f"waiting {number}" for number in range(5)]


def _lost_waiting(db: MySQLDatabase) -> list[str]:
    """The dump has no rows of pending."""
    _log(db)
    db.run("DELETE FROM penstock.pending")
    db.run(LOADED)
    return _found(db)


def _kept_waiting(db: MySQLDatabase) -> list[str]:
    """The dump has rows of pending for what was sequenced when it came to the index."""
    _log(db)
    ((block,),) = db.run("SELECT MIN(id) DIV 256 FROM penstock.events")
    db.run(f"INSERT INTO penstock.pending (block, event_count) VALUES ({block}, 10)")
    db.run(LOADED)
    return _found(db)


def _half_a_block(db: MySQLDatabase) -> list[str]:
    """The index is older than pending, which says that two more of a block are done."""
    own = _log(db)
    log.sequence(own, 2)
    db.run("UPDATE penstock.pending SET taken = 4")
    db.run(LOADED)
    return _found(db)


@pytest.mark.parametrize("torn", [_lost_waiting, _kept_waiting, _half_a_block])
def test_what_a_dump_tore_apart_is_sequenced_once(mysql_db: MySQLDatabase, torn: Any) -> None:
    """Guards: open_era, repair_pass, mark_known; windows of three events."""
    assert torn(mysql_db) == [*OLD, *WAITING, "new"]
    own = mysql_db.connect()
    assert [each.history for each in histories(own)] == [1, 2]
    # Numbers that nobody has, which the sequencer has taken, wait for nothing.
    assert mysql_db.run("SELECT * FROM penstock.pending WHERE event_count > taken") == []


def test_without_the_repair_the_lost_ones_stay_lost(mysql_db: MySQLDatabase) -> None:
    """Mutant: the era begins, and nothing is compared."""
    mysql_db.without_guard("open_era", "IF is_loaded THEN", "IF FALSE THEN")
    assert _lost_waiting(mysql_db) == [*OLD, "new"]


def test_without_the_comparison_events_come_twice(mysql_db: MySQLDatabase) -> None:
    """Mutant: an event of before the era counts as lost, whatever the index says."""
    mysql_db.without_guard(
        "mark_known", "WHERE c.last_id > after_id AND c.first_id <= last_id;", "WHERE FALSE;"
    )
    assert _kept_waiting(mysql_db) == [*OLD, *OLD, *WAITING, "new"]


def _passed_by(db: MySQLDatabase) -> list[str]:
    """A row of pending is locked while the repair goes by."""
    _log(db)
    db.run(LOADED)
    with open_transaction(db) as other:
        database.execute(other, "SELECT * FROM penstock.pending FOR UPDATE")
        own = db.connect()
        log.sequence(own, 3)
        while db.run("SELECT 1 FROM penstock.eras WHERE repaired_id < boundary_id"):
            log.sequence(own, 3)
    return _found(db)


def test_what_the_repair_cannot_lock_is_left_to_an_ordinary_pass(mysql_db: MySQLDatabase) -> None:
    """Guard: look_at_events leaves out what still waits."""
    assert _passed_by(mysql_db) == [*OLD, *WAITING, "new"]


def test_without_it_the_event_comes_twice(mysql_db: MySQLDatabase) -> None:
    """Mutant: the repair takes what it could not lock."""
    mysql_db.without_guard("look_at_events", "AND (p.block IS NULL OR c.block IS NOT NULL)", "")
    assert _passed_by(mysql_db) == [*OLD, *WAITING, *WAITING, "new"]


def test_a_publisher_that_is_open_when_the_era_begins(mysql_db: MySQLDatabase) -> None:
    """Its ids lie below the boundary, and it commits when the repair is done, or rolls back."""
    own = _log(mysql_db)
    with open_transaction(mysql_db) as open_one, open_transaction(mysql_db) as given_up:
        publish(open_one, TOPIC, b"late")
        publish(given_up, TOPIC, b"never")
        _put(own, "after")
        mysql_db.run(LOADED)
        drain(mysql_db.connect(), 3)
        open_one.commit()
    assert _found(mysql_db) == [*OLD, *WAITING, "after", "late", "new"]


def test_delayed_events_after_a_dump(mysql_db: MySQLDatabase) -> None:
    """One is lost, one was passed over, one has its sequence already and is still to come."""
    own = _log(mysql_db)
    drain(own)
    late = datetime.now(UTC) + timedelta(hours=1)
    for text in ("lost", "passed over", "done"):
        publish(own, TOPIC, text.encode(), not_before=late)
    drain(own)
    assert count(mysql_db, "delayed_events") == 3
    mysql_db.run("DELETE FROM penstock.delayed_events ORDER BY id LIMIT 1")
    mysql_db.run(
        "INSERT INTO penstock.chunks (partition_id, first_sequence, event_count, first_id, last_id,"
        " event_ids, sequenced_at) SELECT partition_id, 16, 1, id, id,"
        " UNHEX(LPAD(HEX(id), 16, '0')), UTC_TIMESTAMP(6) FROM penstock.delayed_events"
        " ORDER BY id DESC LIMIT 1"
    )
    mysql_db.run(
        "UPDATE penstock.sequencer AS s JOIN (SELECT due, id FROM penstock.delayed_events"
        " ORDER BY due LIMIT 1) AS d SET s.delayed_due = d.due, s.delayed_id = d.id"
    )
    mysql_db.run(LOADED)
    assert _found(mysql_db) == [*OLD, *WAITING, "done", "new"]
    assert count(mysql_db, "delayed_events") == 2
    mysql_db.run("UPDATE penstock.delayed_events SET due = due - INTERVAL 2 HOUR")
    mysql_db.run("UPDATE penstock.sequencer SET delayed_due = '2000-01-01'")
    drain(own)
    assert sorted(texts(own)[17:]) == ["lost", "passed over"]


def test_another_server_is_another_era(mysql_db: MySQLDatabase) -> None:
    """A replica that was promoted: as whole as the one before, so nothing is compared."""
    own = _log(mysql_db)
    mysql_db.run("UPDATE penstock.eras SET server = 'another'")
    assert _found(mysql_db) == [*OLD, *WAITING, "new"]
    assert mysql_db.run(
        "SELECT repaired_id = boundary_id FROM penstock.eras ORDER BY era DESC LIMIT 1"
    ) == [(1,)]
    assert [each.history for each in histories(own)] == [1, 2]


def test_on_the_same_server_no_era_begins(mysql_db: MySQLDatabase) -> None:
    """Guard: enter_era; whatever zone a session is in."""
    own = _log(mysql_db)
    with closing(mysql_db.connect()) as elsewhere:
        database.execute(elsewhere, "SET SESSION time_zone = '-07:00'")
        _put(own, "more")
        log.sequence(elsewhere)
    assert count(mysql_db, "eras") == 1
    assert _found(mysql_db) == [*OLD, *WAITING, "more", "new"]
    assert [each.history for each in histories(own)] == [1]


def test_a_pass_of_the_same_session_notices_too(mysql_db: MySQLDatabase) -> None:
    """Guard: the catalog is asked again when the sequencer's row is not as the session left it."""
    own = _log(mysql_db)
    mysql_db.run(LOADED)
    mysql_db.run("UPDATE penstock.sequencer SET settled_block = settled_block - 1")
    log.sequence(own)
    assert count(mysql_db, "eras") == 2


def _counters_lost(db: MySQLDatabase) -> Any:
    """The rows alone were loaded: the counter begins anew, at the lowest id in use."""
    own = _log(db)
    drain(own)
    ((lowest,),) = db.run("SELECT MIN(id) DIV 256 FROM penstock.events")
    db.run(f"ALTER TABLE penstock.pending AUTO_INCREMENT = {lowest}")
    ((next_id,),) = db.run("SELECT MAX(id) + 1 FROM penstock.topics")
    names.create_topic(own, "tests/gone", 1)
    names.delete_topic(own, "tests/gone")
    db.run(f"ALTER TABLE penstock.topics AUTO_INCREMENT = {next_id}")
    reconcile(own, "a test")
    return own


def test_no_id_is_given_twice(mysql_db: MySQLDatabase) -> None:
    """Guard: raise_counters, for events and for topics."""
    own = _counters_lost(mysql_db)
    assert _found(mysql_db) == [*OLD, *WAITING, "new"]
    names.create_topic(own, "tests/next", 1)
    publish(own, "tests/next", b"kept")
    drain(own)
    assert texts(own, 0, "tests/next") == ["kept"]


def test_without_it_publishing_fails(mysql_db: MySQLDatabase) -> None:
    """Mutant: counters are left as they are."""
    mysql_db.without_guard("open_history", "CALL raise_counters();", "")
    own = _counters_lost(mysql_db)
    with pytest.raises(pymysql.IntegrityError):
        publish(own, TOPIC, b"new")
    reconcile(own, "a counter of its own for the tests behind this one")


#: What each counter numbers, where its numbers stand beside the table itself, and why rows go.
ELSEWHERE = {
    "subscriptions": "SELECT MAX(subscription_id) FROM penstock.positions",
    "blocks": "SELECT MAX(block_id) FROM penstock.relay_failures",
    "dead_letters": "SELECT MAX(id) FROM penstock.dropped_letters",
    "topics": "SELECT MAX(topic_id) FROM penstock.deleted_topics",
    "pending": "SELECT MAX(id) DIV 256 FROM penstock.events",
    "queue_ranges": "SELECT MAX(last_id) FROM penstock.queue_turns",
}
#: Their rows are not taken away from the top, and InnoDB keeps a counter above the rows: a load of
#: rows raises it. Nothing tells of a namespace, a relay or a waiting event that is gone; rejected
#: commits only count, and so do the rows of the audit and of what was done with dead letters.
BY_THEIR_ROWS = {
    "account_audit",
    "namespaces",
    "positions",
    "lease_history",
    "retention_drops",
    "rejected_commits",
    "backfill_requests",
    "queue_purges",
    "queue_waiting",
    "relay_groups",
    "letter_moves",
    "letter_tasks",
    "payload_looks",
}


def _all_used(db: MySQLDatabase) -> Any:
    """Each counter has given a number to something that is gone."""
    own = _log(db)
    drain(own)
    names.create_topic(own, "tests/gone", 1)
    names.delete_topic(own, "tests/gone")
    stream.subscribe(own, "gone", [TOPIC])
    ((gone,),) = db.run("SELECT MAX(id) FROM penstock.subscriptions")
    stream.unsubscribe(own, "gone")
    db.run(
        "INSERT INTO penstock.positions (subscription_id, partition_id, position, lease_epoch,"
        f" reason) VALUES ({gone}, 0, 0, 0, 'start')"
    )
    db.run("INSERT INTO penstock.relay_failures (block_id, attempt, error) VALUES (7, 1, 'x')")
    db.run(
        "INSERT INTO penstock.dropped_letters (subscription_id, id, partition_id, sequence,"
        " history, event_id, type, reason, attempts, died_at, dropped_by)"
        f" VALUES ({gone}, 9, 0, 1, 1, REPEAT('x', 16), 'x', 'x', 1, UTC_TIMESTAMP(6), 'x')"
    )
    db.run(f"INSERT INTO penstock.queue_turns (subscription_id, last_id) VALUES ({gone}, 9)")
    return own


def _next_number(db: MySQLDatabase, table: str) -> int:
    """What the counter of a table gives next, by a row that was never there."""
    row = {
        "pending": "(event_count) VALUES (1)",
        "topics": "(namespace_id, name, address, partitions) VALUES (0, 'x', 'x/x', 1)",
        "subscriptions": "(name) VALUES ('x')",
        "queue_ranges": "(subscription_id, partition_id, first_sequence, last_sequence)"
        " VALUES (0, 0, 0, 0)",
        "blocks": "(subscription_id, partition_id, first_sequence, last_sequence, lease_epoch)"
        " VALUES (0, 0, 0, 0, 0)",
        "dead_letters": "(subscription_id, partition_id, sequence, history, event_id, type,"
        " content_type, payload, created_at, reason)"
        " VALUES (0, 0, 0, 0, REPEAT('x', 16), '', '', '', UTC_TIMESTAMP(6), '')",
    }[table]
    with closing(db.connect(autocommit=False)) as own:
        database.execute(own, f"INSERT INTO penstock.{table} {row}")
        ((given,),) = database.execute(own, "SELECT LAST_INSERT_ID()")
        own.rollback()
    return int(given)


def _each_is_raised(db: MySQLDatabase) -> None:
    own = _all_used(db)
    counted = db.run(
        "SELECT TABLE_NAME FROM information_schema.COLUMNS"
        " WHERE TABLE_SCHEMA = 'penstock' AND EXTRA LIKE '%%auto_increment%%'",
        {},
    )
    assert {table for (table,) in counted} == ELSEWHERE.keys() | BY_THEIR_ROWS
    for table, highest in ELSEWHERE.items():
        ((known,),) = db.run(highest)
        db.run(f"ALTER TABLE penstock.{table} AUTO_INCREMENT = 1")
        reconcile(own, "a test")
        assert known is not None, table
        assert _next_number(db, table) > known, table


@proves("S21 of counters")
def test_each_counter_that_was_set_back_is_raised(mysql_db: MySQLDatabase) -> None:
    """Guards: raise_counters, raise_other_counters; the catalogue says which counters there are."""
    _each_is_raised(mysql_db)


@proves("S21 of counters", guard="raise_other_counters")
def test_without_it_numbers_of_what_is_gone_come_again(mysql_db: MySQLDatabase) -> None:
    """Mutant: only events and topics are seen to."""
    mysql_db.without_guard("raise_counters", "CALL raise_other_counters();", "")
    with pytest.raises(AssertionError):
        _each_is_raised(mysql_db)


def test_nothing_is_dropped_before_the_repair(mysql_db: MySQLDatabase) -> None:
    """Guard: find_needs_repair, noticed or not."""
    own = _log(mysql_db)
    drain(own)
    for statement in (LOADED, "UPDATE penstock.eras SET repaired_id = boundary_id - 1"):
        mysql_db.run(statement)
        ((torn,),) = _needs_repair(own)
        assert torn
        drain(mysql_db.connect())
        ((torn,),) = _needs_repair(own)
        assert not torn


def _needs_repair(own: Any) -> Any:
    database.execute(own, "CALL penstock.find_needs_repair(@torn)")
    return database.execute(own, "SELECT @torn")
