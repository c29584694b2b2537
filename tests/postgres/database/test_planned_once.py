"""What a hot path calls is planned once a session: it is PL/pgSQL, or a part of its caller's query.

Before version 18, PostgreSQL plans a SQL-language function anew at each call that it does not
inline.  A walk through the bodies of the catalogue, from the calls that programs make all the time,
asks the planner about each SQL-language function that it meets.  It holds on every version.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from penstock import database, log
from penstock.publishing.publish import publish, publish_batch
from penstock.records import Message
from penstock.subscriptions import queue, stream
from penstock.subscriptions.queue import Receipt
from tests.kit import queue as queue_kit
from tests.kit.log import Connection
from tests.kit.stream import SUBSCRIPTION, filled

#: What applications, consumers, queues and relays call for each event, batch, look or heartbeat.
HOT = (
    "topic_lookup", "publish", "publish_batch", "publish_columns", "publish_bulk", "stage_events",
    "publish_for_accounts", "publish_staged", "sequence", "announce", "wake_sequencer",
    "measure_pressure", "act_as", "fetch", "claim_sends",
    "fetch_plan", "high_watermarks", "join", "check_in", "held_leases", "heartbeat", "heartbeats",
    "poll", "commit", "position", "release", "leave", "claim", "lease_states", "mark_low_water",
    "suspects", "begin_attempt", "give_up", "parked_keys", "commit_parking", "poll_redriven",
    "finish_redriven", "fail_redriven", "receive", "acknowledge", "extend", "release_claims",
    "reject", "open_block", "open_cold_block", "dead_letters_between", "read_block",
    "relay_failure", "dead_letter", "sweep",
)  # fmt: skip

#: Where the walk ends, and why: nobody waits for these at each event.
COLD = {
    "open_era": "a pass comes to it after a restore",
    "restored_events": "as open_era",
    "repair_events": "as open_era, and a pass calls it once",
    "straddles": "of events from before a restore",
}


def bodies(connection: Connection) -> dict[str, list[tuple[str, str, bool, list[str]]]]:
    """Of each name: language, body, whether it returns rows, and the types of the arguments."""
    found: dict[str, list[tuple[str, str, bool, list[str]]]] = {}
    for name, *rest in connection.execute(
        "SELECT p.proname, l.lanname, p.prosrc, p.proretset,"
        " p.proargtypes::oid[]::regtype[]::text[]"
        " FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang"
        " WHERE p.pronamespace = 'penstock'::regnamespace"
    ):
        found.setdefault(name, []).append((rest[0], rest[1], rest[2], rest[3]))
    return found


def reached(connection: Connection) -> set[str]:
    """What the hot calls call, they themselves included."""
    functions = bodies(connection)
    todo, seen = list(HOT), set[str]()
    while todo:
        name = todo.pop()
        if name in seen or name in COLD:
            continue
        seen.add(name)
        for _, body, *_ in functions[name]:
            code = re.sub(r"--.*|'[^']*'", "", body)  # Hints name functions too.
            todo += functions.keys() & set(re.findall(r'\b(\w+)"?\s*\(', code))
    return seen


def is_inlined(connection: Connection, name: str, returns_rows: bool, types: list[str]) -> bool:
    """Whether the planner makes a call with parameters a part of the query."""
    binds = sql.SQL(", ").join(sql.SQL(f"${place}") for place, _ in enumerate(types, 1))
    shape = "SELECT * FROM {}({})" if returns_rows else "SELECT {}({})"
    call = sql.SQL(shape).format(sql.Identifier("penstock", name), binds)
    typed = f"asked ({', '.join(types)})" if types else "asked"
    given = f"asked ({', '.join(['NULL'] * len(types))})" if types else "asked"
    connection.execute(f"PREPARE {typed} AS {call.as_string(connection)}".encode())
    lines = connection.execute(f"EXPLAIN (VERBOSE, COSTS OFF) EXECUTE {given}".encode()).fetchall()
    connection.execute("DEALLOCATE asked")
    plan = "\n".join(line for (line,) in lines)
    return re.search(rf"\b{name}\(|Function Scan on (penstock\.)?{name}\b", plan) is None


@contextmanager
def _as_inside(connection: Connection) -> Iterator[None]:
    """The planner is asked as inside of a function of Penstock."""
    with connection.transaction(force_rollback=True):
        connection.execute("SET LOCAL search_path TO penstock, pg_temp")
        connection.execute("SET LOCAL plan_cache_mode TO force_generic_plan")
        yield


def planned_each_time(connection: Connection) -> set[str]:
    """SQL-language functions on a hot path that the planner does not inline."""
    functions = bodies(connection)
    with _as_inside(connection):
        return {
            name
            for name in reached(connection)
            for language, _, returns_rows, types in functions[name]
            if language == "sql" and not is_inlined(connection, name, returns_rows, types)
        }


def test_every_function_on_a_hot_path_is_planned_once(connection: Connection) -> None:
    """Guard: a function that is not inlined is PL/pgSQL; or it is named above with its reason."""
    assert planned_each_time(connection) == set()
    assert COLD.keys() <= bodies(connection).keys()
    assert {"is_quiet", "has_right", "undealt_parts", "read_log"} <= reached(connection)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (
            "is_paused",
            "(subscription_id bigint) RETURNS boolean LANGUAGE plpgsql STABLE",
            "SELECT s.paused_at IS NOT NULL FROM penstock.subscriptions AS s WHERE s.id = $1",
        ),
        (
            "has_unsure",
            "(owner_id bigint) RETURNS boolean LANGUAGE plpgsql STABLE",
            "SELECT EXISTS (SELECT FROM penstock.queue_keys AS k WHERE k.state = 'unsure')",
        ),
        # Inlined as it is. As IMMUTABLE it is not, because of what it calls.
        (
            "key_digest",
            "(key text) RETURNS bytea LANGUAGE sql IMMUTABLE",
            "SELECT sha256(convert_to(key_digest.key, 'UTF8'))",
        ),
    ],
)
def test_one_that_is_put_back_is_named(
    connection: Connection, name: str, old: str, new: str
) -> None:
    """Mutants: functions as they were before."""
    head = old.replace("plpgsql", "sql")
    connection.execute(f"CREATE OR REPLACE FUNCTION penstock.{name}{head} AS $$ {new} $$".encode())
    assert planned_each_time(connection) == {name}


def _ran_in_sql(connection: Connection) -> set[str]:
    """SQL-language functions that this transaction has run without inlining them."""
    return {
        name
        for (name,) in connection.execute(
            "SELECT f.funcname FROM pg_stat_xact_user_functions AS f"
            " JOIN pg_proc AS p ON p.oid = f.funcid JOIN pg_language AS l ON l.oid = p.prolang"
            " WHERE f.schemaname = 'penstock' AND l.lanname = 'sql' AND f.calls > 0"
        )
    }


def _a_day(own: Connection) -> Iterator[Any]:
    """Calls of a publisher, a sequencer, a consumer and a worker, each yielded before its end."""
    publish_batch(own, [Message(queue_kit.TOPIC, b"x", key=str(n % 3)) for n in range(12)])
    yield publish(own, "tests/stream", b"x", key="k")
    yield log.sequence(own, 1000)
    yield log.sequence(own)
    member = stream.join(own, SUBSCRIPTION, "one")
    yield member
    leases = stream.check_in(own, member)
    stream.heartbeat(own, member)
    yield
    found = [(lease, events) for lease, events in stream.poll(own, member, leases, 100) if events]
    yield stream.check_in(own, member, fresh=False)
    stream.commit(own, member, [(lease, events[-1].sequence) for lease, events in found])
    yield
    yield stream.held_leases(own, member)
    first, second, *others = yield from _received(own, 3)
    yield queue.extend(own, queue_kit.QUEUE, [first], visibility_seconds=30)
    yield queue.reject(own, queue_kit.QUEUE, [second], delay_seconds=0)
    yield queue.acknowledge(own, queue_kit.QUEUE, others)
    yield queue.release(own, queue_kit.QUEUE, (yield from _received(own, 1)))


def _received(own: Connection, events: int) -> Generator[Any, None, list[Receipt]]:
    """As queue.receive, which commits by itself: what has run can be asked before the COMMIT."""
    rows = database.call_events(
        own, "receive", subscription=queue_kit.QUEUE, max_events=events, visibility_seconds=None
    )
    yield rows
    assert len(rows) == events
    return [Receipt(claim=row[0], sequence=row[7], token=UUID(bytes=row[1])) for row in rows]


@pytest.mark.parametrize("order", ["none", "key"])
def test_nothing_that_runs_is_planned_at_each_call(
    connection: Connection, database_url: str, order: str
) -> None:
    """The same, told by the server's own count of the functions that really ran."""
    filled(connection, 2)
    queue_kit.filled(connection, 0)
    queue.configure(connection, queue_kit.QUEUE, order=order)
    with psycopg.connect(database_url) as own:
        own.execute("SET track_functions TO 'all'")
        own.commit()
        ran: set[str] = set()
        for _ in _a_day(own):
            ran |= _ran_in_sql(own)
            own.commit()
    assert ran == set()
