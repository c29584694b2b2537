"""The index of the log is merged and shortened, and no reader sees both forms of it or neither."""

from __future__ import annotations

import random

import psycopg
import pytest

from ops.retention.clean import drop_slices
from ops.retention.storage import SliceState
from ops.retention.storage_postgres import note_snapshots
from penstock import log
from penstock.subscriptions import stream
from tests.guards import without_guard
from tests.kit.log import (
    TOPIC,
    Connection,
    drain,
    open_transaction,
    put,
    read,
    texts,
    topic,
    value,
)
from tests.kit.storage import many, move_low, next_slice, slices

LOG = "SELECT sequence, payload, sequenced_at FROM penstock.fetch(%s, %s, 1, 10000)"


def _rows(connection: Connection, partition: int = 0) -> list[tuple[object, ...]]:
    """All that a reader sees of a partition."""
    return connection.execute(LOG, (TOPIC, partition)).fetchall()


def _small_chunks(connection: Connection, count: int = 30) -> None:
    """A full slice with a chunk for each event, and one more chunk in the next slice."""
    topic(connection)
    for number in range(count):
        put(connection, str(number))
        drain(connection)
    next_slice(connection, "chunks")
    put(connection, "last")
    drain(connection)


def _chunks(connection: Connection, slice_name: str = "chunks_1") -> int:
    return int(value(connection, f"SELECT count(*) FROM penstock.{slice_name}"))


def test_small_chunks_become_one_and_nothing_else_changes(
    connection: Connection, database_url: str
) -> None:
    """Guard: merged_chunks keeps ids, order and the time of each sequencing."""
    _small_chunks(connection)
    before = _rows(connection)
    assert len({row[2] for row in before}) == 31
    (done,) = drop_slices(database_url)
    assert (done.parent, done.slice, done.state) == ("chunks", "chunks_1", SliceState.MERGED)
    assert _chunks(connection) == 1
    assert _rows(connection) == before
    assert log.gaps(connection, TOPIC) == []
    assert drop_slices(database_url) == []
    connection.execute("SET search_path TO penstock")
    for sequence in (1, 17, 31):
        found = value(
            connection,
            "SELECT sequenced_at_of((SELECT id FROM partitions), %s)",
            sequence,
        )
        assert found == before[sequence - 1][2]


def _lag_behind_a_merge(connection: Connection, url: str) -> list[bool]:
    """Whether the lag of a reader is that of the event he stands before: the first, one within."""
    _small_chunks(connection)
    stream.subscribe(connection, "reader", [TOPIC])
    connection.execute("SET search_path TO penstock")
    connection.execute(
        "UPDATE chunks SET sequenced_at = sequenced_at - (31 - first_sequence) * interval '1 hour'"
    )
    drop_slices(url)
    found = []
    for start in ("1", "17"):
        stream.seek(connection, "reader", TOPIC, 0, start)
        found.append(
            value(
                connection,
                "SELECT abs(g.lag_seconds - extract(epoch FROM clock_timestamp() - f.sequenced_at))"
                " < 60 FROM subscription_lag('reader') AS g, penstock.fetch(%s, 0, %s) AS f"
                " ORDER BY f.sequence LIMIT 1",
                TOPIC,
                int(start),
            )
        )
    return found


def test_the_lag_of_a_reader_inside_of_a_merged_chunk(
    connection: Connection, database_url: str
) -> None:
    """Guard: sequenced_at_of; a chunk that was merged has the time of its last event."""
    assert _lag_behind_a_merge(connection, database_url) == [True, True]


def test_by_the_chunk_a_stalled_reader_looks_better_than_he_is(
    connection: Connection, database_url: str
) -> None:
    """Mutant: the time of the chunk."""
    without_guard(
        connection,
        "sequenced_at_of",
        "COALESCE(c.sequenced_ats[sequenced_at_of.sequence - c.first_sequence + 1],"
        " c.sequenced_at)",
        "c.sequenced_at",
    )
    assert _lag_behind_a_merge(connection, database_url) == [False, False]


