"""Sweep: free what dead programs hold, and drop what was kept for long enough.

Dead programs are consumers of subscriptions to which no consumer checks in any more, and Spark jobs
that have staged events and never published them.  What is dropped are dead letters by age, what was
kept to find copies of dead letters that are gone, and what removed subscriptions have left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock import database
from penstock.database import sessions
from penstock.subscriptions import letter_moves, letter_tasks


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What one sweep did.

    ``locked_leases`` could not be freed, because a transaction of the dead holder still locks
    them.  A later sweep or check-in frees them.  ``expired_letters`` are dead letters that were
    older than their policy says.  ``forgotten_copies`` are rows of copies of dead letters that no
    erasure has to find any more.  ``orphaned_chunks`` of staged events are gone, and so are
    ``leftover_rows`` of removed subscriptions.  ``forgotten_sends`` are claims of sends that are
    over.  ``task_letters`` were redriven or dropped because a task said so
    (:mod:`penstock.subscriptions.letter_tasks`), and ``moved_letters`` were moved out of queues of
    dead letters (:mod:`penstock.subscriptions.letter_moves`).
    """

    expired_consumers: int
    locked_leases: int
    expired_letters: int
    forgotten_copies: int
    orphaned_chunks: int
    leftover_rows: int
    forgotten_sends: int = 0
    task_letters: int = 0
    moved_letters: int = 0


#: How old staged events have to be: no write takes as long.
ORPHAN_SECONDS = 86_400.0
#: A sweep does at most so many batches of leftovers, and of a task; the next one goes on.
MOST_BATCHES = 100


def sweep(connection: Any, max_rows: int = 1000) -> SweepResult:
    """Free the leases of consumers whose lease time is over, as every check-in does.

    Then move the positions of queues from which nobody receives, to before their lowest unfinished
    event.  Then drop dead letters by age, what is known of copies of dead letters that are gone,
    staged events that are a day old, and leftovers and claims of sends in batches of ``max_rows``,
    each in a transaction of its own where the connection commits by itself: so leases never wait
    for it.
    """
    ((expired, locked),) = database.call(connection, "sweep", max_rows=max_rows)
    ((letters,),) = database.call(connection, "expire_dead_letters", max_rows=max_rows)
    ((copies,),) = database.call(connection, "forget_letter_copies", max_rows=min(max_rows, 10_000))
    ((orphans,),) = database.call(
        connection, "sweep_staged", max_age_seconds=ORPHAN_SECONDS, max_rows=max_rows
    )
    leftovers = _in_batches(connection, "remove_leftovers", max_rows)
    sends = _in_batches(connection, "forget_sends", min(max_rows, 10_000))
    tasks = _work_on_tasks(connection, min(max_rows, 1_000))
    moved = letter_moves.work(connection)
    return SweepResult(
        expired, locked, int(letters), int(copies), int(orphans), leftovers, sends, tasks, moved
    )


def _work_on_tasks(connection: Any, max_rows: int) -> int:
    total = 0
    for _ in range(_batches(connection) // 10 or 1):
        if not letter_tasks.tasks(connection, only_open=True, max_rows=1):
            break
        total += letter_tasks.work(connection, max_rows)
    return total


def _batches(connection: Any) -> int:
    """How many batches, each in a transaction of its own where the connection commits by itself."""
    driver = database.driver_connection(connection)
    return MOST_BATCHES if sessions.of_connection(driver).commits_by_itself(driver) else 1


def _in_batches(connection: Any, name: str, max_rows: int) -> int:
    """Call what deletes so many rows at most until it finds fewer.  Returns how many it were."""
    total = 0
    for _ in range(_batches(connection)):
        ((rows,),) = database.call(connection, name, max_rows=max_rows)
        total += int(rows)
        if rows < max_rows:
            break
    return total
