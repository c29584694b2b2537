"""An event's canonical digest and a log epoch's checksum, byte for byte as the SQL has them.

The database computes both when it seals a log epoch. Spark computes both again from what it wrote
and from what it reads back. A copy counts as verified only when all of them are equal.

The digest is SHA-256 of: sequence (8 bytes, big endian), event id (16 bytes), then key, type,
content type, headers (the text of the ``jsonb``) and payload, each as a length (4 bytes, big
endian, -1 for NULL) and its bytes, then the creation time in microseconds since 1970 (8 bytes).
The checksum of a log epoch is SHA-256 over the digests in the order of the sequence.

Arrow puts the bytes of a whole batch together: row by row in Python it took four times as long.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_WITH_LENGTH = ("key", "type", "content_type", "headers", "payload")


class EpochChecksum:
    """Digests a log epoch's events in the order of their sequence.  A gap is an error at once."""

    def __init__(self) -> None:
        """Start with no event."""
        self._hash = hashlib.sha256()
        self.event_count = 0
        self.first_sequence = 0
        self.last_sequence = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the next events: rows with the columns of ``penstock.archive.format.FILE_SCHEMA``.

        ValueError when a sequence does not follow the one before it.
        """
        sequences: list[Any] = batch.column("sequence").to_pylist()
        if not sequences:
            return
        before = self.last_sequence if self.event_count else sequences[0] - 1
        if sequences != list(range(before + 1, before + 1 + len(sequences))):
            last, gap = next(
                pair for pair in pairwise([before, *sequences]) if pair[1] != pair[0] + 1
            )
            raise ValueError(f"sequence {gap} follows {last}")
        self._hash.update(b"".join(digests(batch)))
        if not self.event_count:
            self.first_sequence = sequences[0]
        self.last_sequence = sequences[-1]
        self.event_count += len(sequences)

    def hexdigest(self) -> str:
        """The checksum of what was added."""
        return self._hash.hexdigest()


def digests(batch: pa.RecordBatch) -> list[bytes]:
    """The digest of each row; equal to ``penstock.event_digest`` of the database."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = [_big_endian(batch.column("sequence"), "q"), _event_ids(batch.column("event_id"))]
    for name in _WITH_LENGTH:
        # The offsets of large ones have 64 bits: what is put together may exceed 2 GiB.
        values: Any = batch.column(name).cast(pa.binary()).cast(pa.large_binary())
        lengths = pc.fill_null(pc.binary_length(values), -1).cast(pa.int32())
        parts += [
            _big_endian(lengths, "i"),
            pc.fill_null(values, pa.scalar(b"", pa.large_binary())),
        ]
    parts.append(_big_endian(batch.column("created_at").cast(pa.int64()), "q"))
    whole = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))
    return [hashlib.sha256(row).digest() for row in whole.to_pylist()]


def _big_endian(values: Any, code: str) -> Any:
    """Numbers as their bytes in the order of the network."""
    width = values.type.byte_width
    numbers = array(code)
    _, data = values.buffers()
    numbers.frombytes(
        memoryview(data)[values.offset * width : (values.offset + len(values)) * width]
    )
    if sys.byteorder == "little":
        numbers.byteswap()
    return _fixed(numbers, width, len(values), values.null_count)


def _event_ids(values: Any) -> Any:
    """UUIDs out of their text."""
    texts = values.to_pylist()
    found = b"" if None in texts else bytes.fromhex("".join(texts).replace("-", ""))
    return _fixed(found, 16, len(values), len(values) - len(found) // 16)


def _fixed(data: Any, width: int, count: int, missing: int) -> Any:
    import pyarrow as pa

    if missing:
        raise ValueError("an event without sequence, event id or creation time")
    found = pa.Array.from_buffers(pa.binary(width), count, [None, pa.py_buffer(data)])
    return found.cast(pa.binary()).cast(pa.large_binary())
