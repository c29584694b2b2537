"""Ledgers are trimmed slice by slice: ticks, positions, old leases, blocks and failures."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from ops.health import health
from ops.policies.file import Policies
from ops.retention.clean import drop_slices
from ops.retention.storage import SliceState
from penstock import log
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.subscriptions import stream
from penstock.topics import names
from tests.guards import without_guard
from tests.kit.cleaning import clean_unread
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
    wait_until,
)
from tests.kit.storage import cut, droppable, many, next_slice, slices, unneeded

READER = "reader"
NO_POLICIES = Policies(Path("."))


def _ticks(connection: Connection, count: int) -> None:
    for number in range(count):
        put(connection, str(number))
        drain(connection)


def test_old_ticks_go_and_the_sequencer_goes_on(connection: Connection, database_url: str) -> None:
    """Guard: the newest tick, and the newest that is older than every open transaction, stay."""
    topic(connection)
    cut(connection, "ticks", 5, 6)
    _ticks(connection, 13)
    dropped = drop_slices(database_url)
    assert [(each.slice, each.state) for each in dropped] == [
        ("ticks_1", SliceState.DROPPED),
        ("ticks_6", SliceState.DROPPED),
    ]
    assert slices(connection, "ticks")[0] == "ticks_11"
    _ticks(connection, 2)
    assert len(texts(connection)) == 15


def test_a_tick_that_open_transactions_are_compared_with_stays(
    connection: Connection, database_url: str
) -> None:
    """Guard: the horizon in first_needed; without that tick no event could be dropped meanwhile."""
    topic(connection)
    cut(connection, "ticks", 5, 6)
    _ticks(connection, 6)
    with open_transaction(database_url) as late:
        put(late, "late")
        _ticks(connection, 12)
        assert unneeded(connection, "ticks") == ["ticks_1"]
        late.commit()
    _ticks(connection, 1)
    assert unneeded(connection, "ticks") == ["ticks_1", "ticks_6", "ticks_11"]


def test_without_the_newest_tick_nothing_is_sequenced(connection: Connection) -> None:
    """Mutants: a slice need not be full, and every tick is old."""
    topic(connection)
    _ticks(connection, 3)
    without_guard(connection, "unneeded_slices", "OR s.last_id >= u.used THEN", "THEN")
    without_guard(connection, "unneeded_slices", "s.last_id < l.needed_id", "true")
    assert "ticks_1" in droppable(connection, "ticks")
    connection.execute("DROP TABLE penstock.ticks_1")
    put(connection, "lost")
    with pytest.raises(psycopg.Error):
        drain(connection)


# Positions.


def _a_quiet_and_a_busy_partition(connection: Connection) -> None:
    """Partition 0 was read once, partition 1 goes on; the first slice of positions is full."""
    topic(connection, 2)
    stream.subscribe(connection, READER, [TOPIC])
    cut(connection, "positions", 20)
    many(connection, 30, 0)
    many(connection, 30, 1)
    drain(connection)
    member = stream.join(connection, READER, "one")
    leases = stream.check_in(connection, member)
    stream.commit(connection, member, [(lease, 1) for lease in leases])
    busy = [lease for lease in leases if lease.partition == 1]
    next_slice(connection, "positions")
    for position in range(2, 6):
        stream.commit(connection, member, [(lease, position) for lease in busy])


def test_a_position_is_carried_and_its_slice_goes(
    connection: Connection, database_url: str
) -> None:
    """Guard: carry_positions; nothing of a position changes but its place in the ledger."""
    _a_quiet_and_a_busy_partition(connection)
    before = connection.execute("SELECT * FROM penstock.subscription_lag()").fetchall()
    assert [row[3] for row in before] == [1, 5]
    assert unneeded(connection, "positions") == []
    (done,) = drop_slices(database_url)
    assert (done.slice, done.state) == ("positions_1", SliceState.DROPPED)
    after = connection.execute("SELECT * FROM penstock.subscription_lag()").fetchall()
    assert [row[:6] for row in after] == [row[:6] for row in before]
    assert [row[7:] for row in after] == [row[7:] for row in before]
    assert value(connection, "SELECT count(*) FROM penstock.positions WHERE reason = 'carried'")


def _commit_around_a_carry(connection: Connection, url: str) -> list[int]:
    """The positions after a carry came while a commit was under way."""
    _a_quiet_and_a_busy_partition(connection)
    with open_transaction(url) as consumer:
        partition_id, lease_epoch = consumer.execute(
            "SELECT partition_id, lease_epoch FROM penstock.leases ORDER BY 1"
        ).fetchall()[0]
        consumer.execute(
            "SELECT penstock.commit(%s, 'one', ARRAY[%s::bigint], ARRAY[%s::bigint], '{7}')",
            (READER, partition_id, lease_epoch),
        )
        connection.execute("SELECT penstock.carry_positions()")
        consumer.commit()
    return list(stream.position(connection, READER, TOPIC).values())


def test_a_position_that_is_about_to_move_is_not_carried(
    connection: Connection, database_url: str
) -> None:
    """Guard: carry_positions locks the lease that commit locks."""
    assert _commit_around_a_carry(connection, database_url) == [7, 5]
    assert unneeded(connection, "positions") == ["positions_1"]


def test_without_the_lock_a_carried_position_moves_back(
    connection: Connection, database_url: str
) -> None:
    """Mutant: carry_positions only reads the leases."""
    without_guard(connection, "carry_positions", "FOR NO KEY UPDATE SKIP LOCKED", "")
    assert _commit_around_a_carry(connection, database_url) == [1, 5]


def _subscribe_late(connection: Connection, url: str, *, waits: bool) -> dict[int, int | None]:
    """A subscription whose transaction took its positions' ids before their slice was full."""
    topic(connection)
    cut(connection, "positions", 20)
    with open_transaction(url) as newcomer:
        stream.subscribe(newcomer, READER, [TOPIC])
        next_slice(connection, "positions")
        connection.execute("SELECT nextval('penstock.positions_id')")
        assert droppable(connection, "positions") == ([] if waits else ["positions_1"])
        if not waits:
            newcomer.commit()
            connection.execute("DROP TABLE penstock.positions_1")
        else:
            newcomer.commit()
    return dict(stream.position(connection, READER, TOPIC))


