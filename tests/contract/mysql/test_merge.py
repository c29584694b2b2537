"""Merging the index of the log and trimming the ledgers, on MySQL and MariaDB."""

from __future__ import annotations

from typing import Any

from ops.retention.clean import drop_slices
from ops.retention.storage import SliceState
from penstock import database, log
from penstock.log import mysql_storage
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from tests.contract.databases import MySQLDatabase
from tests.contract.kit import count, open_transaction, sql
from tests.kit.log import TOPIC, drain, put, read, topic

READER = "tests.reader"
_IN_ONE = """(
          SELECT MAX(f.first_sequence) FROM chunks AS f
          WHERE f.partition_id = partition_id AND f.first_sequence <= first_sequence)"""


def _chunked(db: MySQLDatabase, events: int, size: int = 1) -> Any:
    """A partition whose index has chunks of that size."""
    own = db.connect()
    topic(own)
    publish_batch(own, [Message(TOPIC, str(n).encode()) for n in range(events)])
    drain(own, size)
    assert count(db, "chunks") == -(-events // size)
    return own


def _low(db: MySQLDatabase, sequence: int) -> None:
    db.run("UPDATE penstock.partitions SET low_sequence = %(low)s", {"low": sequence})


def _counts(db: MySQLDatabase) -> list[tuple[int, int]]:
    rows = db.run("SELECT first_sequence, event_count FROM penstock.chunks ORDER BY first_sequence")
    return [(int(first), int(number)) for first, number in rows]


def _whole(own: Any) -> list[tuple[Any, ...]]:
    return [(e.sequence, e.event_id, e.payload, e.created_at, e.sequenced_at) for e in read(own)]


def test_small_chunks_become_one_and_the_log_stays_the_same(mysql_db: MySQLDatabase) -> None:
    """Guard: sequenced_ats has the time of each event."""
    own = _chunked(mysql_db, 60)
    before = _whole(own)
    assert len({row[-1] for row in before}) == 60
    drop_slices(mysql_db.url)
    assert _counts(mysql_db) == [(1, 60)]
    assert _whole(own) == before
    assert log.gaps(own, TOPIC) == []
    publish_batch(own, [Message(TOPIC, b"x") for _ in range(60)])
    drain(own, 1)
    before = _whole(own)
    drop_slices(mysql_db.url)
    assert _counts(mysql_db) == [(1, 120)]
    assert _whole(own) == before


def test_an_event_is_moved_only_a_few_times(mysql_db: MySQLDatabase) -> None:
    """Guard: a run has to be twice as large as its largest chunk."""
    own = _chunked(mysql_db, 60)
    drop_slices(mysql_db.url)
    publish_batch(own, [Message(TOPIC, b"x") for _ in range(20)])
    drain(own, 10)
    drop_slices(mysql_db.url)
    assert _counts(mysql_db) == [(1, 60), (61, 10), (71, 10)]


def test_full_chunks_are_left_alone(mysql_db: MySQLDatabase) -> None:
    """Guard: chunks have at most 1,000 events."""
    own = _chunked(mysql_db, 2_600, 400)
    before = _whole(own)
    drop_slices(mysql_db.url)
    assert _counts(mysql_db) == [(1, 1000), (1001, 1000), (2001, 600)]
    assert _whole(own) == before


def test_what_is_below_the_low_sequence_goes(mysql_db: MySQLDatabase) -> None:
    """Guard: the newest chunk stays, which carries the high watermark."""
    own = _chunked(mysql_db, 60)
    _low(mysql_db, 41)
    drop_slices(mysql_db.url)
    assert _counts(mysql_db) == [(41, 20)]
    assert [event.sequence for event in log.fetch(own, TOPIC, 0, 41)] == list(range(41, 61))
    _low(mysql_db, 61)
    drop_slices(mysql_db.url)
    assert log.high_watermarks(own, TOPIC) == {0: 60}
    put(own, "next")
    drain(own)
    assert [event.sequence for event in log.fetch(own, TOPIC, 0, 61)] == [61]


def test_without_the_newest_chunk_sequences_come_twice(mysql_db: MySQLDatabase) -> None:
    """Mutant: everything below the low sequence goes."""
    mysql_db.without_guard("merge_chunks", "LEAST(low, newest)", "low")
    own = _chunked(mysql_db, 3)
    _low(mysql_db, 4)
    drop_slices(mysql_db.url)
    put(own, "next")
    drain(own)
    assert log.high_watermarks(own, TOPIC) == {0: 1}


def _block_around_a_merge(db: MySQLDatabase) -> int:
    """How many events of a block a relay reads, when chunks are merged while it reads."""
    own = _chunked(db, 60)
    database.call(own, "subscribe", subscription=READER, topics=[TOPIC], start="earliest")
    ((part_id,),) = db.run("SELECT id FROM penstock.partitions")
    # Where the mutant has found the chunk that it reads afterwards.
    sql(own, "SET @chunk = 30")
    drop_slices(db.url)
    return len(
        database.call_events(
            own,
            "read_block",
            subscription=READER,
            partition_id=part_id,
            first_sequence=30,
            last_sequence=39,
        )
    )


def test_a_reader_sees_no_gap_while_chunks_are_merged(mysql_db: MySQLDatabase) -> None:
    """Guard: a chunk is looked for and read in one statement."""
    assert _block_around_a_merge(mysql_db) == 10


def test_without_that_a_relay_reads_nothing(mysql_db: MySQLDatabase) -> None:
    """Mutant: the chunk is looked for in a statement before."""
    mysql_db.without_guard("read_block", _IN_ONE, "@chunk")
    assert _block_around_a_merge(mysql_db) == 0


def test_a_merge_and_a_sequencer_do_not_wait_for_each_other(mysql_db: MySQLDatabase) -> None:
    """Guard: a merge locks what it takes out, and no gap."""
    own = _chunked(mysql_db, 10)
    ((part_id,),) = mysql_db.run("SELECT id FROM penstock.partitions")
    with open_transaction(mysql_db) as merger:
        database.call(merger, "merge_chunks", partition_id=part_id)
        sql(own, "SET SESSION innodb_lock_wait_timeout = 1")
        put(own, "meanwhile")
        assert log.sequence(own).sequenced == 1
        merger.commit()
    assert [event.sequence for event in read(own)] == list(range(1, 12))


def _cut(db: MySQLDatabase, parent: str, cut_by: str = "id") -> None:
    """What a ledger holds now is its first slice, full."""
    ((newest,),) = db.run(f"SELECT COALESCE(MAX({cut_by}), 0) FROM penstock.{parent}")
    db.run(
        f"ALTER TABLE penstock.{parent} PARTITION BY RANGE ({cut_by}) ("
        f"PARTITION old VALUES LESS THAN ({newest + 1}),"
        " PARTITION rest VALUES LESS THAN (1000000000))"
    )


def _commit(db: MySQLDatabase, position: int) -> None:
    """What commit appends for the first lease."""
    db.run(
        "INSERT INTO penstock.positions"
        " (subscription_id, partition_id, position, lease_epoch, reason)"
        " SELECT subscription_id, MIN(partition_id), %(position)s, 0, 'commit'"
        " FROM penstock.leases GROUP BY subscription_id",
        {"position": position},
    )


def _two_readers(db: MySQLDatabase) -> Any:
    """Two leases: one commits now and then, the other never; the ledger's first slice is full."""
    own = db.connect()
    topic(own, partitions=2)
    database.call(own, "subscribe", subscription=READER, topics=[TOPIC], start="earliest")
    for position in range(1, 20):
        _commit(db, position)
    _cut(db, "positions")
    _commit(db, 20)
    return own


def _positions(own: Any) -> list[int]:
    rows = database.call(own, "position", subscription=READER, topic=TOPIC)
    return [int(row[1]) for row in rows]


def test_old_positions_are_carried_and_their_slice_goes(mysql_db: MySQLDatabase) -> None:
    """Guards: droppable_slices asks for the newest row of each lease; carry_positions moves it."""
    own = _two_readers(mysql_db)
    named = [row[:2] for row in database.call(own, "droppable_slices")]
    assert ("positions", "old") not in named
    (done,) = drop_slices(mysql_db.url)
    assert (done.parent, done.slice, done.state) == ("positions", "old", SliceState.DROPPED)
    assert _positions(own) == [20, 0]
    assert mysql_db.run("SELECT reason FROM penstock.positions ORDER BY id") == [
        ("commit",),
        ("start",),  # nothing was done there, so it is still known who has put it there
    ]


def test_without_it_a_position_is_lost(mysql_db: MySQLDatabase) -> None:
    """Mutant: every full slice of the ledger goes."""
    mysql_db.without_guard("droppable_slices", "s.last_id < first_position", "TRUE")
    mysql_db.without_guard("carry_positions", "stale > (last_full", "-1 < (last_full")
    own = _two_readers(mysql_db)
    drop_slices(mysql_db.url)
    assert database.call(own, "position", subscription=READER, topic=TOPIC)[1][1] is None


def test_a_lease_that_is_held_is_carried_later(mysql_db: MySQLDatabase) -> None:
    """Guard: SKIP LOCKED; a commit is about to write its position."""
    own = _two_readers(mysql_db)
    with open_transaction(mysql_db) as holder:
        sql(holder, "SELECT * FROM penstock.leases FOR UPDATE")
        assert database.call(own, "carry_positions", max_rows=10) == [(0,)]
    assert database.call(own, "carry_positions", max_rows=10) == [(1,)]


def test_what_was_written_while_a_slice_was_looked_at_stays(mysql_db: MySQLDatabase) -> None:
    """Guard: a slice is asked for again under a lock that ends its writers."""
    own = _two_readers(mysql_db)
    assert database.call(own, "carry_positions", max_rows=10) == [(1,)]
    with open_transaction(mysql_db) as late:
        sql(late, "DELETE FROM penstock.positions WHERE reason = 'start' LIMIT 1")
        sql(
            late,
            "INSERT INTO penstock.leases (subscription_id, partition_id) VALUES (1000000, 1)",
        )
        sql(
            late,
            "INSERT INTO penstock.positions"
            " (id, subscription_id, partition_id, position, lease_epoch, reason)"
            " SELECT MIN(id) - 1, 1000000, 1, 7, 0, 'start' FROM penstock.positions",
        )
        assert ("positions", "old") in [row[:2] for row in database.call(own, "droppable_slices")]
        assert mysql_storage.drop(own, "positions", "old").startswith("a transaction")
        late.commit()
    assert mysql_storage.drop(own, "positions", "old") == "somebody has come to need it"


def test_leases_are_remembered_for_a_week(mysql_db: MySQLDatabase) -> None:
    """Guard: the time of the newest row of a slice."""
    insert = (
        "INSERT INTO penstock.lease_history"
        " (subscription_id, partition_id, lease_epoch, holder, `change`, at)"
        " VALUES (1, 1, 1, 'c', 'acquired', UTC_TIMESTAMP(6) - INTERVAL %(days)s DAY)"
    )
    mysql_db.run(insert, {"days": 9})
    mysql_db.run(insert, {"days": 6})
    _cut(mysql_db, "lease_history")
    mysql_db.run(insert, {"days": 0})
    assert drop_slices(mysql_db.url) == []
    mysql_db.run("UPDATE penstock.lease_history SET at = at - INTERVAL 2 DAY")
    (done,) = drop_slices(mysql_db.url)
    assert (done.parent, done.state) == ("lease_history", SliceState.DROPPED)
    assert count(mysql_db, "lease_history") == 1


def _relayed(db: MySQLDatabase, position: int) -> list[tuple[Any, ...]]:
    """What clean does with a full slice of blocks, when the relay stands at a position."""
    own = db.connect()
    topic(own)
    database.call(own, "subscribe", subscription=READER, topics=[TOPIC], start="earliest")
    _commit(db, position)
    insert = (
        "INSERT INTO penstock.blocks"
        " (subscription_id, partition_id, first_sequence, last_sequence, lease_epoch)"
        " SELECT subscription_id, partition_id, {0}, {0}, 0 FROM penstock.leases"
    )
    for sequence in (1, 2, 3):
        db.run(insert.format(sequence))
    db.run(
        "INSERT INTO penstock.relay_failures (block_id, attempt, error)"
        " SELECT id, 1, 'x' FROM penstock.blocks"
    )
    _cut(db, "blocks")
    _cut(db, "relay_failures", "block_id")
    # The block of another relay.
    db.run(
        "INSERT INTO penstock.blocks"
        " (subscription_id, partition_id, first_sequence, last_sequence, lease_epoch)"
        " VALUES (1000000, 1, 1, 1, 0)"
    )
    return [(each.parent, each.state) for each in drop_slices(db.url) if each.parent != "positions"]


def test_blocks_and_their_failures_go_when_none_is_open(mysql_db: MySQLDatabase) -> None:
    """Guard: the newest block of a lease is open when it begins after its position."""
    assert _relayed(mysql_db, 3) == [
        ("blocks", SliceState.DROPPED),
        ("relay_failures", SliceState.DROPPED),
    ]


def test_an_open_block_stays(mysql_db: MySQLDatabase) -> None:
    """The other half: the block of sequence 3 is open when the relay stands at 2."""
    assert _relayed(mysql_db, 2) == []
