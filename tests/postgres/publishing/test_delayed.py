"""Delayed events get their sequence when they are due, and never hold up others."""

from __future__ import annotations

import random
import uuid

import psycopg
import pytest

from penstock import log
from tests.guards import without_guard
from tests.kit.log import TOPIC, Connection, drain, put, texts, topic, value

NOON = 1_700_000_000
CLOCK = "extract(epoch FROM clock_timestamp()) * 1000000"


def _set_clock(connection: Connection, seconds: float) -> None:
    """What the sequencer takes for the time, in seconds since noon."""
    connection.execute(f"SET penstock_test.now = '{NOON + seconds}'")


def _with_a_clock(connection: Connection) -> None:
    """The sequencer of this test asks a setting for the time."""
    without_guard(
        connection, "sequence", CLOCK, "current_setting('penstock_test.now')::numeric * 1000000"
    )
    _set_clock(connection, 0)


def _put_later(connection: Connection, text: str, due: float, partition: int = 0) -> None:
    connection.execute(
        "INSERT INTO penstock.events"
        " (partition_id, event_id, type, content_type, payload, due_at)"
        " SELECT p.id, %s, '', '', %s, to_timestamp(%s) FROM penstock.partitions AS p"
        " JOIN penstock.topics AS t ON t.id = p.topic_id"
        " WHERE t.address = %s AND p.number = %s",
        (uuid.uuid4(), text.encode(), NOON + due, TOPIC, partition),
    )


def test_it_comes_when_it_is_due_and_others_do_not_wait(connection: Connection) -> None:
    """Guards: put_off and ripe in append_chunks."""
    topic(connection)
    _with_a_clock(connection)
    _put_later(connection, "in a minute", 60)
    put(connection, "now")
    assert drain(connection) == 1
    assert texts(connection) == ["now"]
    _set_clock(connection, 59.9)
    put(connection, "still before")
    assert drain(connection) == 1
    _set_clock(connection, 60)
    assert drain(connection) == 1
    assert texts(connection) == ["now", "still before", "in a minute"]
    assert drain(connection) == 0


def test_by_the_clock_of_the_database(connection: Connection) -> None:
    """Guard: the time is the database's own."""
    topic(connection)
    due = float(value(connection, "SELECT extract(epoch FROM clock_timestamp())")) + 0.3
    _put_later(connection, "soon", due - NOON)
    assert drain(connection) == 0
    while not drain(connection):
        pass
    assert texts(connection) == ["soon"]
    assert value(connection, "SELECT extract(epoch FROM clock_timestamp())") >= due


def test_due_ones_come_in_the_order_of_their_times(connection: Connection) -> None:
    """Guard: the order by due and id; passes of one event keep it too."""
    topic(connection)
    _with_a_clock(connection)
    for text, due in [("c", 30), ("a", 10), ("d", 40), ("b", 20), ("b2", 20)]:
        _put_later(connection, text, due)
    assert drain(connection) == 0
    _set_clock(connection, 100)
    assert drain(connection, max_events=1) == 5
    assert texts(connection) == ["a", "b", "b2", "c", "d"]


def test_seen_late_it_is_not_delayed_any_more(connection: Connection) -> None:
    """Guard: what the cursor has passed is numbered at once; later, nobody would look there."""
    topic(connection)
    _with_a_clock(connection)
    _set_clock(connection, 100)
    put(connection, "moves the cursor")
    drain(connection)
    _put_later(connection, "overdue", 50)
    assert drain(connection) == 1
    _set_clock(connection, 0)
    _put_later(connection, "clock went back", 70)
    assert drain(connection) == 1


def _run(connection: Connection, seed: int) -> None:
    chance = random.Random(seed)
    topic(connection, partitions=2)
    _with_a_clock(connection)
    now = 0.0
    due_of: dict[str, float] = {}
    numbered: dict[str, float] = {}
    for step in range(60):
        for n in range(chance.randrange(4)):
            text = f"{step}-{n}"
            due_of[text] = chance.choice([0.0, now + chance.randrange(-20, 40)])
            _put_later(connection, text, due_of[text], chance.randrange(2))
        if chance.random() < 0.5:
            now += chance.randrange(12)
            _set_clock(connection, now)
        log.sequence(connection, chance.choice([1, 2, 50]))
        for text in texts(connection, 0) + texts(connection, 1):
            numbered.setdefault(text, now)
    _set_clock(connection, now + 100)
    drain(connection, 3)
    found = texts(connection, 0) + texts(connection, 1)
    assert sorted(found) == sorted(due_of), "each exactly once"
    early = [text for text, at in numbered.items() if at < due_of[text]]
    assert not early


@pytest.mark.parametrize("seed", range(8))
def test_each_comes_once_and_none_too_early(connection: Connection, seed: int) -> None:
    """Guards: the cursor, and what is put off."""
    _run(connection, seed)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("> ((append_chunks.tick).due, (append_chunks.tick).due_id)", "> (0, 0)"),
        ("d.due <= append_chunks.now_due", "true"),
        ("WHERE (SELECT r.with_due FROM room AS r) > 0", "WHERE false"),
        ("full_pass.ripe_events > 0 OR full_pass.with_due > 0", "full_pass.ripe_events > 0"),
        ("full_pass.ripe_events > 0 OR full_pass.with_due > 0", "full_pass.with_due > 0"),
        ("array_agg(b.id ORDER BY b.due, b.id)", "array_agg(b.id ORDER BY random())"),
        ("CASE WHEN full_pass.due_left THEN (SELECT max(r.due)", "CASE WHEN false THEN (SELECT 0"),
    ],
)  # fmt: skip
def test_a_mutant_is_noticed(connection: Connection, old: str, new: str) -> None:
    """Mutants: no cursor; no look at the time; put off into nothing; a pass that overlooks what is
    delayed, or what is due; no order of due times; a cursor that leaps ahead."""
    without_guard(connection, "append_chunks", old, new)
    with pytest.raises((AssertionError, psycopg.Error)):
        for seed in range(8):
            connection.execute("TRUNCATE penstock.events, penstock.chunks, penstock.delayed")
            connection.execute("DELETE FROM penstock.topics")
            connection.execute("DELETE FROM penstock.partitions")
            connection.execute("DELETE FROM penstock.namespaces")
            _run(connection, seed)


def test_events_of_a_deleted_topic_are_counted_and_go_nowhere(connection: Connection) -> None:
    """Guard: the discard in append_chunks; delayed ones are discarded when they are due."""
    topic(connection)
    topic(connection, name="tests/other")
    _with_a_clock(connection)
    put(connection, "one")
    _put_later(connection, "later", 10)
    put(connection, "kept", name="tests/other")
    connection.execute(
        "INSERT INTO penstock.deleted_topics (topic_id, address, deleted_by)"
        " SELECT t.id, t.address, 'x' FROM penstock.topics AS t WHERE t.address = %s",
        (TOPIC,),
    )
    assert drain(connection) == 1
    assert texts(connection) == []
    assert texts(connection, name="tests/other") == ["kept"]
    _set_clock(connection, 10)
    assert drain(connection) == 0
    assert value(connection, "SELECT discarded FROM penstock.deleted_topics") == 2
