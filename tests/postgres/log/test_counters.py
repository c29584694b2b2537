"""Counters that a failover or a partial dump set back: no number is given a second time (S21).

Logical replication carries rows and no counters; a dump of single tables, and a hand, can set any
of them back.  Which there are the catalogue says, so that a new one is in here by itself.
"""

from __future__ import annotations

import psycopg
import pytest

from ops.retention.clean import drop_slices
from penstock import accounts, database, log
from penstock.errors import LogBehind
from penstock.log.histories import histories, reconcile
from penstock.subscriptions import queue, stream
from penstock.subscriptions.stream import Membership
from penstock.topics import names
from tests.guards import without_guard
from tests.kit.log import ANOTHER_CLUSTER, TOPIC, Connection, drain, put, texts, topic, value
from tests.kit.proof import proves
from tests.postgres.log.test_eras import _restored

READER = "reader"

#: They count something and number nothing.
COUNTS = {"round_robin", "rejected_commits"}

_COUNTERS = "SELECT counter::text, source::text, source_column, is_indexed FROM penstock.counters()"


def _used(connection: Connection) -> Membership:
    """A log whose counters have all been used: each has its row, or had one."""
    topic(connection)
    accounts.create_account(connection, "shop")
    topic(connection, name="tests/gone")
    names.delete_topic(connection, "tests/gone")
    stream.subscribe(connection, "gone", [TOPIC])
    stream.unsubscribe(connection, "gone")
    stream.subscribe(connection, READER, [TOPIC])
    for number in range(5):
        put(connection, f"old {number}")
        drain(connection)
    member = stream.join(connection, READER, "one")
    (lease,) = stream.check_in(connection, member)
    _open_block(connection, lease.partition_id, lease.lease_epoch)
    connection.execute(
        "SELECT penstock.dead_letter(%s, %s, %s, %s, 1, 'x')",
        (READER, "one", lease.partition_id, lease.lease_epoch),
    )
    stream.commit(connection, member, [(lease, 1)])
    queue.subscribe(connection, "emptied", [TOPIC])
    queue.purge(connection, "emptied")
    queue.subscribe(connection, "jobs", [TOPIC])
    held = queue.receive(connection, "jobs", 5)
    queue.reject(connection, "jobs", [held[0].receipt], delay_seconds=1000)
    connection.execute(
        "INSERT INTO penstock.retention_drops (partition_id, log_epoch, first_sequence,"
        " last_sequence, copies, policy_version, dropped_by) VALUES (0, 1, 1, 1, 1, 1, 'x')"
    )
    connection.execute(
        "SELECT penstock.request_backfill(%s, 'relay', 'jsonl:/nowhere', partition => 0,"
        " from_sequence => 1, to_sequence => 1)",
        (TOPIC,),
    )
    for row in (
        (
            "letter_tasks (subscription_id, action, filter, reason, requested_by, begun_below,"
            " next_below) VALUES (1, 'drop', '', '', 'x', 1, 1)"
        ),
        "letter_moves (subscription_id, expected, requested_by) VALUES (1, 1, 'x')",
        "relay_groups (name, ack_quorum) VALUES ('x', 1)",
        "payload_looks (by, person, subject) VALUES ('x', 'x', 'x')",
    ):
        connection.execute(f"INSERT INTO penstock.{row}".encode())
    return member


def _set_back(connection: Connection, counter: str) -> None:
    connection.execute(f"SELECT setval('penstock.{counter}', 1, false)".encode())


def _counters(connection: Connection) -> list[tuple[str, str, str, bool]]:
    """Every counter, with its table and column."""
    found = connection.execute(_COUNTERS).fetchall()
    return [
        (counter.removeprefix("penstock."), source.removeprefix("penstock."), column, indexed)
        for counter, source, column, indexed in found
    ]


def _by_reconcile(connection: Connection) -> None:
    reconcile(connection, "a test")


def _by_an_era(connection: Connection) -> None:
    connection.execute(ANOTHER_CLUSTER)
    log.sequence(connection)


