"""Uninstall: what of Penstock is in a database, and taking all of it out."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock import database
from penstock.database import catalog, config, sessions
from penstock.errors import InUse, InvalidArgument, NotMigrated, PenstockError, error_text
from penstock.topics import names, rights

_TABLE = re.compile(r"^CREATE [^\n(]*?(?:TABLE|VIEW) (?:IF NOT EXISTS )?(\w+)", re.MULTILINE)
#: What `penstock migrate` makes before all else.
_MIGRATIONS = "schema_migrations"
#: So many names are in an error at most.
_MOST_NAMES = 5
#: How long it tries while somebody is at work in the schema, and how long it pauses between tries.
WAIT_SECONDS = 10.0
_PAUSE_SECONDS = 0.1
#: Nobody who reads or writes waits behind this lock.  Autovacuum gives way to it, after
#: deadlock_timeout, and keeps out then; it does not give way to NOWAIT.
_VACUUM_LOCK = "LOCK TABLE {} IN SHARE UPDATE EXCLUSIVE MODE"
_VACUUM_WAIT = (
    "SELECT set_config('lock_timeout', (s.setting::integer + 1000)::text, true)"
    " FROM pg_catalog.pg_settings AS s WHERE s.name = 'deadlock_timeout'"
)
_LOCK = "LOCK TABLE {} IN ACCESS EXCLUSIVE MODE NOWAIT"
#: For what LOCK does not take: the schema, in which somebody may be about to make something, and
#: sequences.  A transaction holds one that it has used to its end, whatever it rolls back to.
_SHORT_WAIT = "SET LOCAL lock_timeout = '10ms'"
#: MySQL waits for a second at least; MariaDB need not wait.
_LOCK_WAIT = "SET SESSION lock_wait_timeout = /*!80000 1 */ /*M! 0 */"


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


def uninstall(connection: Any, *, wait_seconds: float = WAIT_SECONDS) -> list[InstalledPart]:
    """Drop the schema and the roles.  Returns what went, and what stays and why.

    Refused, before anything is dropped, while something of yours is in the schema or uses it, and
    while a transaction is open in it (InUse).
    """
    schema = config.schema_name()
    _require_nothing_else(connection, schema)
    parts = installed_parts(connection)
    engine = rights.engine_of(connection)
    deadline = time.monotonic() + wait_seconds
    while not _is_dropped(connection, engine, schema):
        if time.monotonic() >= deadline:
            raise InUse(
                f"somebody is at work in the schema {schema}; nothing was dropped",
                hint="stop the daemon, the gateway, consumers and publishers, on PostgreSQL also "
                "VACUUM, and try again",
            )
        time.sleep(_PAUSE_SECONDS)
    return [_dropped(connection, engine, each) for each in parts]


def _is_dropped(connection: Any, engine: rights.Roles, schema: str) -> bool:
    """False when a lock is not free.

    To wait for it would stop everybody else, and end in a deadlock, maybe at a publisher's expense:
    on MySQL that can be.  What others have made since the last try is asked for once more.
    """
    try:
        if database.dialect_of(connection) == "mysql":
            _require_nothing_else(connection, schema)
            with _short_lock_waits(connection):
                database.execute(connection, f"DROP DATABASE {engine.quoted(schema)}")
            return True
        return _is_dropped_in_postgres(connection, engine, schema)
    except Exception as error:  # a driver's
        if not database.is_contention(error):
            raise
        return False


def _is_dropped_in_postgres(connection: Any, engine: rights.Roles, schema: str) -> bool:
    rows = database.call(connection, "installed_parts", schema=schema)
    tables = [name for name, kind in rows if kind in {"table", "slice"}]
    if not tables:  # another uninstall was quicker
        return True
    named = ", ".join(f"{engine.quoted(schema)}.{engine.quoted(name)}" for name in tables)
    try:
        with sessions.of_connection(connection).transaction(connection):
            database.execute(connection, _VACUUM_WAIT)
            database.execute(connection, _VACUUM_LOCK.format(named))
            database.execute(connection, _LOCK.format(named))
            database.execute(connection, _SHORT_WAIT)
            _require_nothing_else(connection, schema)
            database.execute(connection, f"DROP SCHEMA {engine.quoted(schema)} CASCADE")
    except NotMigrated:  # a table was dropped since its name was read: clean drops slices
        return False
    return True


@contextmanager
def _short_lock_waits(connection: Any) -> Iterator[None]:
    """The server takes all locks before it drops anything."""
    ((before,),) = database.execute(connection, "SELECT @@SESSION.lock_wait_timeout")
    database.execute(connection, _LOCK_WAIT)
    try:
        yield
    finally:
        database.execute(connection, f"SET SESSION lock_wait_timeout = {int(before)}")


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
