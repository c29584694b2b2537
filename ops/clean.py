"""Clean: move the low sequences up as far as retention allows, then drop slices nobody needs.

The database decides both: `clean` moves a low sequence over log epochs that are sealed, passed by
every subscription, copied and old enough; `droppable_slices` names the tables in which every
event lies below its low sequence.  What is left for this module is the DROP itself, which cannot
run inside a function, because it must not make publishers wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from penstock import config
from penstock.database import call, connect

if TYPE_CHECKING:
    import psycopg

#: Publishers wait at most this long behind a lock that clean waits for; then clean gives up.
LOCK_TIMEOUT_MS = 100

_PARTITION_STATE = """
    SELECT i.inhdetachpending
    FROM pg_class AS c
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid
    WHERE n.nspname = %(schema)s AND c.relname = %(slice)s
"""


class SliceState(StrEnum):
    """How far the drop of a slice is."""

    ATTACHED = "attached"
    HALF_DETACHED = "half detached"
    DETACHED = "detached"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class CleanResult:
    """What became of a partition, and what holds it there."""

    topic: str
    partition: int
    old_low_sequence: int
    low_sequence: int
    reason: str


@dataclass(frozen=True, slots=True)
class SliceDrop:
    """A slice that could be dropped: how far it went, and what stopped it."""

    slice: str
    first_id: int
    last_id: int
    state: SliceState
    detail: str = ""


def clean(url: str, topic: str) -> list[CleanResult]:
    """Move the low sequences of a topic as far as its retention policy allows."""
    with connect(url) as connection:
        return [CleanResult(topic, *row) for row in call(connection, "clean", topic=topic)]


def drop_slices(url: str, *, lock_timeout_ms: int = LOCK_TIMEOUT_MS) -> list[SliceDrop]:
    """Drop the tables of events that are gone from every log; a lock not had now is had later.

    Needs a connection of its own to the database, not through a pooler, as owner of the schema.
    """
    with connect(url, application_name="penstock clean") as connection:
        connection.execute(f"SET lock_timeout = {int(lock_timeout_ms)}")
        slices = call(connection, "droppable_slices")
        return [_drop(connection, *row) for row in slices]


def _drop(connection: psycopg.Connection[Any], name: str, first_id: int, last_id: int) -> SliceDrop:
    """Take a slice from the state that an earlier run left it in to the end."""
    import psycopg

    state = slice_state(connection, name)
    try:
        while state is not SliceState.DROPPED:
            _next_step(connection, name, state)
            state = slice_state(connection, name)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled) as error:
        state = slice_state(connection, name)
        return SliceDrop(name, first_id, last_id, state, str(error.diag.message_primary))
    except psycopg.errors.ObjectNotInPrerequisiteState as error:
        # Another slice is half detached: only one can be, and the next run finishes it.
        return SliceDrop(name, first_id, last_id, state, str(error.diag.message_primary))
    call(connection, "slice_dropped", slice=name)
    return SliceDrop(name, first_id, last_id, state)


def slice_state(connection: psycopg.Connection[Any], name: str) -> SliceState:
    """How far the drop of a slice is, as the catalog has it."""
    binds = {"schema": config.schema_name(), "slice": name}
    row = connection.execute(_PARTITION_STATE, binds).fetchone()
    if row is None:
        return SliceState.DROPPED
    if row[0] is None:
        return SliceState.DETACHED
    return SliceState.HALF_DETACHED if row[0] else SliceState.ATTACHED


def _next_step(connection: psycopg.Connection[Any], name: str, state: SliceState) -> None:
    from psycopg import sql

    schema = config.schema_name()
    parts = {
        "parent": sql.Identifier(schema, "events"),
        "slice": sql.Identifier(schema, name),
    }
    statement = {
        SliceState.ATTACHED: "ALTER TABLE {parent} DETACH PARTITION {slice} CONCURRENTLY",
        SliceState.HALF_DETACHED: "ALTER TABLE {parent} DETACH PARTITION {slice} FINALIZE",
        SliceState.DETACHED: "DROP TABLE {slice}",
    }[state]
    connection.execute(sql.SQL(statement).format(**parts))
