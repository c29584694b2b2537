"""The plans of the queries for every tick, poll and commit, on tables never analysed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from penstock import log
from penstock.subscriptions import stream
from tests.guards import nodes, plan_of, without_guard
from tests.kit.log import TOPIC, Connection, drain, put, topic, value
from tests.kit.proof import proves
from tests.kit.storage import many, next_slice
from tests.support import PostgresServer

EVENTS = 200_000
WAITING = 50

FILL = """
    INSERT INTO penstock.events (partition_id, event_id, type, content_type, payload)
    SELECT (t.id << 16) | (n %% 4), gen_random_uuid(), '', '', 'x'
    FROM generate_series(1, %s) AS n CROSS JOIN penstock.topics AS t
"""


@pytest.fixture(scope="module")
def long_log(postgres_server: PostgresServer, migrated_template: str) -> Iterator[Connection]:
    """200,000 sequenced events in slices without statistics, and a few that wait for a tick."""
    name = f"{migrated_template}_long"
    url = postgres_server.create(name, migrated_template)
    with psycopg.connect(url, autocommit=True) as connection, psycopg.connect(url) as open_one:
        connection.execute("SET synchronous_commit = off")
        for parent in ("events", "positions"):
            for (slice_name,) in connection.execute(
                "SELECT slice FROM penstock.slices WHERE parent = %s", (parent,)
            ).fetchall():
                connection.execute(
                    f"ALTER TABLE penstock.{slice_name} SET (autovacuum_enabled = off)".encode()
                )
        topic(connection, 4)
        stream.subscribe(connection, "a", [TOPIC])
        put(open_one, "open")
        connection.execute(FILL, (EVENTS,))
        while log.sequence(connection, 50_000).more:
            pass
        for number in range(WAITING):
            put(connection, str(number))
        put(open_one, "still open")
        yield connection
    postgres_server.drop(name)


def _snapshots(connection: Connection) -> dict[str, Any]:
    row = connection.execute(
        "SELECT t.target::text, pg_current_snapshot()::text FROM penstock.ticks AS t"
        " ORDER BY t.id DESC LIMIT 1"
    ).fetchone()
    assert row is not None
    base, target = row
    assert base.split(":")[2], "a transaction is open in the base"
    return {"base": base, "target": target, "last_id": 0}


def _touched(plan: dict[str, Any]) -> int:
    """Rows that the executed scans of a plan have looked at."""
    return sum(
        int((each["Actual Rows"] + each.get("Rows Removed by Filter", 0)) * each["Actual Loops"])
        for each in nodes(plan)
        if "Relation Name" in each
    )


def _indexes(plan: dict[str, Any]) -> set[str]:
    return {each["Index Name"] for each in nodes(plan) if "Index Name" in each}


def _plan_of_a_tick(connection: Connection, *, analysed: bool) -> dict[str, Any]:
    assert value(connection, "SELECT count(*) FROM pg_stats WHERE tablename ~ '^events_'") == 0
    if analysed:
        connection.execute("ANALYZE penstock.events")
    return plan_of(
        connection, "fresh_events", settings_of="append_chunks", **_snapshots(connection)
    )


@pytest.mark.parametrize("analysed", [False, True])
def test_a_tick_starts_from_the_index_on_tx(long_log: Connection, analysed: bool) -> None:
    """Guard: no condition and no order that the primary key could serve."""
    with long_log.transaction(force_rollback=True):
        plan = _plan_of_a_tick(long_log, analysed=analysed)
    assert all(name.endswith("_tx_idx") for name in _indexes(plan)), _indexes(plan)
    assert _touched(plan) <= 3 * WAITING


@proves("S2 over a counter that jumps", how="by the sequencer itself")
@pytest.mark.parametrize("analysed", [False, True])
@pytest.mark.parametrize("last_id", [1, EVENTS])
def test_whether_a_tick_has_lower_ids_is_told_by_the_index_on_tx(
    long_log: Connection, analysed: bool, last_id: int
) -> None:
    """Guard: no condition that the primary key could serve; a pass asks it of each tick."""
    snapshots = _snapshots(long_log) | {"after_id": last_id, "last_horizon": "1000000"}
    del snapshots["last_id"]
    with long_log.transaction(force_rollback=True):
        if analysed:
            long_log.execute("ANALYZE penstock.events")
        plan = plan_of(long_log, "has_lower_ids", **snapshots)
    assert all(name.endswith("_tx_idx") for name in _indexes(plan)), _indexes(plan)
    assert _touched(plan) <= 3 * WAITING


@proves("S2 over a counter that jumps", how="by a pass over few")
@pytest.mark.parametrize("analysed", [False, True])
def test_a_pass_over_few_reads_by_the_index_on_tx(long_log: Connection, analysed: bool) -> None:
    """Guards: no condition that the primary key could serve; a late one is looked up by itself."""
    newest = value(long_log, "SELECT max(id) FROM penstock.events")
    given = _snapshots(long_log)
    still_open = given["base"].split(":")[2]
    assert still_open, "older than all that was sequenced since"
    given |= {
        "last_horizon": "1000000", "late": f"{{{still_open}}}",
        "after_id": newest, "boundary_id": 0, "max_events": 1000,
        "newest_chunk": 1_000_000, "due": 0, "due_id": 0, "now_due": 0,
    }  # fmt: skip
    del given["last_id"]
    with long_log.transaction(force_rollback=True):
        if analysed:
            long_log.execute("ANALYZE penstock.events")
        plan = plan_of(long_log, "append_few", **given)
    used = [name for name in _indexes(plan) if name.startswith("events")]
    assert used and all(name.endswith("_tx_idx") for name in used), used
    assert _touched(plan) <= 3 * WAITING


def test_with_a_condition_on_the_bare_id_it_walks_the_primary_key(long_log: Connection) -> None:
    """Mutant: `e.id > last_id`, as it stood at first; every tick read the whole table."""
    with long_log.transaction(force_rollback=True):
        without_guard(
            long_log,
            "fresh_events",
            "WHERE pg_visible_in_snapshot(x.tx, fresh_events.target)))\n      AND e.id + 0 >",
            "WHERE pg_visible_in_snapshot(x.tx, fresh_events.target)))\n      AND e.id >",
        )
        plan = _plan_of_a_tick(long_log, analysed=True)
    assert _touched(plan) > EVENTS / 2


def test_a_pass_over_a_backlog_reads_what_it_numbers(long_log: Connection) -> None:
    """Guard: near_events, a bounded walk along the primary key."""
    row = long_log.execute(
        "SELECT base::text, target::text, last_id FROM penstock.ticks WHERE NOT complete"
        " ORDER BY id LIMIT 1"
    ).fetchone()
    assert row is not None
    given = dict(zip(("base", "target", "last_id"), row, strict=True))
    plan = plan_of(long_log, "near_events", settings_of="append_chunks", **given, max_events=1000)
    assert _touched(plan) == 1000


def test_late_ones_are_found_by_their_transactions(long_log: Connection) -> None:
    """Guard: first_id_of's order by no index of the primary key."""
    newest = value(long_log, "SELECT max(tx::text::bigint)::text FROM penstock.events")
    plan = plan_of(long_log, "first_id_of", transactions=f"{{{newest}}}")
    assert all(name.endswith("_tx_idx") for name in _indexes(plan)), _indexes(plan)