@proves("S21 of counters")
def test_every_counter_is_known(connection: Connection) -> None:
    """Guard: counters() reads the catalogue; a sequence that it does not see is no number."""
    sequences = connection.execute(
        "SELECT relname FROM pg_class"
        " WHERE relkind = 'S' AND relnamespace = 'penstock'::regnamespace"
    ).fetchall()
    assert {name for (name,) in sequences} - {each[0] for each in _counters(connection)} == COUNTS


@proves("S21 of counters")
@pytest.mark.parametrize("raised", [_by_reconcile, _by_an_era])
def test_a_counter_that_was_set_back_is_raised(connection: Connection, raised: object) -> None:
    """Guard: open_history, which an era and a reconcile share, raises every counter."""
    _used(connection)
    for counter, source, column, _ in _counters(connection):
        highest = value(connection, f"SELECT max({column}) FROM penstock.{source}")
        assert highest, f"_used() has to give {counter} a number"
        _set_back(connection, counter)
        raised(connection)  # type: ignore[operator]
        assert value(connection, f"SELECT nextval('penstock.{counter}')") > highest, counter


@proves("S21 of counters")
def test_numbers_of_what_is_gone_are_not_given_again(connection: Connection) -> None:
    """Guard: numbers_elsewhere(); rows of a topic and a subscription outlive the two."""
    _used(connection)
    for counter, gone in (
        ("topics_id_seq", "SELECT max(topic_id) FROM penstock.deleted_topics"),
        ("subscriptions_id_seq", "SELECT max(subscription_id) FROM penstock.positions"),
    ):
        highest = value(connection, gone)
        _set_back(connection, counter)
        reconcile(connection, "a test")
        assert value(connection, f"SELECT nextval('penstock.{counter}')") > highest, counter


@proves("S21 of counters", guard="raise_counters in open_history")
def test_without_it_nothing_is_raised(connection: Connection) -> None:
    """Mutant: open_history leaves the counters."""
    without_guard(connection, "open_history", "PERFORM raise_counters(true);", "")
    with pytest.raises((AssertionError, psycopg.errors.UniqueViolation)):
        test_a_counter_that_was_set_back_is_raised(connection, _by_reconcile)


@proves("S21 of counters")
def test_upkeep_raises_what_is_set_back_meanwhile(connection: Connection) -> None:
    """Guards: is_other_era (events, chunks), ensure_slices: nobody has to notice a restore.

    Letters are numbered in each subscription, which its index sees to.
    """
    _used(connection)
    for counter, source, column, indexed in _counters(connection):
        highest = value(connection, f"SELECT max({column}) FROM penstock.{source}")
        _set_back(connection, counter)
        log.sequence(connection)
        log.ensure_slices(connection)
        if indexed or counter == "chunks_id":
            assert value(connection, f"SELECT nextval('penstock.{counter}')") > highest, counter
    assert [each.history for each in histories(connection)] == [1, 2, 3]


# What happens without.


def _after_a_merge(connection: Connection, url: str) -> list[str]:
    """The index of the log was merged, its counter begins anew, and events come."""
    topic(connection)
    for number in range(30):
        put(connection, f"old {number}")
        drain(connection)
    # The slice is full: a chunk stands after it.
    connection.execute("SELECT setval('penstock.chunks_id', 100000)")
    put(connection, "old 30")
    drain(connection)
    assert drop_slices(url)
    drop_slices(url)
    assert not value(connection, "SELECT count(*) FROM penstock.merges")
    _set_back(connection, "chunks_id")
    for number in range(3):
        put(connection, f"new {number}")
        drain(connection)
    return texts(connection)


#: As if nobody remembered what the last pass knew of the index.
NO_CHUNK_KNOWN = ("GREATEST(c.last_value, tick.chunk_id)", "c.last_value")
_EXPECTED = [*(f"old {number}" for number in range(31)), *(f"new {number}" for number in range(3))]


@proves("S21 of counters")
def test_sequences_are_given_once_though_the_index_begins_anew(
    connection: Connection, database_url: str
) -> None:
    """Guards: is_other_era compares the counter of chunks with that of the last pass, and
    sequence looks up to there.
    """
    assert _after_a_merge(connection, database_url) == _EXPECTED
    assert log.gaps(connection, TOPIC) == []


