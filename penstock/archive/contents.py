"""What a file of layout 2 says of itself: which log epochs it holds, and in which rows.

The database has the same in its manifest.  The file says it too, so that a file can be told from
another one, and read, when the database is behind or gone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import pyarrow.parquet as pq

from penstock.archive.copies import EpochKey
from penstock.archive.format import CONTENTS_KEY


@dataclass(frozen=True, slots=True)
class EpochRows:
    """The rows of one log epoch in a file."""

    partition: int
    log_epoch: int
    first_sequence: int
    event_count: int
    checksum: str
    first_row: int
    history: int

    @property
    def key(self) -> EpochKey:
        """(partition, log epoch)."""
        return self.partition, self.log_epoch

    @property
    def last_sequence(self) -> int:
        """The last sequence; a log epoch has no gap."""
        return self.first_sequence + self.event_count - 1


def dump_contents(rows: Sequence[EpochRows]) -> str:
    """As the file's metadata."""
    return json.dumps([astuple(each) for each in rows])


def contents_of(metadata: pq.FileMetaData) -> tuple[EpochRows, ...]:
    """What a file says; ValueError when it says nothing, or something that cannot be."""
    text = (metadata.metadata or {}).get(CONTENTS_KEY.encode())
    if text is None:
        raise ValueError("the file does not say which log epochs it holds")
    rows = tuple(EpochRows(*each) for each in json.loads(text))
    if sum(each.event_count for each in rows) != metadata.num_rows:
        raise ValueError(f"the file has {metadata.num_rows} rows, its log epochs have others")
    return rows


def read_contents(source: Any) -> tuple[EpochRows, ...]:
    """The same of a path or an open file."""
    return contents_of(pq.read_metadata(source))


def require_held(
    contents: Sequence[EpochRows], key: EpochKey, first_row: int, checksum: str
) -> None:
    """ValueError unless a file says that it holds a log epoch there, with that checksum."""
    for rows in contents:
        if rows.key == key and rows.first_row == first_row:
            if rows.checksum != checksum:
                raise ValueError(f"the file says that it holds the checksum {rows.checksum}")
            return
    raise ValueError("the file says that it does not hold this log epoch")
