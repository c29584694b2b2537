"""Sweep: free what dead programs hold, and drop dead letters that were kept for long enough.

Dead programs are consumers of subscriptions to which no consumer checks in any more, and Spark jobs
that have staged events and never published them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock import database


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What one sweep did.

    ``locked_leases`` could not be freed, because a transaction of the dead holder still locks
    them.  A later sweep or check-in frees them.  ``expired_letters`` are dead letters that were
    older than their policy says.  ``orphaned_chunks`` of staged events are gone.
    """

    expired_consumers: int
    locked_leases: int
    expired_letters: int
    orphaned_chunks: int


#: How old staged events have to be: no write takes as long.
ORPHAN_SECONDS = 86_400.0


def sweep(connection: Any, max_rows: int = 1000) -> SweepResult:
    """Free the leases of consumers whose lease time is over, as every check-in does.

    Then drop dead letters by age, and staged events that are a day old, each in a transaction of
    its own where the connection commits by itself: so leases never wait for it.
    """
    ((expired, locked),) = database.call(connection, "sweep", max_rows=max_rows)
    ((letters,),) = database.call(connection, "expire_dead_letters", max_rows=max_rows)
    ((orphans,),) = database.call(
        connection, "sweep_staged", max_age_seconds=ORPHAN_SECONDS, max_rows=max_rows
    )
    return SweepResult(expired, locked, int(letters), int(orphans))
