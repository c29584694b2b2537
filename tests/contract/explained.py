"""EXPLAIN of what the routines of the database run.

MySQL and MariaDB tell no plan of a statement that a procedure runs.  So its text is cut out of the
source and its variables are replaced by values of their types; nothing else is changed.  On
PostgreSQL tests.guards.plan_of does the same for functions of one query.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

from penstock import database, log
from penstock.publishing.publish import publish
from penstock.subscriptions import stream
from tests.contract.reads import Reads, relation
from tests.contract.seeded import Seeded
from tests.guards import nodes, plan_of
from tests.kit.log import TOPIC
from tests.kit.stream import SUBSCRIPTION

_COMMENT = re.compile(r"--.*$", re.MULTILINE)
_STATEMENT = re.compile(r"(?<![\w`.])(SELECT|INSERT|UPDATE|DELETE|REPLACE|WITH)\s")
_PARAMETER = re.compile(r"(?:INOUT|OUT|IN)?\s*`?(\w+)`?\s+([A-Z]+)")
_DECLARE = re.compile(r"\bDECLARE\s+([\w\s,`]+?)\s+([A-Z]{3,})\b(?!\s*HANDLER)")
_INTO = re.compile(r"\bINTO\s+\w+(?:,\s*\w+)*(?=\s*(?:\bFROM\b|$))")
_COLUMNS = re.compile(r"(INSERT(?: IGNORE)?|REPLACE) INTO \w+ \([^)]*\)")
_ALIAS = re.compile(r"(?:FROM|JOIN|UPDATE|INTO)\s+`?(\w+)`?(?:\s+AS\s+(\w+))?")
_CALL = re.compile(r"\bCALL (\w+)|\b(high_watermark|current_position|first_chunk)\(")
#: Behind a name of these it is a column that is being declared.
_TYPES = r"(?:BIGINT|INT|LONGTEXT|JSON|VARCHAR|CHAR|DATETIME|DOUBLE|FOR\s+ORDINALITY)\b"

_VALUES = {
    "BIGINT": "1", "INT": "1", "SMALLINT": "1", "DOUBLE": "1e0", "BOOLEAN": "FALSE",
    "VARCHAR": "'x'", "LONGTEXT": "'x'", "TEXT": "'x'", "CHAR": "'x'", "JSON": "'[1]'",
    "DATETIME": "UTC_TIMESTAMP(6)", "BINARY": "'x'", "LONGBLOB": "'xxxxxxxx'",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Access:
    """How a statement of a routine reads one table."""

    routine: str
    table: str
    how: str
    key: str | None


def reachable(routines: dict[str, str], verbs: tuple[str, ...]) -> list[str]:
    """The routines that some of them call, and they themselves."""
    found: list[str] = []
    todo = list(verbs)
    while todo:
        name = todo.pop()
        if name in routines and name not in found:
            found.append(name)
            todo += [a or b for a, b in _CALL.findall(routines[name])]
    return found


def _explained(
    connection: Any, routine: str, text: str, values: dict[str, str], *, traditional: bool
) -> Iterator[Access]:
    """How each statement of a routine reads its tables."""
    word = "EXPLAIN FORMAT=TRADITIONAL" if traditional else "EXPLAIN"
    for statement in _statements(text, values):
        tables = {alias or table: table for table, alias in _ALIAS.findall(statement)}
        tables |= {"c": "chunks", "l": "places"} if "logged_" in statement else {}
        for row in database.execute(connection, f"{word} {statement.replace('%', '%%')}"):
            kind, name = row[1:3]
            how, key = (row[4], row[6]) if traditional else (row[3], row[5])
            if name is not None and not name.startswith("<") and kind != "INSERT":
                yield Access(routine, tables.get(name, name), how, key)


def _statements(text: str, values: dict[str, str]) -> Iterator[str]:
    text = _COMMENT.sub("", text)
    header, _, body = text.partition("BEGIN")
    variables = _variables(header, body)
    given = {name: values.get(name, _VALUES[kind]) for name, kind in variables.items()}
    for piece in body.split(";"):
        found = _STATEMENT.search(piece)
        if found is None or "CREATE TEMPORARY" in piece:
            continue
        statement = _cut(piece, found.start())
        if found[1] in {"SELECT", "WITH"}:
            statement = _INTO.sub("", statement)
        yield _filled(statement, given)


def _variables(header: str, body: str) -> dict[str, str]:
    found = {}
    inside = header[header.index("(") + 1 : header.rindex(")")] if "(" in header else ""
    for each in re.split(r",(?![^(]*\))", inside):
        if (parameter := _PARAMETER.search(each)) and parameter[2] in _VALUES:
            found[parameter[1]] = parameter[2]
    for names, kind in _DECLARE.findall(body):
        if kind in _VALUES:
            found |= dict.fromkeys((name.strip(" `\n") for name in names.split(",")), kind)
    return found


def _cut(piece: str, start: int) -> str:
    """From the keyword to the end, or to the parenthesis in which it stands."""
    depth = 0
    for place, character in enumerate(piece[start:], start):
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return piece[start:place].strip()
    return piece[start:].strip()


def _filled(statement: str, given: dict[str, str]) -> str:
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\x00{len(kept) - 1}\x00"

    statement = _COLUMNS.sub(keep, statement)
    for name, value in given.items():
        place = rf"(?<![\w.`@'])(?<!AS )(`?){name}\1(?![\w(`'.])(?!\s+{_TYPES})"
        statement = re.sub(place, value.replace("\\", r"\\"), statement)
    return re.sub(r"\x00(\d+)\x00", lambda found: kept[int(found[1])], statement)


def accesses(past: Seeded, texts: dict[str, str]) -> list[Access]:
    """How the statements of these routines read their tables."""
    own = past.db.connect()
    # The tables of the session are there once a pass and a check-in were made.
    publish(own, TOPIC, b"x", key="k")
    log.sequence(own)
    database.call(own, "settle_blocks")
    stream.check_in(own, past.member)
    ((subscription,),) = past.db.run(
        f"SELECT id FROM penstock.subscriptions WHERE name = '{SUBSCRIPTION}'"
    )
    database.execute(own, "USE penstock")
    partition = str(past.leases[0].partition_id)
    ids = ("of_partition", "part_id", "source", "partition_id")
    values = dict.fromkeys(ids, partition) | {"owner_id": str(subscription)}
    found = [
        access
        for name, text in texts.items()
        for access in _explained(own, name, text, values, traditional=past.db.engine == "mysql")
    ]
    own.close()
    return found


def whole(found: list[Access], tables: set[str]) -> set[tuple[str, str]]:
    """Which routines read which of these tables from one end to the other."""
    return {
        (each.routine, each.table)
        for each in found
        if each.table in tables and each.how in {"ALL", "index"}
    }


def plans_of_postgres(past: Seeded, mutant: str = "") -> dict[str, tuple[set[str], Reads]]:
    """Of each query that reads the log: the indexes that it must name, and its plan."""
    lease = past.leases[0]
    ((subscription,),) = past.db.run("SELECT id FROM penstock.subscriptions WHERE name = 'tests'")
    one = {"partition_id": lease.partition_id}
    ledger = "positions_subscription_id_partition_id_id_idx"
    queries: dict[str, tuple[set[str], dict[str, Any]]] = {
        "high_watermark": ({"chunks_sequence"}, one),
        "sequenced_at_of": ({"chunks_sequence"}, one | {"sequence": 500}),
        "read_log": (
            {"chunks_sequence", "events_pkey"},
            one | {"from_sequence": 2_000, "max_events": 20},
        ),
        "current_position": ({ledger}, one | {"subscription_id": subscription}),
        "held_leases": ({"leases_pkey"}, {"subscription": "tests", "consumer": "a"}),
        "fresh_events": ({"events_tx_idx"}, {}),
    }
    with psycopg.connect(past.db.url, autocommit=True) as own:
        publish(own, TOPIC, b"x")
        row = own.execute(
            "SELECT t.target::text, pg_current_snapshot()::text FROM penstock.ticks AS t"
            " ORDER BY t.id DESC LIMIT 1"
        ).fetchone()
        assert row is not None
        queries["fresh_events"][1].update(base=row[0], target=row[1], last_id=0)
        with own.transaction(force_rollback=True):
            own.execute(mutant.encode() or b"SELECT 1")
            return {
                name: (indexes, _plan(own, name, given))
                for name, (indexes, given) in queries.items()
            }


def _plan(own: psycopg.Connection[Any], name: str, given: dict[str, Any]) -> Reads:
    settings = {"fresh_events": "append_chunks"}.get(name, name)
    plan = Reads()
    for node in nodes(plan_of(own, name, settings_of=settings, **given)):
        if "Index Name" in node:
            plan.indexes.add(relation(node["Index Name"]))
        elif node["Node Type"] == "Seq Scan":
            table = relation(node["Relation Name"])
            plan.scanned[table] = plan.scanned.get(table, 0) + node["Actual Rows"]
    return plan