def test_a_position_that_is_not_committed_yet_keeps_its_slice(
    connection: Connection, database_url: str
) -> None:
    """Guard: condemned_tx against the oldest snapshot: who wrote into the slice has ended."""
    assert _subscribe_late(connection, database_url, waits=True) == {0: 0}
    assert droppable(connection, "positions") == []  # and now it is seen to be needed


def test_without_waiting_a_subscription_has_no_position(
    connection: Connection, database_url: str
) -> None:
    """Mutant: a condemned slice is dropped at once."""
    without_guard(
        connection,
        "droppable_slices",
        "WHERE s.condemned_tx < (SELECT oldest_snapshot())",
        "WHERE true",
    )
    assert _subscribe_late(connection, database_url, waits=False) == {0: None}


def test_positions_are_not_carried_for_nothing(connection: Connection) -> None:
    """Guard: as long as most of a slice would have to be carried, it stays."""
    topic(connection, 16)
    stream.subscribe(connection, READER, [TOPIC])
    cut(connection, "positions", 20)
    next_slice(connection, "positions")
    connection.execute("SELECT nextval('penstock.positions_id')")
    assert value(connection, "SELECT penstock.carry_positions()") == 0


# The rest.


def test_leases_are_remembered_for_a_week(connection: Connection, database_url: str) -> None:
    """Guard: the age in unneeded_slices."""
    cut(connection, "lease_history", 5)
    for age in ("8 days", "1 hour"):
        connection.execute(
            "INSERT INTO penstock.lease_history"
            " (subscription_id, partition_id, lease_epoch, holder, change, at)"
            " SELECT 1, 1, n, 'one', 'acquired', clock_timestamp() - %s::interval"
            " FROM generate_series(1, 5) AS n",
            (age,),
        )
    connection.execute("SELECT nextval('penstock.lease_history_id')")
    (done,) = drop_slices(database_url)
    assert (done.slice, done.state) == ("lease_history_1", SliceState.DROPPED)
    assert value(connection, "SELECT count(*) FROM penstock.lease_history") == 5


def _an_open_block(connection: Connection) -> None:
    topic(connection)
    many(connection, 30)
    drain(connection)
    stream.subscribe(connection, READER, [TOPIC])
    for parent in ("relay_failures", "blocks"):
        cut(connection, parent, 10)
    connection.execute(
        "WITH block AS (INSERT INTO penstock.blocks"
        " (subscription_id, partition_id, first_sequence, last_sequence, lease_epoch)"
        " SELECT subscription_id, partition_id, 1, 9, 1 FROM penstock.leases RETURNING id)"
        " INSERT INTO penstock.relay_failures (block_id, attempt, error)"
        " SELECT id, 1, 'refused' FROM block"
    )
    next_slice(connection, "blocks")
    connection.execute("SELECT nextval('penstock.blocks_id')")


def test_an_open_block_keeps_its_slice_and_its_failures(
    connection: Connection, database_url: str
) -> None:
    """Guard: find_open_block in first_needed; when its end is committed, both slices go."""
    _an_open_block(connection)
    assert drop_slices(database_url) == []
    connection.execute("SELECT penstock.seek(%s, %s, 0, '10')", (READER, TOPIC))
    assert {each.slice for each in drop_slices(database_url)} == {"blocks_1", "relay_failures_1"}
    assert value(connection, "SELECT count(*) FROM penstock.blocks") == 0


def test_without_it_an_open_block_is_forgotten(connection: Connection) -> None:
    """Mutant: a successor would cut the range anew, and a broker lose or double events."""
    without_guard(
        connection,
        "first_needed",
        "min((find_open_block(l.subscription_id, l.partition_id)).id)",
        "NULL::bigint",
    )
    _an_open_block(connection)
    assert droppable(connection, "blocks") == ["blocks_1"]


