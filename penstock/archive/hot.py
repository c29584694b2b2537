"""Events that the database still holds, in the form in which the archive has the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from penstock import database
from penstock.archive.format import FILE_SCHEMA, with_epoch
from penstock.records import as_time, as_uuid

#: How many events to fetch while their size is unknown.
_FIRST_ROWS = 64
_MOST_ROWS = 4_096
#: What the payloads of one batch may come to.  An event that is larger comes alone.
_BYTES_PER_BATCH = 8 << 20
_PAYLOAD = FILE_SCHEMA.get_field_index("payload")


def read_hot(
    connection: Any, topic: str, partition: int, *, log_epoch: int, first: int, last: int
) -> Iterator[pa.RecordBatch]:
    """The events of a range, in order.  BelowLowSequence when they are no longer there.

    Each batch is one short statement, so no snapshot is held while the caller works.
    """
    rows = _FIRST_ROWS
    while first <= last:
        found = database.call_events(
            connection,
            "fetch",
            topic=topic,
            partition=partition,
            from_sequence=first,
            max_events=min(rows, last - first + 1),
        )
        if not found:
            return
        yield with_epoch(_batch(found), partition, log_epoch)
        first += len(found)
        size = sum(len(row[_PAYLOAD]) for row in found)
        rows = max(1, min(_MOST_ROWS, _BYTES_PER_BATCH * len(found) // max(size, 1)))


def _batch(rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    columns: dict[str, Sequence[Any]] = dict(
        zip(FILE_SCHEMA.names, zip(*rows, strict=True), strict=True)
    )
    columns["event_id"] = [str(as_uuid(each)) for each in columns["event_id"]]
    columns["headers"] = [_text(each) for each in columns["headers"]]
    columns["payload"] = [bytes(each) for each in columns["payload"]]
    for name in ("created_at", "sequenced_at"):
        columns[name] = [as_time(each) for each in columns[name]]
    arrays = [pa.array(columns[field.name], field.type) for field in FILE_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=FILE_SCHEMA)


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
