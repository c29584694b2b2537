"""Clean: move the low sequences up as far as retention allows, then drop slices nobody needs.

The database decides both: `clean` moves a low sequence over log epochs that are sealed, passed by
every subscription, copied and old enough; `droppable_slices` names the tables that nobody needs.
Dropping them is in :mod:`ops.storage_postgres` and :mod:`ops.storage_mysql`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ops import storage_mysql, storage_postgres
from ops.storage import SliceDrop
from penstock.database import call, config, connect


@dataclass(frozen=True, slots=True)
class CleanResult:
    """What became of a partition, and what holds it there."""

    topic: str
    partition: int
    old_low_sequence: int
    low_sequence: int
    reason: str


def clean(url: str, topic: str) -> list[CleanResult]:
    """Move the low sequences of a topic as far as its retention policy allows."""
    with connect(url) as connection:
        return [CleanResult(topic, *row) for row in call(connection, "clean", topic=topic)]


def drop_slices(
    url: str, *, patience_seconds: float = storage_postgres.PATIENCE_SECONDS
) -> list[SliceDrop]:
    """Drop the tables that nobody needs any more; what is not had now is had later.

    Needs a connection of its own to the database, not through a pooler, as owner of the schema.
    """
    if config.dialect_of_url(url) == "mysql":
        return storage_mysql.drop_slices(url)
    return storage_postgres.drop_slices(url, patience_seconds=patience_seconds)
