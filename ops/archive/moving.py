"""What puts log epochs into another file of a table: the check of the file, and the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ops.archive.sampling import is_whole
from penstock.archive.contents import EpochRows
from penstock.archive.copies import Copy
from penstock.archive.format import DAYS
from penstock.archive.table import ArchiveTable
from penstock.database import call
from penstock.database.transactions import transaction_on
from penstock.errors import CopyDamaged


def require_whole(
    table: ArchiveTable, path: str, rows: Sequence[EpochRows], copies: Sequence[Copy]
) -> None:
    """CopyDamaged unless every log epoch is in the file, event for event, as it was sealed."""
    for each, copy in zip(rows, copies, strict=True):
        placed = Copy(
            copy.target,
            copy.known_as,
            *copy.key,
            copy.first_sequence,
            copy.last_sequence,
            copy.event_count,
            copy.checksum,
            DAYS,
            path,
            each.first_row,
        )
        if not is_whole(table.target, placed):
            raise CopyDamaged(
                f"log epoch {copy.log_epoch} of {copy.known_as}/{copy.partition} on "
                f"{copy.target} is not what was sealed",
                hint="penstock backfill makes it again; then run rollup again",
            )


def move(
    connection: Any, topic: str, path: str, rows: Sequence[EpochRows], copies: Sequence[Copy]
) -> None:
    """Move the manifest in one transaction.

    A copy that was forgotten meanwhile stays where it is: the next backfill finds it in the table.
    """
    with transaction_on(connection):
        for each, copy in zip(rows, copies, strict=True):
            call(
                connection,
                "move_copy",
                topic=topic,
                partition=copy.partition,
                log_epoch=copy.log_epoch,
                target=copy.target,
                old_location=copy.location,
                location=path,
                first_row=each.first_row,
            )
