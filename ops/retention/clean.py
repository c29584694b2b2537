"""Clean: begin a run, drop what it has found whole, then drop slices nobody needs.

`clean_topics` in :mod:`ops.duties.verbs` is the whole run; :mod:`ops.retention.guard` reads back
what is due.  The database decides: `clean` moves a low sequence over log epochs that are sealed,
passed by every subscription, old enough, and whose copies this very run has read back;
`droppable_slices` names the tables that nobody needs.  Dropping them is in
:mod:`ops.retention.storage_postgres` and :mod:`ops.retention.storage_mysql`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ops.retention import storage_mysql, storage_postgres
from ops.retention.storage import SliceDrop
from ops.seal import due_log_epochs
from penstock.database import call, config, connect

if TYPE_CHECKING:
    from penstock.records import LogEpoch

#: How many events of log epochs of older versions one run counts at most, for a limit in bytes; and
#: in one transaction, because whoever records a copy waits for it.
MOST_COUNTED = 5_000_000
COUNTED_AT_ONCE = 100_000

#: How many log epochs one run reads back and drops at most, over all partitions of a topic.
MOST_EPOCHS = 1_000


@dataclass(frozen=True, slots=True)
class CleanResult:
    """What became of a partition, and what holds it there."""

    topic: str
    partition: int
    old_low_sequence: int
    low_sequence: int
    reason: str


@dataclass(frozen=True, slots=True)
class BegunClean:
    """The token of a run, and what it has to read back."""

    run: str
    due: tuple[LogEpoch, ...]


def begin(url: str, topic: str, max_epochs: int = MOST_EPOCHS) -> BegunClean:
    """Begin a run.  What it returns has to be read back under its token."""
    with connect(url, application_name="penstock clean") as connection:
        for _ in range(MOST_COUNTED // COUNTED_AT_ONCE):
            ((left,),) = call(
                connection, "count_log_epochs", topic=topic, max_events=COUNTED_AT_ONCE
            )
            if not left:
                break
        ((run,),) = call(connection, "begin_clean", topic=topic)
        return BegunClean(str(run), tuple(due_log_epochs(connection, topic, max_epochs)))


def drop(url: str, topic: str, run: str) -> tuple[CleanResult, ...]:
    """Remove what was read back whole under this token; nothing of the topic if a copy is damaged.

    A second call with the same token removes nothing more.
    """
    with connect(url, application_name="penstock clean") as connection:
        rows = call(connection, "clean", topic=topic, run=run)
    return tuple(CleanResult(topic, *row) for row in rows)


def drop_slices(
    url: str, *, patience_seconds: float = storage_postgres.PATIENCE_SECONDS
) -> list[SliceDrop]:
    """Drop the tables that nobody needs any more.  What cannot be dropped now is tried later.

    Needs a connection of its own to the database, not through a pooler, as owner of the schema.
    """
    if config.dialect_of_url(url) == "mysql":
        return storage_mysql.drop_slices(url)
    return storage_postgres.drop_slices(url, patience_seconds=patience_seconds)
