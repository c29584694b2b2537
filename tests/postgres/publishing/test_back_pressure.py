"""Back pressure: too much that waits for its sequence is refused before it is written."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from penstock import BackPressure, Message, database, publish_batch, publish_bulk
from penstock.errors import InvalidArgument, TopicNotFound
from penstock.publishing.publish import publish
from tests.guards import without_guard
from tests.kit.log import TOPIC, Connection, drain, open_transaction, topic, value

OTHER = "tests/other"


def limit(connection: Connection, events: int | None = None, size: int | None = None) -> None:
    database.call(connection, "set_backpressure", topic=TOPIC, max_events=events, max_bytes=size)


def measure(connection: Connection) -> int:
    return int(database.call(connection, "measure_pressure")[0][0])


def stored(connection: Connection) -> int:
    return int(value(connection, "SELECT count(*) FROM penstock.events"))


def one(connection: Connection) -> None:
    publish(connection, TOPIC, b"x")


def in_batch(connection: Connection) -> None:
    publish_batch(connection, [Message(TOPIC, b"x"), Message(OTHER, b"x")])


def in_bulk(connection: Connection) -> None:
    with connection.transaction():
        publish_bulk(connection, [Message(TOPIC, b"x"), Message(OTHER, b"x")])


@pytest.fixture(autouse=True)
def topics(connection: Connection) -> None:
    topic(connection)
    topic(connection, name=OTHER)


@pytest.mark.parametrize("way", [one, in_batch, in_bulk])
def test_over_the_limit_it_refuses_and_after_sequencing_it_takes_again(
    connection: Connection, way: Callable[[Connection], None]
) -> None:
    """Guard: refuse_under_pressure, in every way of publishing."""
    limit(connection, 3)
    for _ in range(3):
        one(connection)
    for sign in ("nobody gives events their sequences", "3 events of 3 bytes wait"):
        with pytest.raises(BackPressure, match=sign) as caught:
            way(connection)
        assert caught.value.hint
        assert measure(connection) == 1
    assert stored(connection) == 3, "nothing was written"
    drain(connection)
    before = stored(connection)
    way(connection)
    assert stored(connection) > before


@pytest.mark.parametrize("way", [one, in_batch, in_bulk])
def test_without_the_guard_everything_is_taken(
    connection: Connection, way: Callable[[Connection], None]
) -> None:
    """Mutant: no topic is found to be over its limit."""
    without_guard(connection, "pressure_problem", "issued >= t.max_unsequenced_events", "false")
    limit(connection, 3)
    for _ in range(5):
        way(connection)
    assert stored(connection) >= 5


def test_it_is_counted_in_bytes_too(connection: Connection) -> None:
    limit(connection, size=2_000)
    publish(connection, TOPIC, bytes(1_500))
    assert measure(connection) == 0
    publish(connection, TOPIC, bytes(1_500))
    assert measure(connection) == 1
    with pytest.raises(BackPressure, match="2 events of 3000 bytes"):
        one(connection)


def test_a_partition_is_refused_for_itself(connection: Connection) -> None:
    """Guard: the measure is of partitions; one hot key stops no other."""
    connection.execute("SELECT penstock.resize_topic(%s, 2)", (TOPIC,))
    limit(connection, 3)
    for _ in range(3):
        publish(connection, TOPIC, b"x", partition=0)
    assert measure(connection) == 1
    with pytest.raises(BackPressure, match="partition 0"):
        publish(connection, TOPIC, b"x", partition=0)
    publish(connection, TOPIC, b"x", partition=1)


def test_what_others_publish_presses_nobody(connection: Connection) -> None:
    """Guard: ids that were handed out are a bound only, the measure decides."""
    limit(connection, 3)
    for _ in range(10):
        publish(connection, OTHER, b"x")
    assert measure(connection) == 0
    one(connection)


def test_what_was_rolled_back_presses_nobody(connection: Connection, database_url: str) -> None:
    """Guard: where nobody measures, it is asked whether anything waits."""
    limit(connection, 3)
    with open_transaction(database_url) as undone:
        for _ in range(10):
            publish(undone, OTHER, b"x")
        undone.rollback()
    one(connection)
    assert stored(connection) == 1


def test_an_old_measure_says_nothing(connection: Connection) -> None:
    """Guard: five seconds, after which nobody is taken to sequence."""
    limit(connection, 3)
    for _ in range(3):
        one(connection)
    measure(connection)
    connection.execute("UPDATE penstock.pressure SET measured_at = measured_at - interval '6 s'")
    connection.execute("UPDATE penstock.pressure_measured SET measured_at = now() - interval '6 s'")
    with pytest.raises(BackPressure, match="nobody gives"):
        one(connection)


def test_limits_can_be_taken_away(connection: Connection) -> None:
    limit(connection, 1)
    one(connection)
    with pytest.raises(BackPressure):
        one(connection)
    limit(connection)
    one(connection)
    assert measure(connection) == 0


def test_bad_limits_are_refused(connection: Connection) -> None:
    for binds in ({"max_events": 0, "max_bytes": None}, {"max_events": None, "max_bytes": -1}):
        with pytest.raises(InvalidArgument):
            database.call(connection, "set_backpressure", topic=TOPIC, **binds)
    with pytest.raises(TopicNotFound):
        database.call(connection, "set_backpressure", topic="tests/none", max_events=1, max_bytes=1)


def test_only_one_measures_at_a_time(connection: Connection, database_url: str) -> None:
    """Guard: the lock on pressure_measured, for which nobody waits."""
    limit(connection, 1)
    one(connection)
    with psycopg.connect(database_url) as other:
        assert measure(other) == 1
        assert measure(connection) == 0
        other.commit()
    assert measure(connection) == 1
