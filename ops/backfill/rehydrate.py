"""Rehydrate: bring dropped log epochs back from a copy, so that SQL reads them again.

A log epoch comes back in one transaction.  The database compares what came with the seal before
anybody sees it, and records the range as done in the same transaction.  So a log epoch is there
whole or not at all, and a runner that lost its attempt brings nothing.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from ops.backfill.requests import LEASE_SECONDS, BackfillClaim, BackfillUnit
from penstock.archive.log_reader import read
from penstock.database import call
from penstock.database.transactions import transaction_on
from penstock.errors import (
    CopyDamaged,
    EpochError,
    ForeignTarget,
    RetentionRefused,
    TargetUnavailable,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from ops.backfill.running import Job
    from penstock.archive.targets import Target

#: What one call brings at most: so many events, or so much of payload.
_ROWS_AT_ONCE = 1_000
_BYTES_AT_ONCE = 1 << 20
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)

#: sequence, event_id, key, type, content_type, headers (text), payload, created_at, sequenced_at.
Row = tuple[int, str, str | None, str, str, str | None, bytes, dt.datetime, dt.datetime]


_COLUMNS = (
    "sequence", "event_id", "key", "type", "content_type", "headers", "payload", "created_at",
    "sequenced_at",
)  # fmt: skip


class Rehydrator:
    """Brings the log epochs of one request back, from the first target with a whole copy."""

    def __init__(self, job: Job, targets: Sequence[Target]) -> None:
        """Take where copies may be read."""
        self._job = job
        self._targets = targets

    def bring(self, unit: BackfillUnit) -> None:
        """Bring a log epoch back and record it as done; EpochError when no copy of it is whole."""
        job = self._job
        reasons = []
        for target in self._targets:
            try:
                with closing(self._rows(unit, target)) as rows:
                    bring_back(job.connection, job.claim, unit, rows, job.lease_seconds)
            except (
                CopyDamaged, EpochError, ForeignTarget, RetentionRefused, TargetUnavailable,
            ) as error:  # fmt: skip
                reasons.append(f"{target.name}: {error.message}")
            else:
                return
        raise EpochError(
            f"no target gives log epoch {unit.log_epoch} of partition {unit.partition} as it was "
            f"sealed ({'; '.join(reasons) or 'none was given'})",
            hint="name the targets that hold it, or make its copy again by a request of the kind "
            "copy",
        )

    def close(self) -> None:
        """Nothing is held open between two log epochs."""

    def _rows(self, unit: BackfillUnit, target: Target) -> Generator[Row, None, None]:
        job = self._job
        place = (job.url, job.claim.topic, unit.partition, unit.first_sequence, unit.event_count)
        with read(*place, targets=[target]) as batches:
            for batch in batches:
                job.alive.check()
                yield from rows_of(batch)


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """The rows of a batch with the archive's columns."""
    yield from zip(*(batch.column(name).to_pylist() for name in _COLUMNS), strict=True)


def bring_back(
    connection: Any,
    claim: BackfillClaim,
    unit: BackfillUnit,
    rows: Iterable[Row],
    lease_seconds: float = LEASE_SECONDS,
) -> bool:
    """Bring the events of a dropped log epoch, compare them with the seal and record the range.

    Returns whether anything was brought: it may be there already.  RetentionRefused when the rows
    are not what was sealed; then nothing was.  The connection commits by itself.
    """
    place: dict[str, Any] = {
        "request": claim.request,
        "attempt": claim.attempt,
        "partition": unit.partition,
        "log_epoch": unit.log_epoch,
    }
    with transaction_on(connection):
        ((is_missing,),) = call(connection, "begin_rehydration", **place)
        if is_missing:
            for events in _lots(rows):
                call(connection, "put_rehydrated", **place, events=events)
        call(connection, "finish_rehydration", **place, lease_seconds=lease_seconds)
    return bool(is_missing)


def release(
    connection: Any, topic: str, *, older_than_seconds: float = 0, max_epochs: int = 100
) -> int:
    """Take log epochs away again that were brought back so long ago.  Returns how many went."""
    ((released,),) = call(
        connection,
        "release_rehydrated",
        topic=topic,
        older_than_seconds=older_than_seconds,
        max_epochs=max_epochs,
    )
    return int(released)


def _lots(rows: Iterable[Row]) -> Iterator[str]:
    """The events as the database takes them, in texts of bounded size."""
    lot: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        lot.append(_event(row))
        size += len(row[6])
        if len(lot) >= _ROWS_AT_ONCE or size >= _BYTES_AT_ONCE:
            yield json.dumps(lot)
            lot, size = [], 0
    if lot:
        yield json.dumps(lot)


def _event(row: Row) -> dict[str, Any]:
    sequence, event_id, key, type_, content_type, headers, payload, created, sequenced = row
    return {
        "sequence": sequence,
        "event_id": event_id,
        "key": key,
        "type": type_,
        "content_type": content_type,
        "headers": headers,
        "payload": base64.b64encode(payload).decode(),
        "created_at": (created - _EPOCH) // _MICROSECOND,
        "sequenced_at": (sequenced - _EPOCH) // _MICROSECOND,
    }
