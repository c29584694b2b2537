"""MySQL and MariaDB: `penstock clean` while events come below the floor (S2).

The counter of pending was set back by hand, to free numbers in a slice that nobody needs.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock import database, log
from penstock.log import mysql_storage
from tests.contract.databases import MySQLDatabase
from tests.contract.kit import open_transaction
from tests.contract.mysql.test_below_floor import _FREE, _free_numbers, _set_counter
from tests.contract.mysql_kit import LAST_EVENT_ID
from tests.kit.log import TOPIC, drain, put, topic, wait_until
from tests.kit.proof import proves

_NEEDED = "somebody has come to need it"


def _old_slice(db: MySQLDatabase, gone: int = 1, before: int = 0) -> Any:
    """A slice `old` of which the first events are gone; the next publish takes a number in it."""
    own = db.connect()
    topic(own)
    for number in range(before):
        put(own, f"older {number}")
        drain(own)
    first = _free_numbers(db, own)
    db.run(
        "ALTER TABLE penstock.events PARTITION BY RANGE (id) ("
        f"PARTITION old VALUES LESS THAN ({(first + _FREE) * 256}),"
        f" PARTITION rest VALUES LESS THAN ({LAST_EVENT_ID}))"
    )
    db.run("UPDATE penstock.partitions SET low_sequence = %(low)s", {"low": gone + 1})
    _set_counter(db, first)
    return own


def _dropped(db: MySQLDatabase) -> str:
    return mysql_storage.drop(db.connect(), "events", "old")


def _readable(db: MySQLDatabase, first: int = 2) -> list[bytes]:
    """What a pass and a reader make of it."""
    drain(db.connect())
    return [event.payload for event in log.fetch(db.connect(), TOPIC, 0, first)]


def _is_droppable(db: MySQLDatabase) -> bool:
    found = database.call(db.connect(), "droppable_slices")
    return ("events", "old") in [row[:2] for row in found]


def _committed_before_the_drop(db: MySQLDatabase) -> str:
    own = _old_slice(db)
    assert _is_droppable(db)
    put(own, "early")
    return _dropped(db)


@proves("S2 below the floor")
def test_an_event_that_came_since_the_look_stays(mysql_db: MySQLDatabase) -> None:
    """Guard: drop asks again."""
    assert _committed_before_the_drop(mysql_db) == _NEEDED
    assert _readable(mysql_db) == [b"old 2", b"early"]


@proves("S2 below the floor", guard="the second look before DROP")
def test_without_asking_again_it_is_lost(
    mysql_db: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: what was named once is dropped."""
    monkeypatch.setattr(mysql_storage, "_is_named", lambda *named: True)
    assert _committed_before_the_drop(mysql_db) == ""
    assert _readable(mysql_db) == [b"old 2"]


def _wait_until_it_waits(db: MySQLDatabase, thread_id: int) -> None:
    """Until a session waits for a table; wait_until_blocked knows rows only."""
    waiting = (
        "SELECT 1 FROM information_schema.PROCESSLIST"
        f" WHERE STATE LIKE 'Waiting for table%%' AND ID = {thread_id}"
    )
    wait_until(lambda: db.run(waiting), "drop waits for a table")


def _committed_while_the_drop_waits(db: MySQLDatabase) -> str:
    """A publisher of less than a second is open when drop begins, and commits while drop waits."""
    _old_slice(db)
    problems: list[str] = []
    dropper: Any = db.connect()
    with open_transaction(db) as publisher:
        put(publisher, "early")
        assert _is_droppable(db)
        thread = threading.Thread(
            target=lambda: problems.append(mysql_storage.drop(dropper, "events", "old"))
        )
        thread.start()
        _wait_until_it_waits(db, dropper.thread_id())
        publisher.commit()
        thread.join(20)
    (problem,) = problems
    return problem


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No transaction is too old, and DDL waits for as long as the test needs."""
    monkeypatch.setattr(mysql_storage, "_has_old_transaction", lambda connection: False)
    monkeypatch.setattr(mysql_storage, "_LOCK_WAIT_SECONDS", 60)


@proves("S2 below the floor")
@pytest.mark.usefixtures("patient")
def test_an_open_publisher_is_waited_for(mysql_db: MySQLDatabase) -> None:
    """Guard: drop asks again only after every publisher that has taken a number."""
    assert _committed_while_the_drop_waits(mysql_db) == _NEEDED
    assert _readable(mysql_db) == [b"old 2", b"early"]


@proves("S2 below the floor", guard="the wait for publishers")
@pytest.mark.usefixtures("patient")
def test_without_waiting_its_event_is_lost(
    mysql_db: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: drop asks at once, and only the DDL waits."""
    monkeypatch.setattr(mysql_storage, "_wait_for_publishers", lambda connection: "")
    assert _committed_while_the_drop_waits(mysql_db) == ""
    assert _readable(mysql_db) == [b"old 2"]


def _next_block_after_a_drop(db: MySQLDatabase) -> tuple[int, int]:
    """The number of the next publish, and the floor."""
    own = _old_slice(db)
    assert _dropped(db) == ""
    put(own, "early")
    ((block,),) = db.run("SELECT block FROM penstock.pending WHERE event_count > 0")
    ((floor,),) = db.run("SELECT floor_block FROM penstock.sequencer")
    return block, floor


@proves("S2 below the floor")
def test_a_drop_raises_the_counter(mysql_db: MySQLDatabase) -> None:
    """Guard: raise_event_ids, so that no publisher takes a number in the slice after the wait."""
    block, floor = _next_block_after_a_drop(mysql_db)
    assert block > floor


@proves("S2 below the floor", guard="raise_event_ids")
def test_without_that_the_next_number_is_below(mysql_db: MySQLDatabase) -> None:
    """Mutant: the counter stays where it was set to."""
    mysql_db.without_guard("raise_event_ids", "CALL raise_block_counter();", "DO 0;")
    block, floor = _next_block_after_a_drop(mysql_db)
    assert block <= floor


def _committed_before_the_exchange(db: MySQLDatabase) -> str:
    own = _old_slice(db, gone=20, before=20)
    database.call(own, "set_setting", name="kept_share", value=0.5)
    db.run("ANALYZE TABLE penstock.events")
    ((name, first_id, last_id),) = database.call(own, "sparse_slices")
    put(own, "early")
    return mysql_storage.keep(own, name, first_id, last_id)


@proves("S2 below the floor")
def test_an_event_that_came_since_is_not_exchanged(mysql_db: MySQLDatabase) -> None:
    """Guard: keep asks again."""
    assert _committed_before_the_exchange(mysql_db) == _NEEDED
    assert _readable(mysql_db, 21) == [b"old 1", b"old 2", b"early"]


@proves("S2 below the floor", guard="the second look before EXCHANGE")
def test_without_asking_again_the_exchange_loses_it(
    mysql_db: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: what was named once is exchanged."""
    monkeypatch.setattr(mysql_storage, "_is_named", lambda *named: True)
    assert _committed_before_the_exchange(mysql_db) == ""
    assert _readable(mysql_db, 21) == [b"old 1", b"old 2"]
