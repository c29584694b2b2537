"""Events as the digest sees them, one by one: what the checksum over batches is compared with."""

from __future__ import annotations

import datetime as dt
import hashlib
import struct
import uuid
from typing import NamedTuple

import pyarrow as pa

from penstock.archive.checksum import digests
from penstock.archive.format import FILE_SCHEMA

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class DigestFields(NamedTuple):
    """What the digest covers, in its order and in the types of the archive's columns."""

    sequence: int
    event_id: str
    key: str | None
    type: str | None
    content_type: str | None
    headers: str | None
    payload: bytes | None
    created_at: int


def microseconds(moment: dt.datetime) -> int:
    """Microseconds since 1970-01-01 UTC; exact, unlike a float timestamp."""
    return (moment - _EPOCH) // dt.timedelta(microseconds=1)


def batch_of(*events: DigestFields) -> pa.RecordBatch:
    """The events as rows of the archive."""
    columns = dict(zip(DigestFields._fields, zip(*events, strict=True), strict=True))
    arrays = [
        pa.array(columns.get(field.name, [1] * len(events)), field.type) for field in FILE_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=FILE_SCHEMA)


def event_digest(event: DigestFields) -> bytes:
    """The digest of one event, as Penstock computes it."""
    return digests(batch_of(event))[0]


def spelt_digest(event: DigestFields) -> bytes:
    """The same by the words of the documentation, field after field."""
    spelt = struct.pack(">q", event.sequence) + uuid.UUID(event.event_id).bytes
    for value in (event.key, event.type, event.content_type, event.headers, event.payload):
        held = value.encode() if isinstance(value, str) else value
        spelt += struct.pack(">i", -1) if held is None else struct.pack(">i", len(held)) + held
    return hashlib.sha256(spelt + struct.pack(">q", event.created_at)).digest()
