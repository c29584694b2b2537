"""The partitions of the insert-only tables on MySQL and MariaDB: made ahead, thinned and dropped.

DDL waits for every open transaction that has used the table.  While it waits, every later
transaction that uses the table waits too.  The shortest limit that MySQL allows for this wait is
one second.  So nothing is tried while any transaction has been open for longer than that, and work
that does not get its lock is left for the next time.  DDL commits, so the caller must not be in a
transaction.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock import database
from penstock.database import config
from penstock.driver_errors import errno_of

#: Publish takes ids of events in blocks of this size.
BLOCK = 256

#: Fewer numbers without events than this are left in `pending`: each takes only 30 bytes.
FEW_NUMBERS = 1_000

#: MySQL's shortest: while DDL waits for a table, everybody else waits behind it.
_LOCK_WAIT_SECONDS = 1

_LOCK_WAIT_TIMEOUT = 1205
_NO_PROCESS_RIGHT = 1227
_NO_RIGHT_TO_ALTER = 1142
#: The slice is there: its name is taken, or the last slice ends where it would end, or later.
_IS_THERE = frozenset({1493, 1517})
_HELD = "a transaction that is open uses the table"
_NEEDED = "somebody has come to need it"


def ensure(connection: Any) -> int:
    """Make slices ahead of the writers.  Returns how many were added."""
    database.call(connection, "note_slice_rates")
    added = 0
    stuck: set[str] = set()
    while missing := [
        row for row in database.call(connection, "missing_slices") if row[0] not in stuck
    ]:
        for parent, start_id, end_id in missing:
            if add(connection, parent, start_id, end_id):
                added += 1
            else:
                stuck.add(parent)
    return added


def add(connection: Any, parent: str, start_id: int, end_id: int) -> bool:
    """Append a slice to a table.

    False when it has to wait, needs the owner's login, or another program has added it meanwhile.
    """
    name = f"b{start_id // BLOCK}" if parent == "events" else f"s{start_id}"
    change = f"ADD PARTITION (PARTITION {name} VALUES LESS THAN ({int(end_id)}))"
    try:
        return not _alter(connection, parent, change)
    except Exception as error:
        if errno_of(error) not in {_NO_RIGHT_TO_ALTER, *_IS_THERE}:
            raise
        return False


def drop(connection: Any, parent: str, name: str) -> str:
    """Drop a slice that `droppable_slices` named.  Returns what prevents it, if anything does.

    An open transaction may have written to the slice.  Once this function has had the lock, all
    such transactions have ended, so it checks again that the slice can be dropped.
    """
    problem = (
        _wait_for_publishers(connection)
        if parent == "events"
        else _wait_for_writers(connection, parent)
    )
    if problem:
        return problem
    if not _is_named(connection, "droppable_slices", parent, name):
        return _NEEDED
    return _alter(connection, parent, f"DROP PARTITION `{name}`")


def keep(connection: Any, name: str, first_id: int, last_id: int) -> str:
    """Replace a slice of events by what is still needed of it.  Returns what prevents it, if any.

    Only one process may do this at a time, because the table that is exchanged has a fixed name.
    Like `drop`, it checks again that the slice gets no more events.
    """
    problem = _wait_for_publishers(connection)
    if problem:
        return problem
    if not _is_named(connection, "sparse_slices", name):
        return _NEEDED
    schema = config.schema_name()
    rest = f"`{schema}`.events_rest"
    database.execute(connection, f"DROP TABLE IF EXISTS {rest}")
    database.execute(connection, f"CREATE TABLE {rest} LIKE `{schema}`.events")
    try:
        database.execute(connection, f"ALTER TABLE {rest} REMOVE PARTITIONING")
        # An erasure comes before the copy, or is refused until the copy is in its place.
        database.call(connection, "note_kept_slice", slice=name)
        database.call(connection, "fill_rest", first_id=first_id, last_id=last_id)
        return _alter(connection, "events", f"EXCHANGE PARTITION `{name}` WITH TABLE {rest}")
    finally:
        database.execute(connection, f"DROP TABLE {rest}")
        database.call(connection, "note_kept_slice", slice=None)


def forget_numbers(connection: Any) -> bool:
    """Forget the numbers that the sequencer took from publishers which rolled back.

    False when that has to wait.  Numbers below the floor are not looked for any more.  Once the
    lock is held, no open transaction is left that has taken a number but not written its event.
    """
    pending = f"`{config.schema_name()}`.pending"
    while floor := _floor_above_numbers(connection):
        if _has_old_transaction(connection):
            return False
        with _short_waits(connection):
            if not _locked(connection, f"LOCK TABLES {pending} WRITE"):
                return False
            try:
                database.execute(
                    connection,
                    f"DELETE FROM {pending} WHERE block <= %(floor)s AND event_count = 0"
                    " LIMIT 10000",
                    {"floor": floor},
                )
            finally:
                database.execute(connection, "UNLOCK TABLES")
    return True


def _floor_above_numbers(connection: Any) -> int | None:
    """The floor of the sequencer; None when too few numbers below it are worth the lock."""
    schema = config.schema_name()
    ((numbers, floor),) = database.execute(
        connection,
        "SELECT COUNT(*), MAX(n.floor_block) FROM ("
        f"SELECT s.floor_block FROM `{schema}`.sequencer AS s JOIN `{schema}`.pending AS p"
        " ON p.block <= s.floor_block WHERE p.event_count = 0 LIMIT %(few)s) AS n",
        {"few": FEW_NUMBERS},
    )
    return int(floor) if numbers >= FEW_NUMBERS else None


@contextmanager
def alone(connection: Any) -> Iterator[bool]:
    """Whether this process is the only one that cleans this schema, until the end of the block.

    A locked row cannot serve here: it needs an open transaction, and the DDL would commit it.  So
    this takes a named lock of the server.  Any login may take such a lock, so its name is random
    and is kept in a row on which no other login has a right.
    """
    name = {"name": f"penstock clean {_lock_name(connection)}"}
    ((got,),) = database.execute(connection, "SELECT GET_LOCK(%(name)s, 0)", name)
    try:
        yield bool(got)
    finally:
        if got:
            database.execute(connection, "DO RELEASE_LOCK(%(name)s)", name)


def _lock_name(connection: Any) -> str:
    """The name of the lock, which the first call chooses at random."""
    table = f"`{config.schema_name()}`.cleaning"
    rows = database.execute(connection, f"SELECT lock_name FROM {table}")
    if not rows:
        database.execute(
            connection,
            f"INSERT IGNORE INTO {table} (singleton, lock_name) VALUES (TRUE, %(name)s)",
            {"name": secrets.token_hex(16)},
        )
        rows = database.execute(connection, f"SELECT lock_name FROM {table}")
    return str(rows[0][0])


def _wait_for_publishers(connection: Any) -> str:
    """Wait until no event can come into a slice below the floor.  Returns what prevents it.

    The counter of `pending` may have been set back by hand.  So it is raised first, and then all
    publishers that had taken a number have to end.
    """
    if _has_old_transaction(connection):
        return _HELD
    database.call(connection, "raise_event_ids")
    return _wait_for_writers(connection, "pending")


def _is_named(connection: Any, query: str, *wanted: str) -> bool:
    """Whether the query still returns a row that begins with these values."""
    return any(tuple(row[: len(wanted)]) == wanted for row in database.call(connection, query))


def _wait_for_writers(connection: Any, parent: str) -> str:
    if _has_old_transaction(connection):
        return _HELD
    with _short_waits(connection):
        if not _locked(connection, f"LOCK TABLES `{config.schema_name()}`.{parent} WRITE"):
            return _HELD
        database.execute(connection, "UNLOCK TABLES")
    return ""


def _alter(connection: Any, parent: str, change: str) -> str:
    if _has_old_transaction(connection):
        return _HELD
    with _short_waits(connection):
        had = _locked(connection, f"ALTER TABLE `{config.schema_name()}`.{parent} {change}")
    return "" if had else _HELD


def _locked(connection: Any, statement: str) -> bool:
    """Run a statement that waits for a table; False when it got no lock within a second."""
    try:
        database.execute(connection, statement)
    except Exception as error:
        if errno_of(error) != _LOCK_WAIT_TIMEOUT:
            raise
        return False
    return True


def _has_old_transaction(connection: Any) -> bool:
    """Whether any transaction has been open for a second; False when the login cannot see that."""
    try:
        rows = database.execute(
            connection,
            "SELECT 1 FROM information_schema.INNODB_TRX"
            " WHERE trx_started < SYSDATE() - INTERVAL 1 SECOND"
            " AND trx_mysql_thread_id NOT IN (0, CONNECTION_ID()) LIMIT 1",
        )
    except Exception as error:
        if errno_of(error) != _NO_PROCESS_RIGHT:
            raise
        return False
    return bool(rows)


@contextmanager
def _short_waits(connection: Any) -> Iterator[None]:
    ((before,),) = database.execute(connection, "SELECT @@SESSION.lock_wait_timeout")
    database.execute(connection, f"SET SESSION lock_wait_timeout = {_LOCK_WAIT_SECONDS}")
    try:
        yield
    finally:
        database.execute(connection, f"SET SESSION lock_wait_timeout = {int(before)}")
