"""More partitions: under open publishers, under subscriptions, between two passes."""

from __future__ import annotations

import pytest

import penstock
from penstock import log, subscriptions
from penstock.errors import InvalidPartition, TopicNotFound
from penstock.subscriptions import stream
from penstock.topics.strategies import partition_of
from tests.guards import without_guard
from tests.kit.cleaning import clean_unread
from tests.kit.log import (
    TOPIC,
    Connection,
    drain,
    open_transaction,
    put,
    texts,
    topic,
    value,
)
from tests.kit.names import broken, meets

#: A key that 2 and 8 partitions place differently.
KEY = next(key for key in map(str, range(100)) if partition_of(key, 2) != partition_of(key, 8))
OLD, NEW = partition_of(KEY, 2), partition_of(KEY, 8)

NOT_LOCKED = ("lock_topic", "FOR NO KEY UPDATE;", ";")
NOT_HELD = ("hold_sequencer", "PERFORM FROM sequencer FOR UPDATE;", "")
READERS_NOT_LOCKED = ("lock_readers", "FOR KEY SHARE", "")


def test_a_publisher_is_open_across_a_resize(connection: Connection, database_url: str) -> None:
    """Nothing waits; each event keeps the partition of the count that its statement saw."""
    topic(connection, 2)
    with open_transaction(database_url) as publisher:
        put(publisher, "before", key=KEY)
        assert penstock.resize_topic(connection, TOPIC, 8) == 2
        drain(connection)
        put(publisher, "after", key=KEY)
        publisher.commit()
    drain(connection)
    assert (texts(connection, OLD), texts(connection, NEW)) == (["before"], ["after"])
    assert log.high_watermarks(connection, TOPIC).keys() == set(range(8))


def test_an_older_snapshot_keeps_the_old_count(connection: Connection, database_url: str) -> None:
    topic(connection, 2)
    with open_transaction(database_url) as publisher:
        publisher.rollback()
        publisher.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        put(publisher, "1", key=KEY)
        penstock.resize_topic(connection, TOPIC, 8)
        put(publisher, "2", key=KEY)
        publisher.commit()
    drain(connection)
    assert texts(connection, OLD) == ["1", "2"]


def test_every_subscription_gets_the_new_partitions_with_it(
    connection: Connection, database_url: str
) -> None:
    topic(connection, 2)
    stream.subscribe(connection, "all", [TOPIC])
    put(connection, "1")
    drain(connection)
    stream.subscribe(connection, "late", [TOPIC], "latest")
    with open_transaction(database_url) as undone:
        penstock.resize_topic(undone, TOPIC, 5)
        undone.rollback()
    assert len(subscriptions.lag(connection)) == 4
    assert penstock.resize_topic(connection, TOPIC, 5) == 2
    assert broken(connection) == {}
    added = [line for line in subscriptions.lag(connection) if line.partition >= 2]
    assert {(each.subscription, each.position) for each in added} == {("all", 0), ("late", 0)}
    rows = connection.execute(
        "SELECT DISTINCT reason FROM penstock.positions WHERE partition_id & 65535 >= 2"
    ).fetchall()
    assert rows == [("start",)]


def test_what_is_published_to_a_new_partition_is_delivered(connection: Connection) -> None:
    topic(connection, 1)
    stream.subscribe(connection, "all", [TOPIC], "latest")
    penstock.resize_topic(connection, TOPIC, 3)
    for number in range(3):
        penstock.publish(connection, TOPIC, str(number).encode(), partition=number)
    drain(connection)
    member = stream.join(connection, "all", "one")
    leases = stream.check_in(connection, member)
    found = stream.poll(connection, member, leases)
    assert {(lease.partition, event.payload) for lease, events in found for event in events} == {
        (0, b"0"), (1, b"1"), (2, b"2")
    }  # fmt: skip


def test_partitions_are_only_added(connection: Connection) -> None:
    topic(connection, 3)
    assert penstock.resize_topic(connection, TOPIC, 3) == 3
    for count in (2, 0, -1, 65_537):
        with pytest.raises(InvalidPartition):
            penstock.resize_topic(connection, TOPIC, count)
    with pytest.raises(InvalidPartition, match="3 partitions already"):
        penstock.resize_topic(connection, TOPIC, 1)
    with pytest.raises(TopicNotFound):
        penstock.resize_topic(connection, "tests/nothing", 4)
    assert penstock.resize_topic(connection, TOPIC, 65_536) == 3
    assert value(connection, "SELECT count(*) FROM penstock.partitions") == 65_536


def _resize_during_a_pass(connection: Connection, url: str) -> bool:
    """Whether a resize waits for the pass of a sequencer that is not committed yet."""
    topic(connection, 2)
    put(connection, "1")
    with open_transaction(url) as sequencer:
        log.sequence(sequencer)
        waited, before = meets(
            sequencer.commit, connection, url, lambda own: penstock.resize_topic(own, TOPIC, 4)
        )
        assert before == 2
        return waited