def test_the_head_of_a_partition_is_looked_up_once(long_log: Connection) -> None:
    """Guard: heads is materialised; inlined, it ran for every event of the pass."""
    tick, base, target = long_log.execute(
        "SELECT n::text, n.base::text, n.target::text FROM penstock.ticks AS t"
        " CROSS JOIN LATERAL penstock.next_tick(t, NULL) AS n ORDER BY t.id DESC LIMIT 1"
    ).fetchall()[0]
    given = {"tick": tick, "base": base, "target": target, "max_events": 1000, "now_due": 0}
    given["newest_chunk"] = value(long_log, "SELECT max(chunk_id) FROM penstock.chunks")
    chunks = [
        each
        for each in nodes(plan_of(long_log, "append_chunks", **given))
        if each.get("Relation Name") == "chunks_1" and "Index Name" in each
    ]
    assert 1 <= sum(each["Actual Loops"] for each in chunks) <= 4


def test_a_read_descends_once_and_probes_each_event(long_log: Connection) -> None:
    """Guard: read_log's settings and its bounds."""
    partition_id = value(long_log, "SELECT min(id) FROM penstock.partitions")
    plan = plan_of(
        long_log, "read_log", partition_id=partition_id, from_sequence=25_500, max_events=100
    )
    assert _touched(plan) <= 1000
    assert {name.rpartition("_")[2] for name in _indexes(plan)} == {"pkey", "sequence"}


LONG_READ = 30_000


def _long_read(connection: Connection) -> tuple[int, int]:
    """How often a long read looks into a slice of the events, and how many buffers it reads."""
    partition_id = value(connection, "SELECT min(id) FROM penstock.partitions")
    plan = plan_of(
        connection, "read_log", settings_of="fetch", partition_id=partition_id, from_sequence=1,
        max_events=LONG_READ,
    )  # fmt: skip
    assert plan["Actual Rows"] == LONG_READ
    slices = [n for n in nodes(plan) if n.get("Relation Name", "").startswith("events_")]
    assert len({each["Relation Name"] for each in slices}) > 3
    return sum(each["Actual Loops"] for each in slices), _buffers(plan)


