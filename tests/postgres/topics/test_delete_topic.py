"""A topic is deleted: under open publishers, under subscriptions, between two passes."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from penstock import log, subscriptions
from penstock.errors import InUse, PenstockError, StaleLease, TopicNotFound
from penstock.subscriptions import stream
from tests.contract.reads import counted
from tests.guards import without_guard
from tests.kit.log import TOPIC, Connection, drain, open_transaction, put, texts, topic, value
from tests.kit.names import broken, meets


def _discarded(connection: Connection) -> Any:
    return value(connection, "SELECT sum(discarded) FROM penstock.deleted_topics")


def test_a_topic_goes_with_its_events(connection: Connection) -> None:
    topic(connection, 2)
    for number in range(10):
        put(connection, str(number))
    drain(connection)
    penstock.delete_topic(connection, TOPIC)
    for call in (
        lambda: penstock.fetch(connection, TOPIC, 0, 1),
        lambda: penstock.describe_topic(connection, TOPIC),
        lambda: put(connection, "11"),
        lambda: stream.subscribe(connection, "late", [TOPIC]),
        lambda: penstock.delete_topic(connection, TOPIC),
    ):
        with pytest.raises(TopicNotFound):
            call()
    low = connection.execute("SELECT low_sequence FROM penstock.partitions ORDER BY id").fetchall()
    assert low == [(6,), (6,)]
    assert penstock.list_topics(connection) == []


def test_a_publisher_is_open_across_a_deletion(connection: Connection, database_url: str) -> None:
    """Nothing waits; what the publisher still commits is discarded, and counted."""
    topic(connection)
    topic(connection, name="tests/other")
    with open_transaction(database_url) as publisher:
        put(publisher, "1")
        put(publisher, "other", name="tests/other")
        penstock.delete_topic(connection, TOPIC)
        drain(connection)
        publisher.commit()
    drain(connection)
    assert _discarded(connection) == 1
    assert texts(connection, name="tests/other") == ["other"]
    assert value(connection, "SELECT events FROM penstock.unsequenced()") == 0


def test_an_older_snapshot_still_sees_the_topic(connection: Connection, database_url: str) -> None:
    topic(connection)
    with open_transaction(database_url) as publisher:
        publisher.rollback()
        publisher.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        put(publisher, "1")
        penstock.delete_topic(connection, TOPIC)
        put(publisher, "2")
        publisher.commit()
    drain(connection)
    assert _discarded(connection) == 2


def test_a_publisher_learns_of_it_with_its_next_statement(
    connection: Connection, database_url: str
) -> None:
    """Also where the client remembers the topic: the database is asked again."""
    topic(connection)
    with open_transaction(database_url) as publisher:
        put(publisher, "1")
        penstock.delete_topic(connection, TOPIC)
        with pytest.raises(TopicNotFound):
            put(publisher, "2")


def test_what_is_rolled_back_was_never_deleted(connection: Connection, database_url: str) -> None:
    topic(connection)
    stream.subscribe(connection, "billing", [TOPIC])
    put(connection, "1")
    with open_transaction(database_url) as undone:
        penstock.delete_topic(undone, TOPIC, with_subscriptions=True)
        undone.rollback()
    drain(connection)
    assert texts(connection) == ["1"]
    assert len(subscriptions.lag(connection)) == 1
    assert broken(connection) == {}


def _delete_during_a_pass(connection: Connection, url: str) -> tuple[bool, int]:
    """Whether it waits for an uncommitted pass; events of the topic that are still needed."""
    topic(connection)
    put(connection, "1")
    with open_transaction(url) as sequencer:
        log.sequence(sequencer)
        waited, _ = meets(
            sequencer.commit, connection, url, lambda own: penstock.delete_topic(own, TOPIC)
        )
    needed = value(
        connection,
        "SELECT count(*) FROM penstock.chunks AS c JOIN penstock.partitions AS p"
        " ON p.id = c.partition_id WHERE c.first_sequence + c.event_count > p.low_sequence",
    )
    return waited, needed


def test_it_takes_effect_between_two_passes(connection: Connection, database_url: str) -> None:
    """Guard: hold_sequencer; the high watermark that the low sequence follows stands still."""
    assert _delete_during_a_pass(connection, database_url) == (True, 0)


def test_without_the_row_storage_is_needed_for_ever(
    connection: Connection, database_url: str
) -> None:
    """Mutant: the sequencer's row is not taken."""
    without_guard(connection, "hold_sequencer", "PERFORM FROM sequencer FOR UPDATE;", "")
    assert _delete_during_a_pass(connection, database_url) == (False, 1)