def test_past_slices_of_delayed_events_go(connection: Connection, database_url: str) -> None:
    """Guard: the cursor of the newest tick; what can still be due stays."""
    topic(connection)
    (first, *rest) = slices(connection, "delayed")
    assert unneeded(connection, "delayed") == []
    connection.execute(
        "UPDATE penstock.ticks SET due = (SELECT max(last_id) + 1 FROM penstock.slices"
        " WHERE slice = %s)",
        (first,),
    )
    (done,) = drop_slices(database_url)
    assert (done.slice, done.state) == (first, SliceState.DROPPED)
    assert slices(connection, "delayed") == rest


# How much is ready.


def test_storage_is_ready_for_seven_days_at_the_highest_rate(connection: Connection) -> None:
    """Guards: measure_slices, ids_wanted; few slices whatever the rate; health says when not."""
    assert value(connection, "SELECT max(days) FROM penstock.slices_ready()") is None
    connection.execute(
        "UPDATE penstock.slice_rates SET measured_at = measured_at - interval '1 hour'"
    )
    connection.execute("SELECT setval('penstock.events_id', 7200000)")  # 2,000 a second
    connection.execute("SELECT penstock.measure_slices()")
    days = value(connection, "SELECT days FROM penstock.slices_ready() WHERE parent = 'events'")
    assert days < 2
    assert [
        finding.what.split(" is ready")[0]
        for finding in health(connection, NO_POLICIES)
        if finding.check == "storage"
    ] == ["the table events"]
    log.ensure_slices(connection)
    days = value(connection, "SELECT days FROM penstock.slices_ready() WHERE parent = 'events'")
    assert 7 <= days < 14
    assert len(slices(connection, "events")) < 20
    assert [each for each in health(connection, NO_POLICIES) if each.check == "storage"] == []


# Nothing leaves dead tuples that grow with the events.


def _changed_rows(connection: Connection, url: str, events: int) -> dict[str, int]:
    """Rows updated or deleted in each table while so many events go all the way."""
    address = f"tests/work{events}"
    names.create_topic(connection, address, 1, create_namespaces=True)
    subscription = f"reader{events}"
    stream.subscribe(connection, subscription, [address])
    connection.execute("SELECT penstock.set_retention(%s, 0, 1, targets => '{disk}')", (address,))
    before = _counters(connection, 0)
    for _ in range(4):
        publish_batch(connection, [Message(address, b"x") for _ in range(events // 4)])
        drain(connection, max(events // 8, 10))
    member = stream.join(connection, subscription, "one")
    (lease,) = stream.check_in(connection, member)
    for done in range(events // 10, events + 1, events // 10):
        found = stream.poll(connection, member, [lease], max_events=events // 10)
        assert len(found[0][1]) == events // 10
        stream.commit(connection, member, [(lease, done)])
    assert len(read(connection, 0, address)) == events
    connection.execute(
        "SELECT penstock.record_copy(%(topic)s, 0, e.log_epoch, 'disk', '/', e.event_count,"
        " e.checksum) FROM penstock.seal(%(topic)s, 0, 100000, 0) AS e",
        {"topic": address},
    )
    clean_unread(connection, address)
    next_slice(connection, "chunks")
    put(connection, "next", name=address)
    drain(connection)
    drop_slices(url)
    after = _counters(connection, before["events"] + events)
    return {name: after[name] - before.get(name, 0) for name in after if name != "events"}


def _counters(connection: Connection, events: int) -> dict[str, int]:
    """Changed rows of each table since it was made; under 'events' the events inserted."""
    flush = value(connection, "SELECT to_regproc('pg_stat_force_next_flush') IS NOT NULL")

    def read_counters() -> dict[str, int]:
        if flush:
            connection.execute("SELECT pg_stat_force_next_flush()")
        found = connection.execute(
            "SELECT regexp_replace(relname, '_[0-9]+$', ''), sum(n_tup_upd + n_tup_del)::bigint,"
            " sum(n_tup_ins)::bigint FROM pg_stat_all_tables WHERE schemaname = 'penstock'"
            " GROUP BY 1"
        ).fetchall()
        counted = {name: changed for name, changed, _ in found if name != "events"}
        inserted = sum(rows for name, _, rows in found if name == "events")
        return counted | {"events": int(inserted)}

    wait_until(lambda: read_counters()["events"] >= events, "the counters are written")
    return read_counters()


def test_no_dead_tuple_grows_with_the_events(connection: Connection, database_url: str) -> None:
    """Guard: ledgers are appended to, and trimmed by the slice; no row changes per event."""
    small = _changed_rows(connection, database_url, 400)
    large = _changed_rows(connection, database_url, 8_000)
    grown = {name: (small[name], large[name]) for name in large if large[name] > small[name] + 2}
    assert grown == {}
