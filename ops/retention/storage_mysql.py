"""The physical half of clean on MySQL and MariaDB: what no procedure can do there."""

from __future__ import annotations

from typing import Any

from ops.retention.storage import POSITIONS_AT_A_TIME, SliceDrop, SliceState
from penstock.database import call, connect
from penstock.log import mysql_storage


def drop_slices(url: str) -> list[SliceDrop]:
    """Merge the index, drop what nobody needs, and copy out the little that is still needed.

    Somebody else who cleans at the same time is left to it.
    """
    with (
        connect(url, application_name="penstock clean", statement_timeout_ms=0) as connection,
        mysql_storage.alone(connection) as is_alone,
    ):
        return _clean(connection) if is_alone else []


def _clean(connection: Any) -> list[SliceDrop]:
    call(connection, "note_kept_slice", slice=None)  # a run that was killed may have left it
    call(connection, "settle_blocks")
    while call(connection, "carry_positions", max_rows=POSITIONS_AT_A_TIME)[0][0]:
        pass
    done = [_drop(connection, *row) for row in call(connection, "droppable_slices")]
    done += [_keep(connection, *row) for row in call(connection, "sparse_slices")]
    mysql_storage.forget_numbers(connection)
    for (partition_id,) in call(connection, "mergeable_partitions"):
        while call(connection, "merge_chunks", partition_id=partition_id)[0][0]:
            pass
    return done


def _drop(connection: Any, parent: str, name: str, first_id: int, last_id: int) -> SliceDrop:
    problem = mysql_storage.drop(connection, parent, name)
    state = SliceState.ATTACHED if problem else SliceState.DROPPED
    return SliceDrop(parent, name, first_id, last_id, state, problem)


def _keep(connection: Any, name: str, first_id: int, last_id: int) -> SliceDrop:
    problem = mysql_storage.keep(connection, name, first_id, last_id)
    state = SliceState.ATTACHED if problem else SliceState.KEPT
    return SliceDrop("events", name, first_id, last_id, state, problem)