def test_subscriptions_read_on_without_it(connection: Connection) -> None:
    topic(connection)
    topic(connection, name="tests/other")
    stream.subscribe(connection, "billing", [TOPIC, "tests/other"])
    put(connection, "1")
    put(connection, "other", name="tests/other")
    drain(connection)
    member = stream.join(connection, "billing", "one")
    leases = stream.check_in(connection, member)
    assert len(leases) == 2
    with pytest.raises(InUse, match="billing"):
        penstock.delete_topic(connection, TOPIC)
    penstock.delete_topic(connection, TOPIC, with_subscriptions=True)
    gone = [lease for lease in leases if lease.topic == TOPIC]
    with pytest.raises(StaleLease):
        stream.commit(connection, member, [(gone[0], 1)])
    (left,) = stream.check_in(connection, member)
    assert left.topic == "tests/other"
    ((_, events),) = stream.poll(connection, member, [left])
    assert [event.payload for event in events] == [b"other"]
    assert broken(connection) == {}


def _log_is_free(connection: Connection, url: str) -> bool:
    """Whether the sequencer can work while a deletion waits for a consumer's transaction."""
    topic(connection)
    stream.subscribe(connection, "billing", [TOPIC])
    put(connection, "1")
    drain(connection)
    with open_transaction(url) as consumer:
        member = stream.join(connection, "billing", "one")
        (lease,) = stream.check_in(connection, member)
        stream.commit(consumer, member, [(lease, 1)])
        busy = []

        def look_and_end() -> None:
            put(connection, "2")  # or the log is quiet, and nobody looks for its row
            busy.append(log.sequence(connection).busy)
            consumer.commit()

        waited, _ = meets(
            look_and_end,
            connection,
            url,
            lambda own: penstock.delete_topic(own, TOPIC, with_subscriptions=True),
        )
        assert waited
    assert broken(connection) == {}
    return busy == [False]


def test_the_log_goes_on_while_it_waits_for_a_consumer(
    connection: Connection, database_url: str
) -> None:
    """Guard: the sequencer's row is the last that is locked."""
    assert _log_is_free(connection, database_url)


def test_taken_first_the_row_stops_the_log(connection: Connection, database_url: str) -> None:
    """Mutant: the sequencer is held before the leases."""
    first = "PERFORM hold_sequencer();\n    PERFORM FROM leases AS l"
    without_guard(connection, "drop_topics", "PERFORM FROM leases AS l", first)
    assert not _log_is_free(connection, database_url)


def _subscribe_while_deleting(connection: Connection, url: str) -> tuple[Any, dict[str, Any]]:
    topic(connection)
    with open_transaction(url) as deleting:
        penstock.delete_topic(deleting, TOPIC)
        _, answer = meets(
            deleting.commit, connection, url, lambda own: stream.subscribe(own, "new", [TOPIC])
        )
    return answer, broken(connection)


def _retention_while_deleting(connection: Connection, url: str) -> tuple[Any, dict[str, Any]]:
    topic(connection)
    with open_transaction(url) as deleting:
        penstock.delete_topic(deleting, TOPIC)
        _, answer = meets(
            deleting.commit,
            connection,
            url,
            lambda own: own.execute("SELECT penstock.set_retention(%s, 0)", [TOPIC]),
        )
    return answer, broken(connection)


def test_nobody_subscribes_to_a_topic_that_goes(connection: Connection, database_url: str) -> None:
    """Guard: lock_topic asks again once it has the row."""
    answer, found = _subscribe_while_deleting(connection, database_url)
    assert isinstance(answer, TopicNotFound)
    assert found == {}
    answer, found = _retention_while_deleting(connection, database_url)
    assert getattr(answer, "sqlstate", None) == "PS002"
    assert found == {}


@pytest.mark.parametrize("race", [_subscribe_while_deleting, _retention_while_deleting])
def test_without_the_lock_something_outlives_the_topic(
    connection: Connection, database_url: str, race: Any
) -> None:
    """Mutant: the topic's row is not locked."""
    without_guard(connection, "lock_topic", "FOR NO KEY UPDATE;", ";")
    answer, found = race(connection, database_url)
    assert not isinstance(answer, PenstockError)
    assert found


def test_a_deletion_waits_for_who_subscribes_and_is_refused(
    connection: Connection, database_url: str
) -> None:
    topic(connection)
    with open_transaction(database_url) as subscribing:
        stream.subscribe(subscribing, "new", [TOPIC])
        waited, answer = meets(
            subscribing.commit,
            connection,
            database_url,
            lambda own: penstock.delete_topic(own, TOPIC),
        )
    assert waited
    assert isinstance(answer, InUse)
    assert broken(connection) == {}


def test_a_deletion_reads_no_copies_of_other_topics(connection: Connection) -> None:
    """However many dead letters others have forwarded: by where they come from, and lie."""
    topic(connection, 1)
    connection.execute(
        "INSERT INTO penstock.letter_copies (copy_id, topic_id, subscription_id, letter_id,"
        " partition_id, sequence, history, event_id, copy_partition_id, row_id)"
        " SELECT gen_random_uuid(), n + 100, 1, n, (n + 100) << 16, 1, 1, gen_random_uuid(), 1, n"
        " FROM generate_series(1, 5000) AS n"
    )
    connection.execute("ANALYZE penstock.letter_copies")
    with connection.transaction(), counted(connection) as reads:
        penstock.delete_topic(connection, TOPIC)
    assert {"letter_copies_origin", "letter_copies_topic"} <= reads.indexes
    assert reads.scanned.get("letter_copies", 0) == 0