def test_merged_slices_of_random_logs_read_as_before(
    connection: Connection, database_url: str
) -> None:
    """A seeded log: partitions of any size over several slices, merged again and again.

    Guard: islands and pieces of 1,000 in merged_chunks, the bounds of its slices.
    """
    chance = random.Random(4)
    topic(connection, 3)
    for _ in range(4):
        for _ in range(chance.randint(2, 6)):
            for partition in range(3):
                many(connection, chance.choice([0, 1, 3, 700, 1500]), partition)
            drain(connection, chance.choice([500, 1001, 10_000]))
        next_slice(connection, "chunks")
        put(connection, "in the next slice", key="k")
        drain(connection)
        before = [_rows(connection, partition) for partition in range(3)]
        drop_slices(database_url)
        assert [_rows(connection, partition) for partition in range(3)] == before
        assert log.gaps(connection, TOPIC) == []
    assert len(slices(connection, "chunks")) <= 5
    assert drop_slices(database_url) == []


def _read_around_a_swap(connection: Connection, url: str, isolation: str) -> list[int]:
    """What a reader sees before and after a swap that came while his transaction was open."""
    _small_chunks(connection)
    with open_transaction(url) as reader:
        reader.rollback()
        reader.execute(f"BEGIN ISOLATION LEVEL {isolation}".encode())
        value(reader, "SELECT count(*) FROM penstock.topics")
        drop_slices(url)
        return [len(_read_log(reader)), _chunks(connection)]


def _read_log(connection: Connection) -> list[tuple[object, ...]]:
    connection.execute("SET search_path TO penstock")
    return connection.execute(
        "SELECT r.sequence FROM partitions AS p, read_log(p.id, 1, 1000) AS r"
    ).fetchall()


def test_an_open_reader_at_read_committed_sees_the_new_form(
    connection: Connection, database_url: str
) -> None:
    """His next statement has a new snapshot; the swap need not wait for him."""
    assert _read_around_a_swap(connection, database_url, "READ COMMITTED") == [31, 1]


def test_an_old_snapshot_postpones_the_swap(connection: Connection, database_url: str) -> None:
    """Guard: swap_merged_slice asks for the oldest snapshot.  A table is no part of a snapshot."""
    assert _read_around_a_swap(connection, database_url, "REPEATABLE READ") == [31, 30]
    (done,) = drop_slices(database_url)
    assert (done.state, _chunks(connection)) == (SliceState.MERGED, 1)


def test_without_asking_an_old_snapshot_sees_neither(
    connection: Connection, database_url: str
) -> None:
    """Mutant: the swap does not look at snapshots."""
    without_guard(connection, "swap_merged_slice", "merge.built_tx >= oldest_snapshot()", "false")
    assert _read_around_a_swap(connection, database_url, "REPEATABLE READ") == [1, 1]


def test_a_reader_that_holds_the_slice_postpones_the_swap(
    connection: Connection, database_url: str
) -> None:
    """Guard: the lock that swap_merged_slice waits 100 ms for; the sequencer goes on meanwhile."""
    _small_chunks(connection)
    with open_transaction(database_url) as reader:
        assert len(_read_log(reader)) == 31
        (done,) = drop_slices(database_url)
        assert (done.state, "lock timeout" in done.detail) == (SliceState.ATTACHED, True)
        put(connection, "meanwhile")
        assert drain(connection) == 1
        assert len(_read_log(reader)) == 32
    (done,) = drop_slices(database_url)
    assert (done.state, _chunks(connection)) == (SliceState.MERGED, 1)
    assert texts(connection) == [*map(str, range(30)), "last", "meanwhile"]


def test_a_sequencer_in_the_middle_of_a_pass_keeps_its_slice_open(
    connection: Connection, database_url: str
) -> None:
    """Guard: a slice is full when a later one holds a chunk that somebody has committed."""
    topic(connection)
    put(connection, "1")
    drain(connection)
    put(connection, "2")
    with open_transaction(database_url) as sequencer:
        sequencer.execute("SELECT penstock.sequence()")
        next_slice(connection, "chunks")
        assert connection.execute("SELECT * FROM penstock.chunk_slices()").fetchall() == []
        sequencer.commit()
    put(connection, "3")
    drain(connection)
    drop_slices(database_url)
    assert texts(connection) == ["1", "2", "3"]


