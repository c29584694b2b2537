"""What takes the place of an erased event, in the archive as in the database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.archive.copies import EpochKey
from penstock.database import call
from penstock.records import LogEpoch

_MOST_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Tombstone:
    """By which erasure an event was erased, and whether its key was too."""

    erasure: str
    replace_key: bool

    @property
    def headers(self) -> str:
        """The text of the headers, byte for byte as the database has it."""
        return json.dumps({"penstock-erased": self.erasure})


#: The erased events of a log epoch, by their sequences.
Tombstones = Mapping[int, Tombstone]


def with_tombstones(batch: pa.RecordBatch, tombstones: Tombstones) -> pa.RecordBatch:
    """Rows with the columns of the archive, the erased ones replaced."""
    sequences: list[Any] = batch.column("sequence").to_pylist()
    hits = {n: tombstones[each] for n, each in enumerate(sequences) if each in tombstones}
    if not hits:
        return batch
    changed: dict[str, list[Any]] = {
        name: batch.column(name).to_pylist() for name in ("key", "headers", "payload")
    }
    for n, tombstone in hits.items():
        changed["payload"][n] = b""
        changed["headers"][n] = tombstone.headers
        if tombstone.replace_key:
            changed["key"][n] = None
    columns = [
        pa.array(changed[field.name], field.type) if field.name in changed else column
        for field, column in zip(batch.schema, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def tombstones_of(connection: Any, epoch: LogEpoch) -> dict[int, Tombstone]:
    """What the database has recorded of a log epoch."""
    found: dict[int, Tombstone] = {}
    first = epoch.first_sequence
    while first <= epoch.last_sequence:
        rows = call(
            connection,
            "erased_of",
            topic=epoch.topic,
            partition=epoch.partition,
            first_sequence=first,
            last_sequence=epoch.last_sequence,
            max_rows=_MOST_ROWS,
        )
        found |= {row[0]: Tombstone(str(row[1]), bool(row[2])) for row in rows}
        if len(rows) < _MOST_ROWS:
            break
        first = rows[-1][0] + 1
    return found


def old_checksums(connection: Any, topic: str) -> dict[EpochKey, set[str]]:
    """The checksums that log epochs of a topic had before events of them were erased."""
    found: dict[EpochKey, set[str]] = {}
    for partition, log_epoch, old, *_ in call(connection, "reissued_of", topic=topic):
        found.setdefault((partition, log_epoch), set()).add(str(old))
    return found