def test_a_long_read_looks_into_a_slice_for_its_own_events(long_log: Connection) -> None:
    """Guard: the pieces of read_log.  Before version 17 each id of a list costs a descent, in
    every slice that the list is looked up in."""
    looks, buffers = _long_read(long_log)
    assert LONG_READ / 1000 <= looks <= 1.5 * LONG_READ / 1000
    assert buffers <= 5 * LONG_READ


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("/ 1000", "/ 1000000"),
        ("s.id = ANY (b.ids) AND s.id >= b.lowest AND", "s.id = ANY (b.ids) AND"),
    ],
)
def test_without_pieces_or_bounds_it_looks_otherwise(
    long_log: Connection, old: str, new: str
) -> None:
    """Mutants: one list for all slices; pieces that are looked up in older slices too."""
    with long_log.transaction(force_rollback=True):
        without_guard(long_log, "read_log", old, new)
        looks, _ = _long_read(long_log)
    assert not LONG_READ / 1000 <= looks <= 1.5 * LONG_READ / 1000


def test_a_position_is_one_probe_from_the_end_of_the_ledger(long_log: Connection) -> None:
    """Guard: the index on (subscription, partition, id)."""
    long_log.execute(
        "INSERT INTO penstock.positions"
        " (subscription_id, partition_id, position, lease_epoch, reason)"
        " SELECT l.subscription_id, l.partition_id, n, 1, 'commit'"
        " FROM penstock.leases AS l CROSS JOIN generate_series(1, 5000) AS n"
    )
    row = long_log.execute(
        "SELECT subscription_id, partition_id FROM penstock.leases LIMIT 1"
    ).fetchone()
    assert row is not None
    plan = plan_of(long_log, "current_position", subscription_id=row[0], partition_id=row[1])
    assert _touched(plan) == 1


def test_a_high_watermark_is_one_probe(long_log: Connection) -> None:
    """Guard: the primary key of the index of the log, from its end."""
    partition_id = value(long_log, "SELECT min(id) FROM penstock.partitions")
    assert _touched(plan_of(long_log, "high_watermark", partition_id=partition_id)) == 1


def _buffers(plan: dict[str, Any]) -> int:
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.fixture(scope="module")
def log_in_slices(postgres_server: PostgresServer, migrated_template: str) -> Iterator[Connection]:
    """20 partitions whose index of the log stands in four slices, two of them full."""
    name = f"{migrated_template}_sliced"
    url = postgres_server.create(name, migrated_template)
    with psycopg.connect(url, autocommit=True) as connection:
        topic(connection, 20)
        for _ in range(3):
            for _ in range(3):
                for partition in range(20):
                    many(connection, 100, partition)
                drain(connection)
            next_slice(connection, "chunks")
        many(connection, 1)
        drain(connection)
        yield connection
    postgres_server.drop(name)


@pytest.mark.parametrize(
    ("function", "given", "most"),
    [
        ("high_watermark", {}, 12),
        ("sequenced_at_of", {"sequence": 500}, 12),
        ("read_log", {"from_sequence": 450, "max_events": 10}, 150),
    ],
)
def test_a_look_up_descends_once_into_each_slice(
    log_in_slices: Connection, function: str, given: dict[str, Any], most: int
) -> None:
    """Guard: the unique index of each slice of the index of the log; few buffers."""
    partition_id = value(log_in_slices, "SELECT max(id) FROM penstock.partitions")
    plan = plan_of(log_in_slices, function, partition_id=partition_id, **given)
    in_chunks = [n for n in nodes(plan) if n.get("Relation Name", "").startswith("chunks_")]
    assert in_chunks
    assert {each["Node Type"] for each in in_chunks} <= {"Index Scan", "Index Only Scan"}
    assert all(each["Index Name"].endswith("_sequence") for each in in_chunks)
    assert _buffers(plan) <= most


def test_without_its_index_a_slice_is_read_whole(log_in_slices: Connection) -> None:
    """Mutant: a slice without the unique index."""
    partition_id = value(log_in_slices, "SELECT max(id) FROM penstock.partitions")
    with log_in_slices.transaction(force_rollback=True):
        log_in_slices.execute("DROP INDEX penstock.chunks_1_sequence")
        plan = plan_of(log_in_slices, "high_watermark", partition_id=partition_id)
    assert "Seq Scan" in {each["Node Type"] for each in nodes(plan)}


def test_the_waiting_ones_get_their_sequences(long_log: Connection) -> None:
    """The plans belong to queries that work."""
    assert drain(long_log) == WAITING
    assert log.gaps(long_log, TOPIC) == []