def test_what_lies_below_the_low_sequence_goes(connection: Connection, database_url: str) -> None:
    """Guard: merge_chunks leaves out chunks below the low sequence; a slice of them goes whole."""
    _small_chunks(connection)
    move_low(connection, 30)
    (done,) = drop_slices(database_url)
    assert done.state is SliceState.MERGED
    assert slices(connection, "chunks")[0] != "chunks_1"
    assert [event.sequence for event in log.fetch(connection, TOPIC, 0, 31)] == [31]
    assert log.gaps(connection, TOPIC) == []


def _everything_gone(connection: Connection, url: str) -> tuple[int, int]:
    """The high watermark after all events of a quiet partition were dropped, and the next one."""
    topic(connection, 2)
    many(connection, 3, partition=0)
    drain(connection)
    next_slice(connection, "chunks")
    many(connection, 1, partition=1)
    drain(connection)
    move_low(connection, 3, value(connection, "SELECT min(id) FROM penstock.partitions"))
    drop_slices(url)
    watermark = log.high_watermarks(connection, TOPIC)[0]
    many(connection, 1, partition=0)
    drain(connection)
    return watermark, log.high_watermarks(connection, TOPIC)[0]


def test_the_high_watermark_survives_that_everything_was_dropped(
    connection: Connection, database_url: str
) -> None:
    """Guard: the newest chunk of a partition is kept; sequences are never given twice."""
    assert _everything_gone(connection, database_url) == (3, 4)


def test_without_the_newest_chunk_sequences_begin_anew(
    connection: Connection, database_url: str
) -> None:
    """Mutants: chunks below the low sequence go, even the last one of a partition."""
    without_guard(
        connection,
        "chunk_slices",
        "(part.last_sequence = high_watermark(part.partition_id))::integer",
        "0",
    )
    without_guard(
        connection, "merge_chunks", "LEAST(part.low_sequence, part.watermark)", "part.low_sequence"
    )
    without_guard(connection, "swap_merged_slice", "NOT merge_is_whole(merge)", "false")
    assert _everything_gone(connection, database_url) == (0, 1)


def test_a_merge_that_was_filled_and_not_swapped_is_swapped_by_the_next_run(
    connection: Connection, database_url: str
) -> None:
    """A clean that died between the two steps."""
    _small_chunks(connection)
    connection.execute("SELECT * FROM penstock.merge_chunks()")
    move_low(connection, 10)
    assert len(read_from(connection, 11)) == 21
    (done,) = drop_slices(database_url)
    assert (done.state, _chunks(connection)) == (SliceState.MERGED, 1)
    assert len(read_from(connection, 11)) == 21


def read_from(connection: Connection, sequence: int) -> list[bytes]:
    """The payloads from a sequence on."""
    return [event.payload for event in log.fetch(connection, TOPIC, 0, sequence, 1000)]


def test_the_number_of_slices_grows_with_the_logarithm(
    connection: Connection, database_url: str
) -> None:
    """Guard: next_merge takes the smaller slices before it along."""
    topic(connection)
    for _ in range(12):
        many(connection, 1000)
        drain(connection)
        next_slice(connection, "chunks")
        put(connection, "x")
        drain(connection)
        connection.execute("SELECT penstock.ensure_slices()")
        drop_slices(database_url)
    full = value(connection, "SELECT count(*) FROM penstock.chunk_slices()")
    assert full <= 4
    assert len(read(connection)) == 12 * 1001


def test_two_cleans_do_not_fill_the_same_table(connection: Connection, database_url: str) -> None:
    """Guard: the lock on merges."""
    _small_chunks(connection)
    with open_transaction(database_url) as first:
        first.execute("SELECT * FROM penstock.merge_chunks()")
        with psycopg.connect(database_url, autocommit=True) as second:
            second.execute("SET lock_timeout = '50ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                second.execute("SELECT * FROM penstock.merge_chunks()")
        first.commit()
    note_snapshots(connection)
    assert value(connection, "SELECT penstock.swap_merged_slice()")
    assert texts(connection) == [*map(str, range(30)), "last"]
