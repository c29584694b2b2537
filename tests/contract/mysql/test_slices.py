"""The slices of insert-only tables on MySQL and MariaDB, and `penstock clean`."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from ops.retention.clean import drop_slices
from ops.retention.storage import SliceState
from penstock import database, log
from penstock.log import mysql_storage
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from tests.contract.databases import MySQLDatabase
from tests.contract.kit import count, open_transaction, sql
from tests.contract.mysql_kit import LAST_EVENT_ID, cut_events
from tests.kit.log import TOPIC, drain, put, read, texts, topic, wait_until
from tests.kit.proof import proves


def _slices(db: MySQLDatabase, parent: str = "events") -> list[str]:
    rows = db.run(
        "SELECT slice FROM penstock.slices WHERE parent = %(parent)s ORDER BY first_id",
        {"parent": parent},
    )
    return [name for (name,) in rows]


def _move_low(db: MySQLDatabase, sequence: int, name: str = TOPIC) -> None:
    """The logical drop up to a sequence, as clean does it when nothing holds."""
    db.run(
        "UPDATE penstock.partitions SET low_sequence = %(low)s WHERE topic_id ="
        " (SELECT id FROM penstock.topics WHERE address = %(name)s)",
        {"low": sequence + 1, "name": name},
    )


def _droppable(connection: Any, parent: str = "events") -> list[str]:
    database.call(connection, "settle_blocks")
    return [row[1] for row in database.call(connection, "droppable_slices") if row[0] == parent]


@pytest.fixture
def own(mysql_db: MySQLDatabase) -> Any:
    """A connection, a topic, and slices that no test before has changed."""
    connection = mysql_db.connect()
    topic(connection)
    sql(
        connection,
        "ALTER TABLE penstock.events PARTITION BY RANGE (id) ("
        "PARTITION b1 VALUES LESS THAN (256000000),"
        f" PARTITION b1000000 VALUES LESS THAN ({LAST_EVENT_ID}))",
    )
    return connection


def test_slices_are_made_ahead(mysql_db: MySQLDatabase, own: Any) -> None:
    """Guard: ensure_slices; without a slice for its id a publish would fail."""
    assert log.ensure_slices(own) == 0
    # At this rate, seven days need more.
    mysql_db.run("UPDATE penstock.slice_rates SET peak_per_second = 500000 WHERE parent = 'events'")
    before = _slices(mysql_db)
    assert log.ensure_slices(own) == 1
    assert len(_slices(mysql_db)) == len(before) + 1
    days = {parent: days for parent, _, _, days, _ in database.call(own, "slices_ready")}
    assert days["events"] > 7
    assert set(days) == {"events", "positions", "lease_history", "blocks", "relay_failures"}
    put(own, "1")
    assert drain(own) == 1


def test_the_rate_is_the_most_in_an_hour(mysql_db: MySQLDatabase, own: Any) -> None:
    """Guard: note_slice_rates; a rate that was seen counts half a week later."""
    log.ensure_slices(own)
    peak = "SELECT peak_per_second FROM penstock.slice_rates WHERE parent = 'events'"
    mysql_db.run(
        "UPDATE penstock.slice_rates SET used = used - 7200000,"
        " measured_at = measured_at - INTERVAL 2 HOUR"
    )
    log.ensure_slices(own)
    assert mysql_db.run(peak)[0][0] == pytest.approx(1000, rel=0.01)
    mysql_db.run("UPDATE penstock.slice_rates SET measured_at = measured_at - INTERVAL 7 DAY")
    log.ensure_slices(own)
    assert mysql_db.run(peak)[0][0] == pytest.approx(500, rel=0.01)


def test_a_slice_that_nobody_needs_is_dropped(mysql_db: MySQLDatabase, own: Any) -> None:
    """Guards: the low sequence, and what is still pending."""
    put(own, "gone")
    drain(own)
    cut_events(mysql_db)
    put(own, "kept")
    assert _droppable(own) == []  # readable
    drain(own)
    _move_low(mysql_db, 1)
    (done,) = drop_slices(mysql_db.url)
    assert (done.parent, done.slice, done.state) == ("events", "old", SliceState.DROPPED)
    assert _slices(mysql_db) == ["rest"]
    assert [event.payload for event in log.fetch(own, TOPIC, 0, 2)] == [b"kept"]
    put(own, "more")
    assert drain(own) == 1


def _with_a_late_publisher(db: MySQLDatabase, own: Any) -> list[str]:
    """What can be dropped while a publisher is open, of a slice in which all else is gone."""
    cut_events(db, 3)
    put(own, "gone")
    with open_transaction(db) as late:
        put(late, "late")
        put(own, "gone, too")
        drain(own)
        put(own, "next")
        drain(own)
        _move_low(db, 3)
        found = _droppable(own)
        late.commit()
    drain(own)
    return found


def test_an_open_publisher_keeps_its_slice(mysql_db: MySQLDatabase, own: Any) -> None:
    """S8. Guard: below the floor, the late blocks."""
    assert _with_a_late_publisher(mysql_db, own) == []
    assert [event.payload for event in log.fetch(own, TOPIC, 0, 4)] == [b"late"]
    _move_low(mysql_db, 4)
    assert _droppable(own) == ["old"]


def test_without_the_late_blocks_it_loses_its_event(mysql_db: MySQLDatabase, own: Any) -> None:
    """Mutant: everything below the floor is taken for done."""
    mysql_db.without_guard(
        "settled_events",
        "COALESCE((SELECT MIN(l.block) * 256 FROM late_blocks AS l), 9223372036854775807)",
        "9223372036854775807",
    )
    assert _with_a_late_publisher(mysql_db, own) == ["old"]


def test_what_is_not_sequenced_or_not_due_keeps_its_slice(
    mysql_db: MySQLDatabase, own: Any
) -> None:
    """Guards: the floor, and the look at the delayed events."""
    put(own, "1")
    cut_events(mysql_db)
    assert _droppable(own) == []
    drain(own)
    _move_low(mysql_db, 1)
    mysql_db.run(
        "INSERT INTO penstock.delayed_events (due, id, partition_id)"
        " SELECT '2100-01-01', id, partition_id FROM penstock.events"
    )
    put(own, "2")
    drain(own)
    assert _droppable(own) == []
    mysql_db.run("DELETE FROM penstock.delayed_events")
    assert _droppable(own) == ["old"]


def test_two_programs_make_the_same_slice(
    mysql_db: MySQLDatabase, own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen that it is missing: the second neither fails nor makes it again."""
    log.ensure_slices(own)
    mysql_db.run("UPDATE penstock.slice_rates SET peak_per_second = 500000 WHERE parent = 'events'")
    found = database.call(own, "missing_slices")
    assert [row[0] for row in found] == ["events"]
    assert log.ensure_slices(mysql_db.connect()) == 1
    slices = _slices(mysql_db)
    answers = [found, []]
    call = database.call
    monkeypatch.setattr(
        database, "call",
        lambda on, name: answers.pop(0) if name == "missing_slices" else call(on, name),
    )  # fmt: skip
    assert log.ensure_slices(own) == 0
    ((parent, start, end),) = found
    assert mysql_storage.add(own, parent, start - 1, end - 1) is False  # of another name
    assert _slices(mysql_db) == slices


