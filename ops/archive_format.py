"""What a row of the archive looks like, for Arrow, for Spark and in the plan of a Spark job."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import pyarrow as pa

_UTC_MICROSECONDS = pa.timestamp("us", tz="UTC")

_COLUMNS: dict[str, pa.DataType] = {
    "sequence": pa.int64(),
    "event_id": pa.string(),
    "key": pa.string(),
    "type": pa.string(),
    "content_type": pa.string(),
    "headers": pa.string(),
    "payload": pa.binary(),
    "created_at": _UTC_MICROSECONDS,
    "sequenced_at": _UTC_MICROSECONDS,
    "history": pa.int32(),
}

#: The columns that are folders: a log epoch is one Delta partition, so it is found, verified and
#: replaced by the log alone, without statistics and without a look into any file.
PARTITION_COLUMNS = ("partition", "log_epoch")

#: The columns inside the files; `headers` is the jsonb's text exactly as the database gives it.
FILE_SCHEMA = pa.schema(_COLUMNS)

#: The columns of the table, in the order in which readers see them.
TABLE_SCHEMA = pa.schema({**dict.fromkeys(PARTITION_COLUMNS, pa.int32()), **_COLUMNS})

#: The key in a file's own metadata under which the writer leaves the checksum of what it wrote.
CHECKSUM_KEY = "penstock.checksum"

_SPARK_TYPES = {
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.string(): "string",
    pa.binary(): "binary",
    _UTC_MICROSECONDS: "timestamp",
}

#: The same as Spark writes it.
SPARK_SCHEMA = ", ".join(f"`{field.name}` {_SPARK_TYPES[field.type]}" for field in TABLE_SCHEMA)


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """One log epoch of a Spark job: what the seal says, where to read and what to replace.

    ``files`` are a verified copy's files to read instead of the database; ``replaces`` are the
    damaged files, relative to the table, that the commit takes out of it.  ``marker`` is the marker
    of the target that the files lie on: without it they are not lost, but out of reach.
    """

    partition: int
    log_epoch: int
    first_sequence: int
    last_sequence: int
    event_count: int
    checksum: str
    history: int = 1
    files: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    marker: str = ""

    @property
    def key(self) -> tuple[int, int]:
        """(partition, log epoch)."""
        return self.partition, self.log_epoch


def dump_plans(plans: list[EpochPlan]) -> str:
    """The plans as an option of a Spark data source."""
    return json.dumps([asdict(plan) for plan in plans])


def load_plans(text: str) -> list[EpochPlan]:
    """The plans out of that option."""
    return [
        EpochPlan(
            **{
                **entry,
                "files": tuple(entry["files"]),
                "replaces": tuple(entry["replaces"]),
            }
        )
        for entry in json.loads(text)
    ]