@proves("S21 of counters", guard="the counter of chunks in the tick")
def test_without_it_sequences_are_given_twice(connection: Connection, database_url: str) -> None:
    """Mutant: nobody remembers what the last pass knew."""
    without_guard(connection, "is_other_era", "c.last_value < tick.chunk_id", "false")
    without_guard(connection, "sequence", *NO_CHUNK_KNOWN)
    try:
        found = _after_a_merge(connection, database_url)
    except psycopg.errors.UniqueViolation:
        return
    assert (found, log.gaps(connection, TOPIC)) != (_EXPECTED, [])


def _published_at_once(connection: Connection, by: int, *, from_below: bool) -> list[str]:
    """Events that come after a restore and before the first pass, also with ids of gaps."""
    topic(connection)
    with pytest.raises(ZeroDivisionError), connection.transaction():
        put(connection, "rolled back")
        raise ZeroDivisionError
    for number in range(3):
        put(connection, f"old {number}")
    drain(connection)
    _restored(connection, by)
    if from_below:
        _set_back(connection, "events_id")
    put(connection, "early")
    drain(connection)
    put(connection, "late")
    drain(connection)
    return texts(connection)


@proves("S2 after a restore")
@pytest.mark.parametrize("by", [1_000_000, 40, 1, -20])
@pytest.mark.parametrize("from_below", [False, True])
def test_what_is_published_before_the_first_pass_is_sequenced(
    connection: Connection, by: int, from_below: bool
) -> None:
    """Guards: repair_events looks for ids above those of the last tick, whatever their numbers, and
    for rows that a transaction of the new cluster has written.
    """
    found = _published_at_once(connection, by, from_below=from_below)
    assert found == ["old 0", "old 1", "old 2", "early", "late"]


@proves("S2 after a restore", guard="doubtful_id, early_tx")
@pytest.mark.parametrize("from_below", [False, True])
def test_without_it_such_an_event_is_lost(connection: Connection, from_below: bool) -> None:
    """Mutant: only the old numbers of transactions are compared."""
    guard = "(o.doubtful_id, o.boundary_id)"
    without_guard(connection, "repair_events", guard, "(0, 0::bigint)")
    without_guard(connection, "repair_events", "e.tx >= o.early_tx", "false")
    found = _published_at_once(connection, 1_000_000, from_below=from_below)
    assert found == ["old 0", "old 1", "old 2", "late"]


@proves("S21 of counters")
def test_a_commit_that_nobody_would_find_is_refused(connection: Connection) -> None:
    """Guards: commit, move_position, open_block: a number below the newest row's is an error."""
    member = _used(connection)
    (lease,) = stream.held_leases(connection, member)
    _set_back(connection, "positions_id")
    with pytest.raises(LogBehind, match="positions_id"):
        stream.commit(connection, member, [(lease, 3)])
    with pytest.raises(LogBehind, match="positions_id"):
        stream.seek(connection, READER, TOPIC, 0, "earliest")
    _set_back(connection, "blocks_id")
    with pytest.raises(LogBehind, match="blocks_id"):
        _open_block(connection, lease.partition_id, lease.lease_epoch)
    log.ensure_slices(connection)
    _open_block(connection, lease.partition_id, lease.lease_epoch)
    stream.commit(connection, member, [(lease, 3)])
    assert stream.position(connection, READER, TOPIC) == {0: 3}


def _open_block(connection: Connection, partition_id: int, lease_epoch: int) -> None:
    fence = {"subscription": READER, "consumer": "one", "partition_id": partition_id}
    database.call(
        connection, "open_block", **fence, lease_epoch=lease_epoch, max_events=1, max_bytes=1
    )


@proves("S21 of counters", guard="commit's look at the counter")
def test_without_the_refusal_a_commit_is_gone(connection: Connection) -> None:
    """Mutant: the row is written after the newest one."""
    without_guard(connection, "commit", "OR stored.id > counter.given_id", "")
    member = _used(connection)
    (lease,) = stream.held_leases(connection, member)
    connection.execute("DELETE FROM penstock.positions WHERE id = 1")
    _set_back(connection, "positions_id")
    stream.commit(connection, member, [(lease, 3)])
    assert stream.position(connection, READER, TOPIC) == {0: 1}
