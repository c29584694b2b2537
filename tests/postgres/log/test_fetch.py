"""Reading by sequence: 1 to n without a gap, never above the high watermark or below the low."""

from __future__ import annotations

import pytest

from penstock import log
from penstock.errors import BelowLowSequence, InvalidArgument, InvalidPartition, TopicNotFound
from tests.guards import without_guard
from tests.kit.log import TOPIC, Connection, drain, open_transaction, put, read, topic
from tests.kit.storage import many, move_low


@pytest.mark.parametrize(
    ("events", "pass_size"), [(999, 10_000), (1000, 1000), (1001, 10_000), (2500, 700)]
)
def test_sequences_at_the_edges_of_chunks_and_passes(
    connection: Connection, events: int, pass_size: int
) -> None:
    """Guards: chunks of 1,000 and passes that end exactly at the last event."""
    topic(connection)
    many(connection, events)
    assert drain(connection, pass_size) == events
    found = read(connection)
    assert [event.sequence for event in found] == list(range(1, events + 1))
    assert [int(event.payload) for event in found] == list(range(1, events + 1))
    for start, count in [(1, 1), (998, 5), (1000, 1), (1000, 2), (1001, 1), (events, 10)]:
        window = [event.sequence for event in log.fetch(connection, TOPIC, 0, start, count)]
        assert window == list(range(start, min(start + count, events + 1)))
    assert log.fetch(connection, TOPIC, 0, events + 1) == []
    assert log.fetch(connection, TOPIC, 0, 10**18, 100_000) == []
    assert log.gaps(connection, TOPIC) == []


def test_partitions_are_numbered_each_for_itself(connection: Connection) -> None:
    """Guard: row_number() by partition; an empty partition stays empty."""
    topic(connection, 4)
    many(connection, 3, partition=1)
    many(connection, 5, partition=3)
    drain(connection, 2)
    assert log.high_watermarks(connection, TOPIC) == {0: 0, 1: 3, 2: 0, 3: 5}
    assert [len(read(connection, partition)) for partition in range(4)] == [0, 3, 0, 5]


def test_below_the_low_sequence_is_an_error_and_no_jump(connection: Connection) -> None:
    """Guard: require_readable."""
    topic(connection)
    many(connection, 5)
    drain(connection)
    move_low(connection, 3)
    with pytest.raises(BelowLowSequence):
        log.fetch(connection, TOPIC, 0, 3)
    assert [event.sequence for event in log.fetch(connection, TOPIC, 0, 4)] == [4, 5]


def test_without_the_check_what_was_dropped_is_served(connection: Connection) -> None:
    """Mutant: no look at the low sequence."""
    topic(connection)
    many(connection, 5)
    drain(connection)
    move_low(connection, 3)
    without_guard(
        connection,
        "require_readable",
        "ELSIF from_sequence < found_row.low THEN",
        "ELSIF false THEN",
    )
    assert log.fetch(connection, TOPIC, 0, 3)[0].sequence == 3


def _read_behind_a_drop(connection: Connection, url: str) -> int:
    """How many of 5 events a transaction sees whose snapshot is older than their drop."""
    topic(connection)
    many(connection, 5)
    drain(connection)
    with open_transaction(url) as old:
        old.rollback()
        old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT 1")
        move_low(connection, 5)
        connection.execute("ALTER TABLE penstock.events DETACH PARTITION penstock.events_1")
        return len(log.fetch(old, TOPIC, 0, 1))


def test_a_snapshot_older_than_a_drop_gets_an_error(
    connection: Connection, database_url: str
) -> None:
    """Guard: fetch counts what it found; DDL is no part of a snapshot."""
    with pytest.raises(BelowLowSequence):
        _read_behind_a_drop(connection, database_url)


def test_without_counting_it_gets_a_silent_gap(connection: Connection, database_url: str) -> None:
    """Mutant: fetch returns what is left."""
    without_guard(connection, "fetch", "IF found_rows < LEAST(", "IF found_rows < 0 * LEAST(")
    assert _read_behind_a_drop(connection, database_url) == 0


@pytest.mark.parametrize(
    ("name", "window", "error"),
    [
        ("no/topic", (0, 1, 1), TopicNotFound),
        (TOPIC, (-1, 1, 1), InvalidPartition),
        (TOPIC, (1, 1, 1), InvalidPartition),
        (TOPIC, (70_000, 1, 1), InvalidPartition),
        (TOPIC, (0, 0, 1), InvalidArgument),
        (TOPIC, (0, 1, 0), InvalidArgument),
        (TOPIC, (0, 1, 100_001), InvalidArgument),
        (TOPIC, (0, 2**63 - 1, 100), InvalidArgument),
        (TOPIC, (0, 2**63, 100), InvalidArgument),
        (TOPIC, (0, 1, 2**40), InvalidArgument),
        (TOPIC, (2**70, 1, 1), InvalidArgument),
        (TOPIC, (0, 1, None), InvalidArgument),
        (TOPIC, (0, None, 1), InvalidArgument),
        (TOPIC, (None, 1, 1), InvalidArgument),
    ],
)
def test_wrong_arguments_are_typed_errors(
    log_of_one: Connection,
    name: str,
    window: tuple[int, int, int],
    error: type[Exception],
) -> None:
    """Guard: fetch looks at its arguments, NULL and the ends of bigint included."""
    with pytest.raises(error):
        log.fetch(log_of_one, name, *window)


@pytest.mark.parametrize("max_events", [0, -1, 1_000_001, 2**40, 2**70, None])
def test_a_pass_of_a_wrong_size_is_refused(log_of_one: Connection, max_events: int) -> None:
    """Guard: sequence looks at its argument."""
    with pytest.raises(InvalidArgument):
        log.sequence(log_of_one, max_events)


def _shadowed(connection: Connection) -> int:
    """How many events are sequenced for a login that has temporary tables of Penstock's names."""
    topic(connection)
    put(connection, "mine")
    for name in ("ticks", "events", "chunks", "sequencer", "partitions"):
        connection.execute(
            f"CREATE TEMPORARY TABLE {name} AS SELECT * FROM penstock.{name} WHERE false".encode()
        )
    return log.sequence(connection).sequenced


def test_a_temporary_table_of_the_caller_is_not_read(connection: Connection) -> None:
    """Guard: pg_temp stands last in the functions' search_path."""
    assert _shadowed(connection) == 1


def test_without_naming_it_the_temporary_tables_come_first(connection: Connection) -> None:
    """Mutant: a search_path that does not name pg_temp."""
    connection.execute("ALTER FUNCTION penstock.sequence(integer) SET search_path = penstock")
    assert _shadowed(connection) == 0