def test_it_takes_effect_between_two_passes(connection: Connection, database_url: str) -> None:
    """Guard: hold_sequencer."""
    assert _resize_during_a_pass(connection, database_url)
    with open_transaction(database_url) as resizing:
        penstock.resize_topic(resizing, TOPIC, 5)
        put(connection, "waits")
        assert log.sequence(connection).busy
        resizing.commit()
    assert not log.sequence(connection).busy


def test_without_the_row_it_does_not_wait_for_a_pass(
    connection: Connection, database_url: str
) -> None:
    """Mutant: the sequencer's row is not taken."""
    without_guard(connection, *NOT_HELD)
    assert not _resize_during_a_pass(connection, database_url)


def _log_is_free(connection: Connection, url: str) -> bool:
    """Whether the sequencer can work while a resize waits for a long clean."""
    topic(connection, 2)
    busy = []
    with open_transaction(url) as cleaning:
        clean_unread(cleaning, TOPIC)

        def look_and_end() -> None:
            put(connection, "1")  # or the log is quiet, and nobody looks for its row
            busy.append(log.sequence(connection).busy)
            cleaning.commit()

        waited, _ = meets(
            look_and_end, connection, url, lambda own: penstock.resize_topic(own, TOPIC, 4)
        )
    assert waited
    return busy == [False]


def test_the_log_goes_on_while_it_waits_for_the_topic(
    connection: Connection, database_url: str
) -> None:
    """Guard: the sequencer's row is the last that is locked."""
    assert _log_is_free(connection, database_url)


def test_taken_first_the_row_stops_the_log(connection: Connection, database_url: str) -> None:
    """Mutant: the sequencer is held before the topic."""
    second = "own := lock_topic(topic, 'operate');"
    without_guard(connection, "resize_topic", second, f"PERFORM hold_sequencer(); {second}")
    assert not _log_is_free(connection, database_url)


def test_a_resize_that_is_left_open_is_ended(connection: Connection, database_url: str) -> None:
    """Guard: limit_transaction in hold_sequencer."""
    topic(connection, 2)
    with open_transaction(database_url) as resizing:
        penstock.resize_topic(resizing, TOPIC, 4)
        limit = value(resizing, "SHOW idle_in_transaction_session_timeout")
        assert limit == "28500ms"


def _subscribe_while_resizing(connection: Connection, url: str) -> dict[str, object]:
    topic(connection, 2)
    with open_transaction(url) as resizing:
        penstock.resize_topic(resizing, TOPIC, 4)
        meets(resizing.commit, connection, url, lambda own: stream.subscribe(own, "new", [TOPIC]))
    return dict(broken(connection))


def _resize_while_subscribing(connection: Connection, url: str) -> dict[str, object]:
    topic(connection, 2, "tests/other")
    with open_transaction(url) as subscribing:
        stream.subscribe(subscribing, "other", ["tests/other"])
        meets(
            subscribing.commit,
            connection,
            url,
            lambda own: penstock.resize_topic(own, "tests/other", 4),
        )
    return dict(broken(connection))


def test_subscribe_and_resize_in_either_order(connection: Connection, database_url: str) -> None:
    """Guard: both lock the topic's row."""
    assert _subscribe_while_resizing(connection, database_url) == {}
    assert _resize_while_subscribing(connection, database_url) == {}
    assert len(subscriptions.lag(connection)) == 8


@pytest.mark.parametrize("race", [_subscribe_while_resizing, _resize_while_subscribing])
def test_without_the_lock_a_subscription_lacks_partitions(
    connection: Connection, database_url: str, race: object
) -> None:
    """Mutant: the topic's row is not locked."""
    without_guard(connection, *NOT_LOCKED)
    assert callable(race)
    found = race(connection, database_url)
    assert list(found) == ["a subscribed partition without lease or position"]


def _resize_while_unsubscribing(connection: Connection, url: str) -> dict[str, object]:
    topic(connection, 2)
    stream.subscribe(connection, "going", [TOPIC])
    with open_transaction(url) as leaving:
        stream.unsubscribe(leaving, "going")
        meets(leaving.commit, connection, url, lambda own: penstock.resize_topic(own, TOPIC, 4))
    return dict(broken(connection))


def test_a_subscription_that_goes_gets_nothing(connection: Connection, database_url: str) -> None:
    """Guard: lock_readers locks the subscriptions."""
    assert _resize_while_unsubscribing(connection, database_url) == {}


def test_without_the_lock_leases_outlive_their_subscription(
    connection: Connection, database_url: str
) -> None:
    """Mutant: the subscriptions are only read."""
    without_guard(connection, *READERS_NOT_LOCKED)
    found = _resize_while_unsubscribing(connection, database_url)
    assert list(found) == ["a lease that nobody subscribed"]
