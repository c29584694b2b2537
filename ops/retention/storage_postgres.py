"""The physical half of clean on PostgreSQL: slices are detached and dropped, the index merged.

What is here cannot run inside a function: the DROP, because it must not make publishers wait, and
the VACUUM that tells how old the oldest snapshot is.

What a drop waits for on PostgreSQL, and who waits because of it:

- DETACH CONCURRENTLY takes SHARE UPDATE EXCLUSIVE on the table and the slice, which no publisher
  and no reader waits for, marks the slice and commits. Without any lock it then waits for every
  transaction that has one on the table, so it may wait for long.
- FINALIZE, for a slice that was marked by a DETACH that did not end, takes ACCESS EXCLUSIVE on the
  slice first and then waits for every snapshot as old as its own. A reader whose snapshot is from
  before the mark still looks for the slice: it would wait, and end as the victim of a deadlock. So
  FINALIZE waits until there is no such reader, without a lock. Then nobody asks for the slice.
- Only one slice of a table can be marked; DETACH of another one is refused until it is finished.

``lock_timeout`` bounds each single wait of these statements, ``statement_timeout`` all of them.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ops.retention.storage import POSITIONS_AT_A_TIME, SliceDrop, SliceState
from penstock.database import call, config, connect

if TYPE_CHECKING:
    import psycopg

#: Publishers wait at most this long for a lock that clean waits for; then clean gives up.
LOCK_TIMEOUT_MS = 100

#: How long clean waits for open transactions, without making anybody else wait. The time begins
#: anew after each slice that was dropped.
PATIENCE_SECONDS = 20.0
LOOK_AGAIN_SECONDS = 0.2

#: From attached to dropped it is three; more when somebody else works on the same slice.
STEPS = 8

#: A merge gets its lock between two passes of a sequencer, or not at all.
SWAP_ATTEMPTS = 5
SWAP_PAUSE_SECONDS = 0.2

_PARTITION_STATE = """
    SELECT i.inhdetachpending
    FROM pg_class AS c
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid
    WHERE n.nspname = %(schema)s AND c.relname = %(slice)s
"""

#: The row that says so was written by the transaction that marked the slice.
_NOBODY_SEES_IT_ATTACHED = """
    SELECT age(i.xmin) > age(p.relfrozenxid)
    FROM pg_namespace AS n
    JOIN pg_class AS p ON p.relnamespace = n.oid AND p.relname = 'snapshot_probe'
    JOIN pg_class AS c ON c.relnamespace = n.oid
    JOIN pg_inherits AS i ON i.inhrelid = c.oid AND i.inhdetachpending
    WHERE n.nspname = %(schema)s AND c.relname = %(slice)s
"""

_HALF_DETACHED = """
    SELECT c.relname
    FROM pg_class AS c
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    JOIN pg_inherits AS i ON i.inhrelid = c.oid
    WHERE n.nspname = %(schema)s AND i.inhdetachpending
"""


@dataclass
class Patience:
    """How long clean still waits for others; each slice that goes renews it."""

    seconds: float
    _until: float = field(init=False)

    def __post_init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Start the time again."""
        self._until = time.monotonic() + self.seconds

    @property
    def left_ms(self) -> int:
        """How many milliseconds are left, but at least LOCK_TIMEOUT_MS."""
        return max(LOCK_TIMEOUT_MS, int((self._until - time.monotonic()) * 1000))

    def wait(self, condition: Callable[[], bool], is_hopeless: Callable[[], bool]) -> bool:
        """Wait until the condition holds.  Returns whether it does."""
        while not condition():
            if time.monotonic() >= self._until or is_hopeless():
                return False
            time.sleep(LOOK_AGAIN_SECONDS)
        return True


def drop_slices(url: str, *, patience_seconds: float = PATIENCE_SECONDS) -> list[SliceDrop]:
    """Drop the tables that nobody needs any more.  What cannot be dropped now is tried later."""
    patience = Patience(patience_seconds)
    with connect(url, application_name="penstock clean", statement_timeout_ms=0) as connection:
        connection.execute(f"SET lock_timeout = {LOCK_TIMEOUT_MS}")
        _condemn(connection)
        can_go = _all_can_go(connection)
        done = _drop_all(connection, patience)
        if not can_go and _wait(connection, patience, lambda: _all_can_go(connection)):
            done = [each for each in done if each.state is SliceState.DROPPED]
            done += _drop_all(connection, patience)
        return done + _merge(connection)


def _drop_all(connection: psycopg.Connection[Any], patience: Patience) -> list[SliceDrop]:
    """Drop what can go now; what is half detached first, because it keeps others of its table."""
    rows = call(connection, "droppable_slices")
    begun = connection.execute(_HALF_DETACHED, {"schema": config.schema_name()}).fetchall()
    found = [
        SliceDrop(parent, name, first_id, last_id, SliceState.ATTACHED)
        for parent, name, first_id, last_id in rows
    ]
    found.sort(key=lambda each: (each.slice,) not in begun)
    return [_drop(connection, patience, each) for each in found]


def _all_can_go(connection: psycopg.Connection[Any]) -> bool:
    """Nobody has a snapshot from before any slice was condemned."""
    note_snapshots(connection)
    return bool(call(connection, "condemned_can_go")[0][0])