def test_ddl_that_gets_no_lock_gives_up(mysql_db: MySQLDatabase, own: Any) -> None:
    """F13. Guard: lock_wait_timeout; publishers behind it go on."""
    put(own, "gone")
    drain(own)
    cut_events(mysql_db)
    waits: list[str] = []
    with open_transaction(mysql_db) as late:
        put(late, "late")
        # Not old enough yet to be told from others: the lock itself has to give up.
        dropper, publisher = mysql_db.connect(), mysql_db.connect()
        thread = threading.Thread(
            target=lambda: waits.append(mysql_storage.drop(dropper, "events", "old"))
        )
        thread.start()
        put(publisher, "behind it")
        thread.join(20)
        assert waits == ["a transaction that is open uses the table"]
        # Old enough by now: not even tried.
        wait_until(lambda: mysql_storage._has_old_transaction(own), "it is a second old")
        assert mysql_storage.add(own, "events", LAST_EVENT_ID, LAST_EVENT_ID + 256) is False
        late.commit()
    drain(own)
    assert sorted(texts(own)) == ["behind it", "gone", "late"]


def _mixed(db: MySQLDatabase, own: Any, needed: int) -> None:
    """A full slice of 900 events, all of them gone but a few of a topic that is read slowly."""
    topic(own, name="tests/slow")
    publish_batch(
        own,
        [
            Message("tests/slow" if n % (900 // needed) == 0 else TOPIC, str(n).encode())
            for n in range(900)
        ],
    )
    drain(own)
    cut_events(db)
    _move_low(db, 900)
    publish_batch(own, [Message("tests/slow", b"next"), Message(TOPIC, b"next")])
    drain(own)


def test_what_is_needed_is_kept_and_the_rest_goes(mysql_db: MySQLDatabase, own: Any) -> None:
    """Guard: what takes the place of a slice holds all that is needed, and it is done once."""
    _mixed(mysql_db, own, 30)
    before = read(own, name="tests/slow")
    assert len(before) == 31
    (done,) = drop_slices(mysql_db.url)
    assert (done.slice, done.state) == ("old", SliceState.KEPT)
    assert mysql_db.run("SELECT COUNT(*) FROM penstock.events PARTITION (old)") == [(30,)]
    after = read(own, name="tests/slow")
    assert [(e.event_id, e.payload, e.sequence, e.created_at) for e in after] == [
        (e.event_id, e.payload, e.sequence, e.created_at) for e in before
    ]
    assert drop_slices(mysql_db.url) == []
    _move_low(mysql_db, 30, "tests/slow")
    (done,) = drop_slices(mysql_db.url)
    assert (done.slice, done.state) == ("old", SliceState.DROPPED)
    assert [event.payload for event in log.fetch(own, "tests/slow", 0, 31)] == [b"next"]


def test_a_slice_of_which_more_is_needed_stays(mysql_db: MySQLDatabase, own: Any) -> None:
    """Guard: kept_share; the setting moves it."""
    _mixed(mysql_db, own, 60)
    assert drop_slices(mysql_db.url) == []
    database.call(own, "set_setting", name="kept_share", value=0.1)
    (done,) = drop_slices(mysql_db.url)
    assert (done.slice, done.state) == ("old", SliceState.KEPT)
    assert len(read(own, name="tests/slow")) == 61


def test_an_event_that_is_not_due_is_kept(mysql_db: MySQLDatabase, own: Any) -> None:
    """Guard: fill_rest copies the delayed ones; they come when they are due."""
    _mixed(mysql_db, own, 30)
    _move_low(mysql_db, 31, "tests/slow")
    mysql_db.run(
        "INSERT INTO penstock.delayed_events (due, id, partition_id)"
        " SELECT '2001-01-01', MIN(id), MIN(partition_id) FROM penstock.events"
    )
    (done,) = drop_slices(mysql_db.url)
    assert (done.slice, done.state) == ("old", SliceState.KEPT)
    assert drain(own) == 1


def test_an_old_read_view_is_told(mysql_db: MySQLDatabase, own: Any) -> None:
    """Guard: fetch and poll count; a copy is no part of an older view."""
    _mixed(mysql_db, own, 30)
    with open_transaction(mysql_db) as viewer:
        viewer.rollback()
        sql(viewer, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        sql(viewer, "SELECT COUNT(*) FROM penstock.topics")
        assert _droppable(own) == []
        (found,) = database.call(own, "sparse_slices")
        assert mysql_storage.keep(own, *found) == ""
        with pytest.raises(Exception, match=r"dropped while|definition has changed"):
            log.fetch(viewer, "tests/slow", 0, 1)


def test_one_clean_at_a_time(mysql_db: MySQLDatabase, own: Any) -> None:
    """Guard: the lock by name; the table that is exchanged has a fixed one."""
    _mixed(mysql_db, own, 30)
    with mysql_storage.alone(own) as is_alone:
        assert is_alone
        assert drop_slices(mysql_db.url) == []
    assert len(drop_slices(mysql_db.url)) == 1


@proves("F13")
def test_publishers_pass_while_a_slice_is_dropped(mysql_db: MySQLDatabase, own: Any) -> None:
    """No publisher waits for longer than a second, and none fails."""
    for number in range(20):
        put(own, str(number))
    drain(own)
    cut_events(mysql_db)
    put(own, "next")
    drain(own)
    _move_low(mysql_db, 20)
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
    wait_until(
        lambda: any(each.state is SliceState.DROPPED for each in drop_slices(mysql_db.url)),
        "the slice is dropped",
    )
    stop.set()
    for thread in threads:
        thread.join(10)
    assert failures == []
    assert max(waits) < 2.5


def test_a_publisher_is_open_while_slices_fill(mysql_db: MySQLDatabase, own: Any) -> None:
    """S8, F13. Guards: the late blocks, and slices that are there beforehand."""
    _fill_three_slices(mysql_db, own, seconds=0)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_publisher_is_open_for_ten_minutes(mysql_db: MySQLDatabase, own: Any) -> None:
    """The same with clean at work all the time."""
    _fill_three_slices(mysql_db, own, seconds=600)


def _fill_three_slices(db: MySQLDatabase, own: Any, *, seconds: float) -> None:
    cut_events(db, 4, 3, 3)
    with open_transaction(db) as late:
        put(late, "late")
        for number in range(9):
            put(own, str(number))
            drain(own)
        _move_low(db, 9)
        end = time.monotonic() + seconds
        while True:
            assert drop_slices(db.url) == []
            put(own, "in between")
            if time.monotonic() >= end:
                break
        late.commit()
    drain(own)
    # Its own slice stays: one of four events is too much to be kept apart.
    gone = [(each.slice, each.state) for each in drop_slices(db.url)]
    assert gone == [("old1", SliceState.DROPPED), ("old2", SliceState.DROPPED)]
    assert log.fetch(own, TOPIC, 0, 10)[0].payload == b"late"
    _move_low(db, 10)
    assert _droppable(own) == ["old"]


def _rows_with_a_stalled_topic(db: MySQLDatabase, own: Any, *, stalled: bool) -> int:
    """Events on disk, when all but the newest slice were read by all subscriptions but one."""
    names = [topic(own, name=f"tests/many/{number}") for number in range(40)]
    for _ in range(3):
        publish_batch(own, [Message(name, b"x") for name in names for _ in range(25)])
        drain(own)
    cut_events(db)
    publish_batch(own, [Message(name, b"x") for name in names for _ in range(25)])
    drain(own)
    for name in names[1:] if stalled else names:
        _move_low(db, 75, name)
    drop_slices(db.url)
    return count(db, "events")


def test_a_stalled_subscription_does_not_pin_the_others(mysql_db: MySQLDatabase, own: Any) -> None:
    """Guard: what is needed takes the place of its slice."""
    with_it = _rows_with_a_stalled_topic(mysql_db, own, stalled=True)
    assert with_it == 1_000 + 75
    assert with_it <= 1.2 * 1_000


def test_without_that_it_does(mysql_db: MySQLDatabase, own: Any) -> None:
    """Mutant: nothing is kept apart."""
    database.call(own, "set_setting", name="kept_share", value=0)
    assert _rows_with_a_stalled_topic(mysql_db, own, stalled=True) == 4_000
