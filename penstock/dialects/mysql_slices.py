"""The partitions of `events` on MySQL and MariaDB: made ahead, and dropped when nobody needs them.

DDL waits for every open transaction that has used the table and makes all later ones wait behind
it.  The least that MySQL can be told to wait is a second; so nothing is tried while a transaction
is older than that, and what does not get its lock is left to the next time.  DDL commits, so the
caller is in no transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock import config, database
from penstock.errors import errno_of

#: Blocks of events that are ready at least, and how many a partition has: few at first, so that a
#: young log can be cleaned early.
READY_BLOCKS = 10_000_000
LARGEST_BLOCKS = 10_000_000
BLOCK = 256

_LOCK_WAIT_TIMEOUT = 1205
_NO_PROCESS_RIGHT = 1227


def ensure(connection: Any) -> int:
    """Make partitions ahead of the publishers; answers how many were added."""
    added = 0
    while _blocks_ready(connection) < READY_BLOCKS:
        if not _add(connection):
            break
        added += 1
    return added


def drop(connection: Any, slice_name: str, last_id: int) -> bool:
    """Drop one partition that `droppable_slices` named; False when it has to wait.

    Behind the lock nobody has an open transaction with events in it, so what `pending` does not
    hold by then cannot come any more.
    """
    if _has_old_transaction(connection):
        return False
    schema = config.schema_name()
    with _short_waits(connection):
        try:
            database.execute(
                connection,
                f"LOCK TABLES `{schema}`.events WRITE, `{schema}`.pending READ",
            )
            waiting = database.execute(
                connection,
                f"SELECT 1 FROM `{schema}`.pending WHERE block <= %(block)s LIMIT 1",
                {"block": last_id // BLOCK},
            )
            if not waiting:
                database.execute(
                    connection, f"ALTER TABLE `{schema}`.events DROP PARTITION `{slice_name}`"
                )
        except Exception as error:
            if errno_of(error) != _LOCK_WAIT_TIMEOUT:
                raise
            return False
        finally:
            database.execute(connection, "UNLOCK TABLES")
    return not waiting


def _add(connection: Any) -> bool:
    if _has_old_transaction(connection):
        return False
    schema = config.schema_name()
    ((last,),) = database.execute(
        connection,
        "SELECT MAX(CAST(PARTITION_DESCRIPTION AS SIGNED)) FROM information_schema.PARTITIONS"
        " WHERE TABLE_SCHEMA = %(schema)s AND TABLE_NAME = 'events'",
        {"schema": schema},
    )
    if last is None:  # The login may not see the table, nor alter it: the owner's has to.
        return False
    first_block = last // BLOCK
    end = last + min(first_block, LARGEST_BLOCKS) * BLOCK
    with _short_waits(connection):
        try:
            database.execute(
                connection,
                f"ALTER TABLE `{schema}`.events ADD PARTITION"
                f" (PARTITION b{first_block} VALUES LESS THAN ({end}))",
            )
        except Exception as error:
            if errno_of(error) != _LOCK_WAIT_TIMEOUT:
                raise
            return False
    return True


def _blocks_ready(connection: Any) -> int:
    (row,) = database.call(connection, "slices_ready")
    return int(row[2]) // BLOCK


def _has_old_transaction(connection: Any) -> bool:
    """Whether somebody's transaction has been open for a second; False when that cannot be seen."""
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
    database.execute(connection, "SET SESSION lock_wait_timeout = 1")
    try:
        yield
    finally:
        database.execute(connection, f"SET SESSION lock_wait_timeout = {int(before)}")
