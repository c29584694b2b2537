"""Sweep: what dead programs have left.

Those are consumers of subscriptions to which no consumer checks in any more, and events that a
Spark job has staged and never published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock import database


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What one sweep did.

    ``locked_leases`` could not be freed, because a transaction of the dead holder still locks
    them.  A later sweep or check-in frees them.  ``orphaned_chunks`` of staged events are gone.
    """

    expired_consumers: int
    locked_leases: int
    orphaned_chunks: int = 0


#: How old staged events have to be: no write takes as long.
ORPHAN_SECONDS = 86_400.0


def sweep(connection: Any, max_rows: int = 1000) -> SweepResult:
    """Free the leases of consumers whose lease time is over, as every check-in does.

    Also removes staged events that are a day old.
    """
    ((expired, locked),) = database.call(connection, "sweep", max_rows=max_rows)
    ((orphans,),) = database.call(
        connection, "sweep_staged", max_age_seconds=ORPHAN_SECONDS, max_rows=max_rows
    )
    return SweepResult(expired, locked, orphans)
