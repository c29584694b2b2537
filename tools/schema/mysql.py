"""The facts of a schema on MySQL and MariaDB, from what the server writes out and its catalogs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

from penstock.database import calls

_NAME = re.compile(r"`([^`]+)`")
#: A counter, and the partitions of a table that is cut by its ids: both come with use.
_COUNTER = re.compile(r" AUTO_INCREMENT=\d+")
_SLICE = re.compile(r"\(?\s*PARTITION `?\w+`? VALUES LESS THAN \(\d+\) (ENGINE = \w+).*")
_KEYS = ("KEY", "UNIQUE", "CONSTRAINT", "FULLTEXT", "SPATIAL")

_TABLES = """
    SELECT t.TABLE_NAME, t.TABLE_TYPE FROM information_schema.TABLES AS t
    WHERE t.TABLE_SCHEMA = %(schema)s
"""

#: What is no table: a query for what it is about, and what it says.
_OTHERS = {
    "schema": """
        SELECT '', CONCAT_WS(' ', s.DEFAULT_CHARACTER_SET_NAME, s.DEFAULT_COLLATION_NAME)
        FROM information_schema.SCHEMATA AS s
        WHERE s.SCHEMA_NAME = %(schema)s
    """,
    "routine": """
        SELECT r.ROUTINE_NAME,
               CONCAT_WS(' ', r.ROUTINE_TYPE, r.SECURITY_TYPE, r.SQL_MODE, r.SQL_DATA_ACCESS,
                         r.IS_DETERMINISTIC, r.CHARACTER_SET_CLIENT, r.COLLATION_CONNECTION,
                         r.DATABASE_COLLATION, r.ROUTINE_COMMENT, r.ROUTINE_DEFINITION)
        FROM information_schema.ROUTINES AS r
        WHERE r.ROUTINE_SCHEMA = %(schema)s
    """,
    "parameter": """
        SELECT CONCAT_WS(' ', p.ROUTINE_TYPE, p.SPECIFIC_NAME, p.PARAMETER_NAME),
               CONCAT_WS(' ', p.ORDINAL_POSITION, p.PARAMETER_MODE, p.DTD_IDENTIFIER,
                         p.CHARACTER_SET_NAME, p.COLLATION_NAME)
        FROM information_schema.PARAMETERS AS p
        WHERE p.SPECIFIC_SCHEMA = %(schema)s
    """,
    "trigger": """
        SELECT g.TRIGGER_NAME,
               CONCAT_WS(' ', g.ACTION_TIMING, g.EVENT_MANIPULATION, g.EVENT_OBJECT_TABLE,
                         g.ACTION_STATEMENT)
        FROM information_schema.TRIGGERS AS g
        WHERE g.TRIGGER_SCHEMA = %(schema)s
    """,
    "event": """
        SELECT e.EVENT_NAME, CONCAT_WS(' ', e.INTERVAL_VALUE, e.INTERVAL_FIELD, e.EVENT_DEFINITION)
        FROM information_schema.EVENTS AS e
        WHERE e.EVENT_SCHEMA = %(schema)s
    """,
    "rights on the schema of": """
        SELECT p.GRANTEE, CONCAT_WS(' ', p.PRIVILEGE_TYPE, p.IS_GRANTABLE)
        FROM information_schema.SCHEMA_PRIVILEGES AS p
        WHERE p.TABLE_SCHEMA = %(schema)s
    """,
    "rights on a table of": """
        SELECT CONCAT_WS(' ', p.GRANTEE, p.TABLE_NAME),
               CONCAT_WS(' ', p.PRIVILEGE_TYPE, p.IS_GRANTABLE)
        FROM information_schema.TABLE_PRIVILEGES AS p
        WHERE p.TABLE_SCHEMA = %(schema)s
    """,
    "rights on a routine of": """
        SELECT CONCAT_WS(' ', p.User, p.Routine_name), CONCAT_WS(' ', p.Routine_type, p.Proc_priv)
        FROM mysql.procs_priv AS p
        WHERE p.Db = %(schema)s
    """,
}

#: The columns of a table that are alike in every installation.
_ALIKE = """
    SELECT c.COLUMN_NAME FROM information_schema.COLUMNS AS c
    WHERE c.TABLE_SCHEMA = %(schema)s AND c.TABLE_NAME = %(table)s AND c.DATA_TYPE <> 'datetime'
      AND NOT (c.TABLE_NAME = 'installation' AND c.COLUMN_NAME = 'id')
    ORDER BY c.ORDINAL_POSITION
"""
#: Tables whose rows say who has installed what, and when.
_BOOKS = frozenset({"schema_migrations", "slice_rates", "eras", "installed_roles", "role_edges"})


def read(connection: Any, schema: str, *, rows: bool) -> dict[str, str]:
    """Every fact about the schema: what it is about, and what it says."""
    binds = {"schema": schema}
    found: dict[str, set[str]] = {}
    tables = calls.execute(connection, _TABLES, binds)
    for name, kind in tables:
        word = "VIEW" if kind == "VIEW" else "TABLE"
        row = calls.execute(connection, f"SHOW CREATE {word} `{schema}`.`{name}`")[0]
        facts = [(f"view {name}", str(row[1]))] if word == "VIEW" else _table(name, str(row[1]))
        for what, text in facts:
            found.setdefault(what, set()).add(text)
    for kind, query in _OTHERS.items():
        for name, text in calls.execute(connection, query, binds):
            found.setdefault(f"{kind} {name}", set()).add(str(text))
    alike = {
        what: " | ".join(sorted(texts)).replace(f"`{schema}`", "`penstock`")
        for what, texts in found.items()
    }
    return alike | (_rows(connection, schema, tables) if rows else {})


def _table(name: str, text: str) -> Iterator[tuple[str, str]]:
    """The lines of SHOW CREATE TABLE, each under the name of what it is about."""
    column = 0
    for line in (each.strip().rstrip(",") for each in _COUNTER.sub("", text).splitlines()[1:]):
        named = _NAME.search(line)
        if named and line.startswith("`"):
            column += 1
            yield f"table {name}, column {named[1]}", f"{column}. {line}"
        elif cut := _SLICE.fullmatch(line):
            yield f"slices of {name}", cut[1]
        elif named and line.startswith(_KEYS):
            yield f"table {name}, {line.partition(' ')[0].lower()} {named[1]}", line
        else:
            yield f"table {name}, {line.partition('`')[0].partition('(')[0].strip()}", line


def _rows(connection: Any, schema: str, tables: list[tuple[Any, ...]]) -> dict[str, str]:
    facts = {}
    for table, kind in tables:
        if kind == "VIEW" or table in _BOOKS:
            continue
        names = calls.execute(connection, _ALIKE, {"schema": schema, "table": table})
        columns = ", ".join(f"`{name}`" for (name,) in names) or "1"
        held = calls.execute(connection, f"SELECT {columns} FROM `{schema}`.`{table}`")
        if held:
            digest = hashlib.sha256("\n".join(sorted(map(repr, held))).encode()).hexdigest()
            facts[f"rows of {table}"] = f"{len(held)}, digest {digest}"
    return facts
