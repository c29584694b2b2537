"""What a call reads: the rows of each index and table, counted by the server around the real call.

PostgreSQL counts for each index and table what the session has read; MySQL and MariaDB count for
the session alone, all tables together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from penstock import database

#: Relations of Penstock: rows that scans of it have returned, and how often it was scanned.
_POSTGRES = """
    SELECT c.relname, c.relkind::text, pg_stat_get_xact_tuples_returned(c.oid),
           pg_stat_get_xact_numscans(c.oid)
    FROM pg_class AS c
    WHERE c.relnamespace = 'penstock'::regnamespace AND c.relkind IN ('r', 'i')
"""
_MYSQL = "SHOW SESSION STATUS LIKE 'Handler\\_read\\_%'"


@dataclass
class Reads:
    """What was read between the begin and the end of a ``with``."""

    rows: int = 0
    #: Indexes that were searched, without the number of a slice; empty where nobody counts them.
    indexes: set[str] = field(default_factory=set)
    #: Rows of tables that were read from one end to the other.
    scanned: dict[str, int] = field(default_factory=dict)


@contextmanager
def counted(connection: Any) -> Iterator[Reads]:
    """Count what the connection reads; on PostgreSQL inside of one transaction."""
    reads = Reads()
    if database.dialect_of(connection) == "mysql":
        before = _handlers(connection)
        counting = _handlers(connection) - before
        yield reads
        reads.rows = _handlers(connection) - before - 2 * counting
        return
    known = _relations(connection)
    yield reads
    for (name, kind), (rows, scans) in _relations(connection).items():
        rows_before, scans_before = known.get((name, kind), (0, 0))
        if scans == scans_before:
            continue
        reads.rows += rows - rows_before
        table = relation(name)
        if kind == "i":
            reads.indexes.add(table)
        else:
            reads.scanned[table] = reads.scanned.get(table, 0) + rows - rows_before


def relation(name: str) -> str:
    """The name of a table or an index without the number of its slice."""
    return re.sub(r"_\d+(?=_|$)", "", name)


def _relations(connection: Any) -> dict[tuple[str, str], tuple[int, int]]:
    found = database.execute(connection, _POSTGRES)
    return {(name, kind): (int(rows), int(scans)) for name, kind, rows, scans in found}


def _handlers(connection: Any) -> int:
    return sum(int(number) for _, number in database.execute(connection, _MYSQL))
