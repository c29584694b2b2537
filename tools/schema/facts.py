"""What an installed schema consists of, as text by what it is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.database import calls
from tools.schema import mysql, postgres


def read(connection: Any, schema: str = "penstock", *, rows: bool = False) -> dict[str, str]:
    """Every fact about a schema.  ``rows`` adds what its tables hold."""
    if calls.dialect_of(connection) == "postgres":
        return postgres.read(connection, schema, rows=rows)
    return mysql.read(connection, schema, rows=rows)


def difference(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """A line for each fact that only one of them has: ``-`` the first, ``+`` the second."""
    lines = []
    for what in sorted({*old, *new}):
        if old.get(what) == new.get(what):
            continue
        for sign, facts in (("-", old), ("+", new)):
            if what in facts:
                lines.append(f"{sign} {what}: {facts[what]}")
    return lines
