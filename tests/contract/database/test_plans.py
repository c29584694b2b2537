"""R1: the calls for events, passes and polls read only what they return, however long the log is.

The calls (tests.contract.hot_calls) are made on a log with a past (tests.contract.seeded), as it is
and analysed.  Each may read so many rows, far fewer than any table that grows holds; on PostgreSQL
the server says by which index.  EXPLAIN names the indexes too: on MySQL and MariaDB of every
statement of the procedures that the calls reach, on PostgreSQL of the queries that read the log.
The long form has 1,000,000 events.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock import database, log
from penstock.publishing import known_topics
from tests import servers
from tests.contract.databases import MySQLDatabase, PostgresDatabase, routines
from tests.contract.explained import accesses, plans_of_postgres, reachable, whole
from tests.contract.hot_calls import CALLS
from tests.contract.reads import Reads, counted
from tests.contract.seeded import TICKS, TOPICS, Seeded, seeded
from tests.kit.log import TOPIC
from tests.kit.proof import proves
from tests.support import PostgresServer

SMALL, FULL = 50_000, 1_000_000
#: Tables that are read whole: of one or a few rows, of tests without rights, of slices.
FEW = {"sequencer", "namespace_grants", "slices", "slice_rates", "subscriptions", "dedup_turns"}

VERBS = (
    "publish", "publish_packed", "publish_batch", "sequence", "fetch", "high_watermarks", "poll",
    "commit", "heartbeat", "heartbeats", "check_in", "release", "leave", "position", "open_block",
    "read_block", "relay_failure", "log_status", "unsequenced", "pressure_problem",
    "measure_pressure", "dead_letter_counts", "redrive",
)  # fmt: skip
#: A pass comes to them after a restore only.
RARE = {"open_era", "repair_pass"}
#: The indexes by which tables that grow are read.
INDEXES = {
    "events": {"PRIMARY"},
    "pending": {"PRIMARY"},
    "chunks": {"PRIMARY"},
    "delayed_events": {"PRIMARY"},
    "dedup_keys": {"PRIMARY"},
    "positions": {"PRIMARY", "positions_newest"},
    "leases": {"PRIMARY"},
    "consumers": {"PRIMARY"},
    "surveys": {"PRIMARY"},
    "active_partitions": {"PRIMARY"},
    "blocks": {"PRIMARY", "blocks_newest"},
    "relay_failures": {"PRIMARY", "relay_failures_attempt"},
    "dead_letters": {
        "PRIMARY",
        "dead_letters_redriven",
        "dead_letters_id",
        "dead_letters_parked",
    },
    "topics": {"PRIMARY", "topics_address"},
    "partitions": {"PRIMARY", "partitions_number"},
    "subscriptions": {"PRIMARY", "subscriptions_name"},
    "deleted_topics": {"PRIMARY"},
}
#: How the whole of an index or a table is read.
WHOLE = {"ALL", "index"}
#: Names, which do not grow with events: counted by the status, and looked through once a second.
WHOLE_NAMES = {
    ("log_status", "topics"),
    ("find_unsequenced", "topics"),
    ("log_status", "subscriptions"),
    ("measure_pressure", "topics"),
}
#: Of these there is no row here, and so no plan.
EMPTY = {"dedup_keys", "deleted_topics", "relay_failures"}

#: What EXPLAIN must notice: of PostgreSQL the statement that takes the index away; of MySQL and
#: MariaDB a routine, a table, and what to replace in its text, or else the index to hide.
EXPLAIN_MUTANTS = {
    "high_watermark": (
        "DROP INDEX penstock.chunks_1_sequence", "find_high_watermark", "chunks",
        "FROM chunks AS c", "FROM chunks AS c IGNORE INDEX (PRIMARY)",
    ),
    "current_position": (
        "DROP INDEX penstock.positions_newest",
        "current_position", "positions",
        "FORCE INDEX (positions_newest)", "IGNORE INDEX (PRIMARY, positions_newest)",
    ),
    "fresh_events": (
        "DROP INDEX penstock.events_tx", "forget_claimed", "pending",
        "STRAIGHT_JOIN pending AS p FORCE", "STRAIGHT_JOIN pending AS p IGNORE",
    ),
    "held_leases": (
        "ALTER TABLE penstock.leases DROP CONSTRAINT leases_pkey", "look_at_subscription",
        "subscriptions", "", "subscriptions_name",
    ),
}  # fmt: skip

Parameters = [
    pytest.param((engine, events), id=engine if events == SMALL else f"{engine}-{events}",
                 marks=[] if events == SMALL else pytest.mark.long)
    for events in (SMALL, FULL)
    for engine in servers.DATABASES
]  # fmt: skip


@pytest.fixture(scope="module", params=Parameters)
def past(request: pytest.FixtureRequest) -> Iterator[Seeded]:
    """A database with a past, for all tests of this module."""
    engine, events = request.param
    if engine != "postgres":
        shared: MySQLDatabase = request.getfixturevalue(f"installed_{engine}")
        shared.reset()
        yield seeded(shared, events)
        shared.close()
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    template: str = request.getfixturevalue("migrated_template")
    name = f"{template}_past"
    known_topics.clear()
    postgres = PostgresDatabase(engine, server.create(name, template))
    yield seeded(postgres, events)
    postgres.close()
    server.drop(name)


def _reads(own: Any, past: Seeded, name: str) -> Reads:
    with counted(own) as reads:
        answer = CALLS[name].act(own, past)
    return answer if isinstance(answer, Reads) else reads


def _prepared(own: Any, past: Seeded, name: str) -> None:
    """What the call needs; and it was made before, so the server knows the routines."""
    if name in {"sequence", "sequence_few", "nothing_to_sequence"}:
        CALLS["publish_batch"].act(own, past)
        own.commit()
        log.sequence(own)
        own.commit()
        if name != "nothing_to_sequence":
            CALLS["publish_batch"].act(own, past)
            own.commit()
        return
    CALLS[name].act(own, past)
    _end(own, name)


def _end(own: Any, name: str) -> None:
    """A block that stays open would be found again."""
    own.rollback() if name == "open_block" else own.commit()


def _measured(past: Seeded, name: str) -> Reads:
    own = past.db.connect(autocommit=False)
    try:
        _prepared(own, past, name)
        reads = _reads(own, past, name)
        _end(own, name)
    finally:
        own.close()
    return reads


def _judge(past: Seeded, name: str, reads: Reads) -> None:
    call = CALLS[name]
    assert reads.rows <= call.rows, f"{name} read {reads}"
    if past.is_postgres:
        assert reads.indexes >= call.indexes, f"{name} read {reads}"
        scanned = {table for table, rows in reads.scanned.items() if rows} - FEW
        assert scanned <= ({"topics"} if name == "status" else set()), f"{name} read {reads}"


def test_the_past_is_longer_than_what_a_call_may_read(past: Seeded) -> None:
    """Or the bounds below would say nothing."""
    for table in ("events", "chunks", "positions", "blocks", "lease_history", "dead_letters"):
        ((rows,),) = past.db.run(f"SELECT COUNT(*) FROM penstock.{table}")
        assert rows >= 10_000, table
    assert log.high_watermarks(past.db.connect(), TOPIC)[0] > 5_000
    assert min(TICKS, TOPICS) >= 300


@proves("R1")
@pytest.mark.parametrize("name", CALLS)
def test_never_analysed(past: Seeded, name: str) -> None:
    """Guards: the indexes, and the settings and orders that make the planner take them."""
    _judge(past, name, _measured(past, name))


@proves("R1")
@pytest.mark.parametrize("name", CALLS)
def test_analysed(past: Seeded, name: str) -> None:
    """The same with statistics, which tempt the planner to read small tables whole."""
    if name == next(iter(CALLS)):
        past.analyse()
    _judge(past, name, _measured(past, name))


def test_clean_reads_the_index_of_the_log_and_no_event(past: Seeded) -> None:
    """Looking for what can go is no part of the hot path: chunks and leases, a few times each.

    On MySQL and MariaDB once more for each slice of events; other tests have left some.
    """
    db, own = past.db, past.db.connect(autocommit=False)
    statement = "CALL penstock.droppable_slices()"
    if past.is_postgres:
        statement = "SELECT penstock.unneeded_slices(), penstock.next_merge()"
    database.execute(own, statement)
    with counted(own) as reads:
        database.execute(own, statement)
    own.rollback()
    ((chunks,),) = db.run("SELECT COUNT(*) FROM penstock.chunks")
    ((leases,),) = db.run("SELECT COUNT(*) FROM penstock.leases")
    times = 6
    if not past.is_postgres:
        times += db.run("SELECT COUNT(*) FROM penstock.slices WHERE parent = 'events'")[0][0]
    assert reads.rows <= times * (chunks + leases)
    assert not [name for name in (*reads.indexes, *reads.scanned) if name.startswith("events_pkey")]
    assert "events" not in reads.scanned


#: Without an index a call reads more than it may: of PostgreSQL the index is dropped, on MySQL and
#: MariaDB it is hidden, or the routine told to do without.
POSTGRES_MUTANTS = {
    "publish": "ALTER TABLE penstock.topics DROP CONSTRAINT topics_address",
    "sequence": "DROP INDEX penstock.events_tx",
    "high_watermarks": "DROP INDEX penstock.chunks_1_sequence",
    "check_in": "ALTER TABLE penstock.leases DROP CONSTRAINT leases_pkey",
    "position": "DROP INDEX penstock.positions_newest",
}
MYSQL_MUTANTS = {
    "publish": ("publish", "FROM topics AS t", "FROM topics AS t IGNORE INDEX (topics_address)"),
    "sequence": (
        "append_chunks",
        "FROM chunks AS c",
        "FROM chunks AS c IGNORE INDEX (PRIMARY)",
    ),
    "high_watermarks": (
        "high_watermarks",
        "FROM chunks AS c",
        "FROM chunks AS c IGNORE INDEX (PRIMARY)",
    ),
    "check_in": (
        "survey",
        "FORCE INDEX (positions_newest)",
        "IGNORE INDEX (PRIMARY, positions_newest)",
    ),
    "position": (
        "current_position",
        "FORCE INDEX (positions_newest)",
        "IGNORE INDEX (PRIMARY, positions_newest)",
    ),
}


@proves("R1", guard="the indexes")
@pytest.mark.parametrize("name", POSTGRES_MUTANTS)
def test_without_its_index_it_reads_too_much(past: Seeded, name: str) -> None:
    """Mutants: the index is gone, or not used."""
    if past.is_postgres:
        own = past.db.connect(autocommit=False)
        if name == "sequence":
            CALLS["publish_batch"].act(own, past)
            own.commit()
        database.execute(own, POSTGRES_MUTANTS[name])
        reads = _reads(own, past, name)
        own.rollback()
    else:
        function, old, new = MYSQL_MUTANTS[name]
        past.db.without_guard(function, old, new)
        reads = _measured(past, name)
        past.db.without_guard(function, old, old)
    with pytest.raises(AssertionError, match="read"):
        _judge(past, name, reads)


@proves("R1")
def test_every_statement_names_its_index(past: Seeded) -> None:
    """Guards: the indexes, and the hints, settings and orders by which they are taken."""
    if past.is_postgres:
        for name, (indexes, plan) in plans_of_postgres(past).items():
            assert indexes <= plan.indexes, f"{name}: {plan}"
            assert not {table for table, rows in plan.scanned.items() if rows} - FEW, name
        return
    known = {name: text for name, text in routines().items() if name not in RARE}
    found = accesses(past, {name: known[name] for name in reachable(known, VERBS)})
    assert whole(found, set(INDEXES)) <= WHOLE_NAMES
    taken = {(each.table, each.key) for each in found if each.table in INDEXES and each.key}
    assert {table for table, _ in taken} >= set(INDEXES) - EMPTY
    named = {(table, index) for table, indexes in INDEXES.items() for index in indexes}
    assert taken - named <= {("topics", "topics_namespace")}  # counted by the status


@proves("R1", guard="the indexes")
@pytest.mark.parametrize("name", EXPLAIN_MUTANTS)
def test_without_the_index_explain_says_so(past: Seeded, name: str) -> None:
    """Mutants: hidden from the optimiser or dropped, or the statement forbidden to use it."""
    mutant = EXPLAIN_MUTANTS[name]
    if past.is_postgres:
        indexes, plan = plans_of_postgres(past, mutant[0])[name]
        assert not indexes <= plan.indexes or any(plan.scanned.values()), plan
        return
    _, routine, table, old, new = mutant
    text = routines()[routine].replace(old, new) if old else routines()[routine]
    with _hidden(past, table, [] if old else [new]):
        found = accesses(past, {routine: text})
    assert (routine, table) in whole(found, {table})


@contextmanager
def _hidden(past: Seeded, table: str, indexes: list[str]) -> Iterator[None]:
    """Without these indexes, as far as the optimiser can see."""
    words = ("INVISIBLE", "VISIBLE") if past.db.engine == "mysql" else ("IGNORED", "NOT IGNORED")
    for index in indexes:
        past.db.run(f"ALTER TABLE penstock.{table} ALTER INDEX {index} {words[0]}")
    yield
    for index in indexes:
        past.db.run(f"ALTER TABLE penstock.{table} ALTER INDEX {index} {words[1]}")
