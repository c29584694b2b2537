"""Uninstall: what of Penstock is in a database, and taking all of it out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock import database
from penstock.database import catalog, config
from penstock.errors import InvalidArgument, PenstockError, error_text
from penstock.topics import names, rights

_TABLE = re.compile(r"^CREATE [^\n(]*?(?:TABLE|VIEW) (?:IF NOT EXISTS )?(\w+)", re.MULTILINE)
#: What `penstock migrate` makes before all else.
_MIGRATIONS = "schema_migrations"
#: So many names are in an error at most.
_MOST_NAMES = 5


@dataclass(frozen=True, slots=True)
class InstalledPart:
    """A part of the installation, and what it holds.  ``goes``: uninstall drops it."""

    kind: str
    name: str
    holds: str
    goes: bool = True


def installed_parts(connection: Any) -> list[InstalledPart]:
    """The schema with what is in it, the roles with their members, and slots of others."""
    schema = config.schema_name()
    rows = database.call(connection, "installed_parts", schema=schema)
    tables = [name for name, kind in rows if kind in {"table", "slice"}]
    functions = sum(kind == "function" for _, kind in rows)
    found = [
        InstalledPart(
            "schema",
            schema,
            f"{len(tables)} tables, {functions} functions; {_in_the_log(connection)}",
        )
    ]
    found += [
        InstalledPart("role", each.name, f"members: {', '.join(each.members) or 'none'}")
        for each in rights.roles(connection)
        if each.installed
    ]
    found += [
        InstalledPart("slot", name, "of another program: Penstock makes none", goes=False)
        for name, kind in rows
        if kind == "slot"
    ]
    return found


def _in_the_log(connection: Any) -> str:
    topics = names.list_topics(connection)
    events = sum(
        each.high_watermark - each.low_sequence + 1
        for topic in topics
        for each in names.partition_ranges(connection, topic.address)
    )
    lags = database.call(connection, "subscription_lag", subscription=None)
    waiting = {row[0] for row in lags if row[5]}
    return (
        f"{len(topics)} topics, {events} events, {len({row[0] for row in lags})} subscriptions, "
        f"of which {len(waiting)} have not read all"
    )


def uninstall(connection: Any) -> list[InstalledPart]:
    """Drop the schema and the roles.  Returns what went, and what stays and why.

    Refused, before anything is dropped, while something of yours is in the schema or uses it.
    """
    schema = config.schema_name()
    _require_nothing_else(connection, schema)
    parts = installed_parts(connection)
    engine = rights.engine_of(connection)
    drop = {"mysql": "DROP DATABASE {}", "postgres": "DROP SCHEMA {} CASCADE"}
    wanted = drop[database.dialect_of(connection)].format(engine.quoted(schema))
    database.execute(connection, wanted)
    return [_dropped(connection, engine, each) for each in parts]


def _dropped(connection: Any, engine: rights.Roles, part: InstalledPart) -> InstalledPart:
    """A role that something else in the server still uses stays."""
    if part.kind != "role":
        return part
    try:
        database.execute(connection, f"DROP ROLE {engine.quoted(part.name)}")
    except Exception as error:  # a driver's: another database of the server uses it
        if isinstance(error, PenstockError):
            raise
        return InstalledPart(part.kind, part.name, f"stays: {error_text(error)}", goes=False)
    return part


def _require_nothing_else(connection: Any, schema: str) -> None:
    users = [row[0] for row in database.call(connection, "installed_users", schema=schema)]
    if users:
        raise InvalidArgument(
            f"something outside of the schema {schema} uses it: {_listed(users)}",
            hint="drop these first, or take what they use out of them",
        )
    known = _own_tables(database.dialect_of(connection))
    known |= {row[0] for row in database.call(connection, "installed_slices")}
    rows = database.call(connection, "installed_parts", schema=schema)
    others = [name for name, kind in rows if kind == "table" and name not in known]
    if others:
        raise InvalidArgument(
            f"the schema {schema} has tables that are not Penstock's: {_listed(others)}",
            hint="move them to another schema first",
        )


def _own_tables(dialect: str) -> set[str]:
    texts = [each.text for each in catalog.migrations(dialect)]
    texts += [text for _, text in catalog.functions(dialect).files]
    return {_MIGRATIONS, *(name for text in texts for name in _TABLE.findall(text))}


def _listed(found: Iterable[str]) -> str:
    listed = list(found)
    more = f" and {len(listed) - _MOST_NAMES} more" if len(listed) > _MOST_NAMES else ""
    return f"{', '.join(listed[:_MOST_NAMES])}{more}"
