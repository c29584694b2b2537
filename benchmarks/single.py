"""One event for each commit, by eight clients of pgbench. The peer is an INSERT of the same row."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.bench_database import BenchDatabase
from benchmarks.events import CONTENT_TYPE, KEYS, PAYLOAD_BYTES, TYPE
from benchmarks.measure import Aim, Case, Settings
from benchmarks.pgbench import initialise, run_script

SINGLE, TPCB = 20_000, 10_000
SCALE, SMALL_SCALE = 20, 1

#: Every client chooses a key for each event.
KEY = rf"\set key random(1, {KEYS})" + "\n"
_PAYLOAD = "'\\x" + "5a" * PAYLOAD_BYTES + "'::bytea"
_HEADERS = """'{"source": "bench", "number": 7}'::jsonb"""

#: What pgbench calls <builtin: TPC-B (sort of)>, with room for one more statement.
_TPCB = r"""
\set aid random(1, 100000 * :scale)
\set bid random(1, 1 * :scale)
\set tid random(1, 10 * :scale)
\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime)
VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
{}
END;
"""


def cases(bench: BenchDatabase, settings: Settings) -> Iterator[Case]:
    """The statement alone, and as one statement of a TPC-B transaction."""
    publish, insert = publish_statement(bench.new_topic()), insert_statement(bench.new_bare_table())
    rows = settings.amount(SINGLE)
    yield Case(
        "pgbench_single", rows, 1, _script(bench, KEY + publish, rows),
        _script(bench, KEY + insert, rows), "INSERT, 8 clients", Aim(ratio=0.7),
    )  # fmt: skip
    rows = settings.amount(TPCB)
    scale = SCALE if settings.rows is None else SMALL_SCALE
    initialise(bench, scale)
    ours = _script(bench, KEY + _TPCB.format(publish), rows, scale)
    for name, statement, against, aim in (
        ("pgbench_tpcb", insert, "TPC-B with an INSERT", Aim(ratio=0.9)),
        ("pgbench_tpcb_plain", "", "TPC-B with nothing more", None),
    ):
        peer = _script(bench, KEY + _TPCB.format(statement), rows, scale)
        yield Case(name, rows, 1, ours, peer, against, aim)


def publish_statement(topic: str) -> str:
    """One event; ``:key`` is a variable of the script."""
    return (
        f"SELECT penstock.publish(topic => '{topic}', payload => {_PAYLOAD}, "
        f"key => 'account-' || :key, type => '{TYPE}', content_type => '{CONTENT_TYPE}', "
        f"headers => {_HEADERS});\n"
    )


def payload_script(topic: str) -> str:
    """A whole script that publishes one event with nothing but topic and payload."""
    return f"SELECT penstock.publish(topic => '{topic}', payload => {_PAYLOAD});\n"


def insert_statement(table: str) -> str:
    """The same row.  The server makes its id, as for the event."""
    return (
        f"INSERT INTO {table} ({BenchDatabase.bare_columns}) VALUES (uuidv7(), 'account-' || :key, "
        f"'{TYPE}', '{CONTENT_TYPE}', {_HEADERS}, {_PAYLOAD});\n"
    )


def publish_script(topic: str) -> str:
    """A whole script that publishes one event."""
    return KEY + publish_statement(topic)


def _script(
    bench: BenchDatabase, script: str, rows: int, scale: int | None = None
) -> Callable[[], float]:
    def run() -> float:
        if scale is not None:
            bench.connection.execute("VACUUM pgbench_branches, pgbench_tellers")
        bench.settle()
        return run_script(bench, script, rows, scale=scale or 1)

    return run
