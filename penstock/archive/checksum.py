"""An event's canonical digest and a log epoch's checksum, byte for byte as the SQL has them.

The database computes both when it seals a log epoch. Spark computes both again from what it wrote
and from what it reads back. A copy counts as verified only when all of them are equal.

The digest is SHA-256 of: sequence (8 bytes, big endian), event id (16 bytes), then key, type,
content type, headers (the text of the ``jsonb``) and payload, each as a length (4 bytes, big
endian, -1 for NULL) and its bytes, then the creation time in microseconds since 1970 (8 bytes).
The checksum of a log epoch is SHA-256 over the digests in the order of the sequence.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import struct
import uuid
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_pack_long = struct.Struct(">q").pack
_pack_length = struct.Struct(">i").pack
_NULL = _pack_length(-1)


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
    return (moment - _EPOCH) // _MICROSECOND


def event_digest(event: DigestFields) -> bytes:
    """The digest of one event; equal to ``penstock.event_digest`` of the database."""
    parts = [_pack_long(event.sequence), uuid.UUID(event.event_id).bytes]
    for text in (event.key, event.type, event.content_type, event.headers):
        _append(parts, None if text is None else text.encode())
    _append(parts, event.payload)
    parts.append(_pack_long(event.created_at))
    return hashlib.sha256(b"".join(parts)).digest()


def _append(parts: list[bytes], value: bytes | None) -> None:
    if value is None:
        parts.append(_NULL)
    else:
        parts += (_pack_length(len(value)), value)


class EpochChecksum:
    """Digests a log epoch's events in the order of their sequence.  A gap is an error at once."""

    def __init__(self) -> None:
        """Start with no event."""
        self._hash = hashlib.sha256()
        self.event_count = 0
        self.first_sequence = 0
        self.last_sequence = 0

    def add(self, event: DigestFields) -> None:
        """Take the next event."""
        if self.event_count and event.sequence != self.last_sequence + 1:
            raise ValueError(f"sequence {event.sequence} follows {self.last_sequence}")
        self._hash.update(event_digest(event))
        if not self.event_count:
            self.first_sequence = event.sequence
        self.last_sequence = event.sequence
        self.event_count += 1

    def add_all(self, events: Iterable[DigestFields]) -> None:
        """Take the next events."""
        for event in events:
            self.add(event)

    def hexdigest(self) -> str:
        """The checksum of what was added."""
        return self._hash.hexdigest()


def batch_fields(batch: pa.RecordBatch) -> Iterator[DigestFields]:
    """The fields that the digest covers, for each row of a batch with the archive's columns."""
    import pyarrow as pa

    columns = [batch.column(name).to_pylist() for name in DigestFields._fields[:-1]]
    created = batch.column("created_at").cast(pa.int64()).to_pylist()
    return map(DigestFields._make, zip(*columns, created, strict=True))