def _wait(
    connection: psycopg.Connection[Any], patience: Patience, condition: Callable[[], bool]
) -> bool:
    """Wait for transactions to end, but not for one that has been open for longer than that."""

    def is_hopeless() -> bool:
        return any(
            kind in ("session", "prepared") and (age or 0) > patience.seconds
            for kind, _, _, _, _, age, _ in call(connection, "doctor_snapshots")
        )

    return patience.wait(condition, is_hopeless)


def note_snapshots(connection: psycopg.Connection[Any]) -> None:
    """Let the database note how far back the oldest snapshot of any session reaches."""
    from psycopg import errors, sql

    probe = sql.Identifier(config.schema_name(), "snapshot_probe")
    # Another run of clean is doing this; what it notes is as good.
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


def _drop(connection: psycopg.Connection[Any], patience: Patience, found: SliceDrop) -> SliceDrop:
    """Take a slice from the state that an earlier run left it in to the end."""
    problem = ""
    for _ in range(STEPS):
        state = slice_state(connection, found.slice)
        if state is SliceState.DROPPED:
            call(connection, "slice_dropped", slice=found.slice)
            patience.renew()
            return replace(found, state=state)
        went_on, problem = _next_step(connection, patience, found.parent, found.slice, state)
        if not went_on and slice_state(connection, found.slice) is state:
            break
    return replace(found, state=slice_state(connection, found.slice), detail=problem)


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


#: The two reasons for which swap_merged_slice returns false.
_NOT_SWAPPED = (
    "somebody has a snapshot from before the merge, or the index of the log has changed since;"
    " the next run tries again"
)


def _swap(connection: psycopg.Connection[Any]) -> str:
    """Put the merged table into its place.  Returns what keeps it from that, or an empty text."""
    from psycopg import errors

    problem = ""
    for attempt in range(SWAP_ATTEMPTS):
        time.sleep(SWAP_PAUSE_SECONDS * random.random() * bool(attempt))
        try:
            ((swapped,),) = call(connection, "swap_merged_slice")
        except errors.LockNotAvailable as error:
            problem = str(error.diag.message_primary)
        else:
            return "" if swapped else _NOT_SWAPPED
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
    connection: psycopg.Connection[Any],
    patience: Patience,
    parent: str,
    name: str,
    state: SliceState,
) -> tuple[bool, str]:
    """Take the next step.  Returns whether it was done, or what has kept it.

    Somebody else who cleans at the same time may have done it meanwhile.
    """
    from psycopg import errors, sql

    binds = {"schema": config.schema_name(), "slice": name}
    if state is SliceState.ATTACHED:
        if problem := _close(connection, name):
            return False, problem
        call(connection, "slice_detaching", slice=name)
    elif state is SliceState.HALF_DETACHED and not _wait(
        connection, patience, lambda: _nobody_sees_it_attached(connection, binds)
    ):
        return False, "somebody has a snapshot from before it was detached"
    statement = {
        SliceState.ATTACHED: "ALTER TABLE {parent} DETACH PARTITION {slice} CONCURRENTLY",
        SliceState.HALF_DETACHED: "ALTER TABLE {parent} DETACH PARTITION {slice} FINALIZE",
        SliceState.DETACHED: "DROP TABLE {slice}",
    }[state]
    parts = {
        "parent": sql.Identifier(binds["schema"], parent),
        "slice": sql.Identifier(binds["schema"], name),
    }
    try:
        with _waiting_at_most(connection, patience.left_ms):
            connection.execute(sql.SQL(statement).format(**parts))
    except (
        errors.LockNotAvailable,
        errors.QueryCanceled,
        errors.DeadlockDetected,
        errors.ObjectNotInPrerequisiteState,
        errors.UndefinedTable,
        errors.ObjectInUse,
    ) as error:
        return False, str(error.diag.message_primary)
    return True, ""


def _close(connection: psycopg.Connection[Any], name: str) -> str:
    """Let nobody write into a slice any more.  Returns what keeps it from being dropped.

    After a counter was set back, a publisher may have an id of a slice that nobody needed.
    """
    from psycopg import errors

    try:
        ((can_go,),) = call(connection, "close_slice", slice=name)
    except errors.LockNotAvailable as error:
        return str(error.diag.message_primary)
    return "" if can_go else "an event has come into it, because the counter of ids was set back"


def _nobody_sees_it_attached(connection: psycopg.Connection[Any], binds: dict[str, str]) -> bool:
    """No session has a snapshot from before the slice was marked, or it is marked no more."""
    note_snapshots(connection)
    row = connection.execute(_NOBODY_SEES_IT_ATTACHED, binds).fetchone()
    return row is None or bool(row[0])


@contextlib.contextmanager
def _waiting_at_most(connection: psycopg.Connection[Any], milliseconds: int) -> Iterator[None]:
    """Time limits, of one wait and of all together, for statements that block nobody."""
    limits = (
        "SELECT set_config('lock_timeout', %s, false), set_config('statement_timeout', %s, false)"
    )
    connection.execute(limits, (str(milliseconds), str(milliseconds)))
    try:
        yield
    finally:
        connection.execute(limits, (str(LOCK_TIMEOUT_MS), "0"))
