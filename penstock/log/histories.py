"""Restore: what a restore of the database lost, and going on after it.

A restore can lose commits.  Then sequences are missing that clients, sinks or archives have already
seen.  When the restore made another cluster or timeline, the sequencer notices it and opens the
next history by itself.  A copy of the whole volume cannot be told from the original by looking at
the database.  So everything that keeps positions outside the database reports them.  A position
beyond the log stops its partition, until an operator reconciles.  That opens the next history.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

from penstock.database import call


@dataclass(frozen=True, slots=True)
class Beyond:
    """A position beyond the end of the log, and who has it."""

    topic: str
    partition: int
    high_watermark: int
    sequence: int
    history: int
    source: str
    reported_at: datetime.datetime | None


@dataclass(frozen=True, slots=True)
class History:
    """One line of the log's history."""

    history: int
    reason: str
    opened_at: datetime.datetime


def restore_status(connection: Any) -> list[Beyond]:
    """Partitions that are stopped, and positions beyond the log; empty when all is well."""
    return [Beyond(*row) for row in call(connection, "restore_status")]


def histories(connection: Any) -> list[History]:
    """The lines of the log's history, oldest first."""
    return [History(*row) for row in call(connection, "histories_of")]


def history_starts(connection: Any, topic: str, history: int) -> dict[int, int | None]:
    """How far a position of a history may be kept in each partition of a topic.

    What is above is other events now.  None where the log has not written down where a later
    history began.
    """
    rows = call(connection, "history_starts_of", topic=topic, history=history)
    return {int(partition): position for partition, position in rows}


def reconcile(connection: Any, reason: str) -> int:
    """Open the next history and let stopped partitions go on.  Returns its number."""
    return int(call(connection, "reconcile", reason=reason)[0][0])
