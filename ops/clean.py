"""Clean: move the low sequences up as far as retention allows, then drop slices nobody needs.

The database decides both: `clean` moves a low sequence over log epochs that are sealed, passed by
every subscription, copied and old enough; `droppable_slices` names the tables that nobody needs.
What is left for this module is what cannot run inside a function: the DROP, because it must not
make publishers wait, and the VACUUM that tells how old the oldest snapshot is.
"""

from __future__ import annotations

import contextlib
import random
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from penstock import config
from penstock.database import call, connect

if TYPE_CHECKING:
    import psycopg

#: Publishers wait at most this long behind a lock that clean waits for; then clean gives up.
LOCK_TIMEOUT_MS = 100

#: The lock that a merge needs is had between two passes of a sequencer, or not at all.
SWAP_ATTEMPTS = 5
SWAP_PAUSE_SECONDS = 0.2

#: Leases that are locked at a time while their positions are written anew.
POSITIONS_AT_A_TIME = 1_000

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
    MERGED = "merged"
    KEPT = "kept"


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
    """A slice that could go: how far it went, and what stopped it.

    Slices of the index of the log are not dropped but merged into a smaller one of the same ids.
    On MySQL, one of events of which little is needed is kept, with nothing else in it.
    """

    parent: str
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
    """Drop the tables that nobody needs any more; a lock not had now is had later.

    Needs a connection of its own to the database, not through a pooler, as owner of the schema.
    """
    if config.dialect_of_url(url) == "mysql":
        from ops import clean_mysql

        return clean_mysql.drop_slices(url)
    with connect(url, application_name="penstock clean", statement_timeout_ms=0) as connection:
        connection.execute(f"SET lock_timeout = {int(lock_timeout_ms)}")
        _condemn(connection)
        note_snapshots(connection)
        found = call(connection, "droppable_slices")
        return [_drop(connection, *row) for row in found] + _merge(connection)


def note_snapshots(connection: psycopg.Connection[Any]) -> None:
    """Let the database note how far back the oldest snapshot of any session reaches."""
    from psycopg import errors, sql

    probe = sql.Identifier(config.schema_name(), "snapshot_probe")
    # Another clean is at it: what it notes is as good.
    with contextlib.suppress(errors.LockNotAvailable):
        connection.execute(sql.SQL("VACUUM (FREEZE) {}").format(probe))


def _condemn(connection: psycopg.Connection[Any]) -> None:
    """Bring what is still needed out of old slices, and note which ones nobody needs."""
    from psycopg import errors

    with contextlib.suppress(errors.LockNotAvailable):
        while call(connection, "keep_events")[0][0]:
            pass
    with contextlib.suppress(errors.LockNotAvailable):
        while call(connection, "carry_positions", max_rows=POSITIONS_AT_A_TIME)[0][0]:
            pass
    call(connection, "condemn_slices")


def _drop(
    connection: psycopg.Connection[Any], parent: str, name: str, first_id: int, last_id: int
) -> SliceDrop:
    """Take a slice from the state that an earlier run left it in to the end."""
    import psycopg

    state = slice_state(connection, name)
    try:
        while state is not SliceState.DROPPED:
            _next_step(connection, parent, name, state)
            state = slice_state(connection, name)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled) as error:
        state = slice_state(connection, name)
        return SliceDrop(parent, name, first_id, last_id, state, str(error.diag.message_primary))
    except psycopg.errors.ObjectNotInPrerequisiteState as error:
        # Another slice is half detached: only one can be, and the next run finishes it.
        return SliceDrop(parent, name, first_id, last_id, state, str(error.diag.message_primary))
    call(connection, "slice_dropped", slice=name)
    return SliceDrop(parent, name, first_id, last_id, state)


def _merge(connection: psycopg.Connection[Any]) -> list[SliceDrop]:
    """Merge small chunks of the index of the log, and leave out what no reader can reach."""
    done = []
    while merge := call(connection, "merge_chunks"):
        ((first_id, last_id),) = merge
        note_snapshots(connection)
        problem = _swap(connection)
        state = SliceState.ATTACHED if problem else SliceState.MERGED
        done.append(SliceDrop("chunks", f"chunks_{first_id}", first_id, last_id, state, problem))
        if problem:
            break
    return done


def _swap(connection: psycopg.Connection[Any]) -> str:
    """Put the merged table into its place; answers what keeps it from that."""
    from psycopg import errors

    problem = ""
    for attempt in range(SWAP_ATTEMPTS):
        time.sleep(SWAP_PAUSE_SECONDS * random.random() * bool(attempt))
        try:
            ((swapped,),) = call(connection, "swap_chunks")
        except errors.LockNotAvailable as error:
            problem = str(error.diag.message_primary)
        else:
            return "" if swapped else "somebody has a snapshot from before the merge"
    return problem


def slice_state(connection: psycopg.Connection[Any], name: str) -> SliceState:
    """How far the drop of a slice is, as the catalog has it."""
    binds = {"schema": config.schema_name(), "slice": name}
    row = connection.execute(_PARTITION_STATE, binds).fetchone()
    if row is None:
        return SliceState.DROPPED
    if row[0] is None:
        return SliceState.DETACHED
    return SliceState.HALF_DETACHED if row[0] else SliceState.ATTACHED


def _next_step(
    connection: psycopg.Connection[Any], parent: str, name: str, state: SliceState
) -> None:
    from psycopg import sql

    schema = config.schema_name()
    parts = {
        "parent": sql.Identifier(schema, parent),
        "slice": sql.Identifier(schema, name),
    }
    statement = {
        SliceState.ATTACHED: "ALTER TABLE {parent} DETACH PARTITION {slice} CONCURRENTLY",
        SliceState.HALF_DETACHED: "ALTER TABLE {parent} DETACH PARTITION {slice} FINALIZE",
        SliceState.DETACHED: "DROP TABLE {slice}",
    }[state]
    connection.execute(sql.SQL(statement).format(**parts))
