"""The partitions of events on MySQL and MariaDB."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from penstock import database, log
from penstock.dialects import mysql_slices
from tests.contract.databases import MySQLDatabase
from tests.contract.kit import open_transaction, sql
from tests.log.kit import TOPIC, drain, put, texts, topic, wait_until


def _slices(connection: Any) -> list[str]:
    rows = database.execute(
        connection,
        "SELECT PARTITION_NAME FROM information_schema.PARTITIONS"
        " WHERE TABLE_SCHEMA = 'penstock' AND TABLE_NAME = 'events' ORDER BY 1",
    )
    return [name for (name,) in rows]


def _rewound(db: MySQLDatabase) -> None:
    """Another partition scheme for this test: the next block is the last of the first partition."""
    ((block,),) = db.run("SELECT COALESCE(MAX(id) DIV 256, 0) FROM penstock.events")
    db.run(
        "ALTER TABLE penstock.events PARTITION BY RANGE (id) ("
        f"PARTITION old VALUES LESS THAN ({(block + 1) * 256}),"
        " PARTITION rest VALUES LESS THAN (256000000000))"
    )


@pytest.fixture
def own(mysql_db: MySQLDatabase) -> Any:
    """A connection, and partitions that no test before has changed."""
    connection = mysql_db.connect()
    topic(connection)
    sql(
        connection,
        "ALTER TABLE penstock.events PARTITION BY RANGE (id) ("
        "PARTITION b1 VALUES LESS THAN (256000000),"
        " PARTITION b1000000 VALUES LESS THAN (256000000000))",
    )
    return connection


def test_slices_are_made_ahead(
    mysql_db: MySQLDatabase, own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: ensure_slices; without a partition for its block a publish would fail."""
    assert log.ensure_slices(own) == 0
    monkeypatch.setattr(mysql_slices, "READY_BLOCKS", mysql_slices._blocks_ready(own) + 1)
    before = _slices(own)
    assert log.ensure_slices(own) == 1
    assert len(_slices(own)) == len(before) + 1
    put(own, "1")
    assert drain(own) == 1


def test_a_slice_that_nobody_needs_is_dropped(mysql_db: MySQLDatabase, own: Any) -> None:
    """Guards: the low sequence, and what is still pending."""
    put(own, "gone")
    drain(own)
    _rewound(mysql_db)
    put(own, "kept")
    assert database.call(own, "droppable_slices") == []  # readable
    drain(own)
    mysql_db.run("UPDATE penstock.partitions SET low_sequence = 2")
    ((name, _, last_id),) = database.call(own, "droppable_slices")
    assert name == "old"
    assert mysql_slices.drop(own, name, last_id)
    assert "old" not in _slices(own)
    assert [event.payload for event in log.fetch(own, TOPIC, 0, 2)] == [b"kept"]
    put(own, "more")
    assert drain(own) == 1


def test_an_open_publisher_keeps_its_slice(mysql_db: MySQLDatabase, own: Any) -> None:
    """Guard: the lock in front of the drop, which gives up after a second."""
    with open_transaction(mysql_db) as late:
        put(late, "late")
        started = time.monotonic()
        # Not old enough yet to be told from others: the lock itself has to give up.
        assert not mysql_slices.drop(own, "b1", 10**6)
        assert time.monotonic() - started < 5
        late.commit()
    drain(own)
    assert texts(own) == ["late"]


def test_what_was_committed_and_not_sequenced_keeps_its_slice(
    mysql_db: MySQLDatabase, own: Any
) -> None:
    """Guard: the look into pending behind the lock."""
    put(own, "1")
    ((last,),) = mysql_db.run("SELECT MAX(block) * 256 FROM penstock.pending")
    assert not mysql_slices.drop(own, _slices(own)[0], last)
    assert drain(own) == 1
    assert texts(own) == ["1"]


def test_publishers_pass_while_a_slice_is_dropped(mysql_db: MySQLDatabase, own: Any) -> None:
    """No publisher waits for longer than a second, and none fails."""
    for number in range(20):
        put(own, str(number))
    drain(own)
    _rewound(mysql_db)
    mysql_db.run("UPDATE penstock.partitions SET low_sequence = 21")
    stop, waits, failures = threading.Event(), [0.0], []

    def publisher(connection: Any) -> None:
        try:
            while not stop.is_set():
                started = time.monotonic()
                put(connection, "x")
                waits.append(time.monotonic() - started)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=publisher, args=(mysql_db.connect(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    dropper = mysql_db.connect()
    sql(dropper, "DO 0")
    found = database.call(dropper, "droppable_slices")
    wait_until(
        lambda: all(mysql_slices.drop(dropper, name, last) for name, _, last in found),
        "the slice is dropped",
    )
    stop.set()
    for thread in threads:
        thread.join(10)
    assert failures == []
    assert max(waits) < 2.5
