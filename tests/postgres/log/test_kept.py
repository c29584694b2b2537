"""The few needed events of a slice are copied with their ids, and the slice is dropped."""

from __future__ import annotations

import random

import psycopg
import pytest

from ops.retention.clean import drop_slices
from ops.retention.storage import SliceState
from penstock import log
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.topics import names
from tests.guards import without_guard
from tests.kit.log import TOPIC, Connection, drain, open_transaction, topic, value
from tests.kit.storage import cut, move_low, next_slice, slices, unneeded
from tests.support import PostgresServer

SIZE = 1_000
RETAINED = 5


def _partition_of(connection: Connection, name: str) -> int:
    return int(
        value(
            connection,
            "SELECT p.id FROM penstock.partitions AS p JOIN penstock.topics AS t"
            " ON t.id = p.topic_id WHERE t.address = %s AND p.number = 0",
            name,
        )
    )


def _busy_and_slow(connection: Connection, needed: int) -> None:
    """A full slice of events, all of them gone but a few of a topic that is read slowly."""
    cut(connection, "events", SIZE)
    topic(connection)
    topic(connection, name="tests/slow")
    publish_batch(
        connection,
        [
            Message("tests/slow" if number % (900 // needed) == 0 else TOPIC, str(number).encode())
            for number in range(900)
        ],
    )
    drain(connection)
    move_low(connection, 900, _partition_of(connection, TOPIC))
    next_slice(connection, "events")
    publish_batch(connection, [Message("tests/slow", b"next"), Message(TOPIC, b"next")])
    drain(connection)


def _slow(connection: Connection) -> list[bytes]:
    return [event.payload for event in log.fetch(connection, "tests/slow", 0, 1, 1000)]


def test_what_is_needed_is_kept_and_the_slice_goes(
    connection: Connection, database_url: str
) -> None:
    """Guard: read_log looks into events_kept where the slice is gone."""
    _busy_and_slow(connection, 30)
    before = connection.execute("SELECT * FROM penstock.fetch('tests/slow', 0, 1, 1000)").fetchall()
    assert len(before) == 31
    (done,) = drop_slices(database_url)
    assert (done.slice, done.state) == ("events_1", SliceState.DROPPED)
    after = connection.execute("SELECT * FROM penstock.fetch('tests/slow', 0, 1, 1000)").fetchall()
    assert after == before
    assert drop_slices(database_url) == []
    assert slices(connection, "events_kept") == ["events_kept_1"]
    move_low(connection, 30, _partition_of(connection, "tests/slow"))
    (done,) = drop_slices(database_url)
    assert (done.slice, done.state) == ("events_kept_1", SliceState.DROPPED)
    assert [event.payload for event in log.fetch(connection, "tests/slow", 0, 31)] == [b"next"]


def test_a_reader_sees_each_event_once_while_both_are_there(connection: Connection) -> None:
    """Guard: a kept event is read only when its slice has no such id."""
    _busy_and_slow(connection, 30)
    assert value(connection, "SELECT penstock.keep_events()") == "events_1"
    assert len(_slow(connection)) == 31


def test_without_it_he_sees_them_twice(connection: Connection) -> None:
    """Mutant: kept events are read whether or not the slice is there."""
    without_guard(
        connection,
        "read_log",
        "is_gone(k.id)",
        "true",
    )
    _busy_and_slow(connection, 30)
    assert value(connection, "SELECT penstock.keep_events()") == "events_1"
    assert len(_slow(connection)) == 61


def test_a_slice_of_which_more_is_needed_stays(connection: Connection, database_url: str) -> None:
    """Guard: kept_share; the setting moves it."""
    _busy_and_slow(connection, 60)
    assert drop_slices(database_url) == []
    connection.execute(
        "INSERT INTO penstock.settings (name, value, updated_by) VALUES ('kept_share', 0.1, 'x')"
    )
    (done,) = drop_slices(database_url)
    assert done.slice == "events_1"
    assert len(_slow(connection)) == 61


def _delayed(connection: Connection) -> list[str]:
    cut(connection, "events", SIZE)
    topic(connection)
    connection.execute(
        "INSERT INTO penstock.events (partition_id, event_id, type, content_type, payload, due_at)"
        " SELECT id, gen_random_uuid(), '', '', 'later', clock_timestamp() + interval '1 day'"
        " FROM penstock.partitions"
    )
    drain(connection)
    next_slice(connection, "events")
    publish_batch(connection, [Message(TOPIC, b"next")])
    drain(connection)
    return unneeded(connection)


def test_an_event_that_is_not_due_is_needed(connection: Connection, database_url: str) -> None:
    """Guard: needed_events looks at delayed ones; they are kept and come when they are due."""
    assert _delayed(connection) == []
    (done,) = drop_slices(database_url)
    assert (done.slice, done.state) == ("events_1", SliceState.DROPPED)
    assert value(connection, "SELECT count(*) FROM penstock.events_kept") == 1
    connection.execute("UPDATE penstock.delayed SET due = due - 86400000000")
    connection.execute("UPDATE penstock.ticks SET due = due - 90000000000")
    drain(connection)
    found = [event.payload for event in log.fetch(connection, TOPIC, 0, 1)]
    assert found == [b"next", b"later"]


def test_without_it_a_delayed_event_is_lost(connection: Connection) -> None:
    """Mutant: only the index of the log is asked."""
    without_guard(
        connection,
        "needed_events",
        "WHERE d.id BETWEEN needed_events.lowest_id AND needed_events.highest_id",
        "WHERE false",
    )
    assert _delayed(connection) == ["events_1"]


def _kept_under_a_snapshot(connection: Connection, url: str) -> int:
    """How many events a transaction sees whose snapshot is older than the copies of them."""
    _busy_and_slow(connection, 30)
    with open_transaction(url) as reader:
        reader.rollback()
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        value(reader, "SELECT count(*) FROM penstock.topics")
        drop_slices(url, patience_seconds=0)
        partition_id = _partition_of(reader, "tests/slow")
        reader.execute("SET LOCAL search_path TO penstock")
        return int(value(reader, "SELECT count(*) FROM read_log(%s, 1, 1000)", partition_id))


def test_an_old_snapshot_postpones_the_drop(connection: Connection, database_url: str) -> None:
    """Guard: droppable_slices asks for the oldest snapshot; copies are no part of an older one."""
    assert _kept_under_a_snapshot(connection, database_url) == 31
    (done,) = drop_slices(database_url)
    assert done.state is SliceState.DROPPED
    assert len(_slow(connection)) == 31


def test_without_asking_an_old_snapshot_sees_neither(
    connection: Connection, database_url: str
) -> None:
    """Mutant: a condemned slice is dropped at once."""
    without_guard(
        connection,
        "droppable_slices",
        "WHERE s.condemned_tx < (SELECT oldest_snapshot())",
        "WHERE true",
    )
    assert _kept_under_a_snapshot(connection, database_url) == 1


def _disk(connection: Connection) -> int:
    """Bytes of the events and of the index of the log."""
    return int(
        value(
            connection,
            "SELECT sum(pg_total_relation_size(to_regclass(format('penstock.%I', s.slice))))"
            " FROM penstock.slices AS s WHERE s.parent IN ('events', 'events_kept', 'chunks')",
        )
    )


def _run_of_topics(
    connection: Connection, url: str, topics: int, size: int, *, stalled: int | None
) -> int:
    """The disk after 15 slices of which 5 are retained, but for what one topic may hold back."""
    chance = random.Random(5)
    watermarks: list[list[int]] = []
    cut(connection, "events", size, 15)
    addresses = [f"tests/topic{number}" for number in range(topics)]
    for address in addresses:
        names.create_topic(connection, address, 1, create_namespaces=True)
    for _ in range(15):
        batch = [Message(chance.choice(addresses), b"x" * 200) for _ in range(size)]
        publish_batch(connection, batch)
        drain(connection)
        watermarks.append([log.high_watermarks(connection, address)[0] for address in addresses])
        if len(watermarks) > RETAINED:
            for number, watermark in enumerate(watermarks[-RETAINED]):
                if number != stalled:
                    move_low(connection, watermark, _partition_of(connection, addresses[number]))
        next_slice(connection, "chunks")
        drop_slices(url)
    if stalled is not None:
        held = [e.sequence for e in log.fetch(connection, addresses[stalled], 0, 1, 10_000)]
        assert held == list(range(1, len(held) + 1))
        assert len(held) > 25 * size // 2 // topics
    return _disk(connection)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("topics", "size"), [(50, 1_000), pytest.param(1_000, 3_000, marks=pytest.mark.long)]
)
def test_one_stalled_subscription_costs_next_to_no_disk(
    postgres_server: PostgresServer, migrated_template: str, topics: int, size: int
) -> None:
    """The disk with it is at most 1.2 times the disk without; all that it waits for is there.

    Guard: keep_events.  Mutant: no slice is thin enough for it; then the slices pile up.
    """
    used = []
    for stalled, mutant in ((None, False), (17, False), (17, True)):
        name = f"{migrated_template}_disk"
        url = postgres_server.create(name, migrated_template)
        with psycopg.connect(url, autocommit=True) as connection:
            if mutant:
                connection.execute(
                    "INSERT INTO penstock.settings (name, value, updated_by)"
                    " VALUES ('kept_share', 0, 'x')"
                )
            used.append(_run_of_topics(connection, url, topics, size, stalled=stalled))
        postgres_server.drop(name)
    assert used[1] <= 1.2 * used[0] < 2 * used[0] < used[2], used
