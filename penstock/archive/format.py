"""What a row of the archive looks like, for Arrow and for Spark."""

from __future__ import annotations

from array import array
from typing import Any

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

#: The columns that name a log epoch.
PARTITION_COLUMNS = ("partition", "log_epoch")

#: The columns inside the files; `headers` is the jsonb's text exactly as the database gives it.
FILE_SCHEMA = pa.schema(_COLUMNS)

#: The columns that readers see, in their order.
TABLE_SCHEMA = pa.schema({**dict.fromkeys(PARTITION_COLUMNS, pa.int32()), **_COLUMNS})

#: A folder for each log epoch: what was written before layout 2.
FOLDERS = 1
#: Files of the day on which log epochs were sealed; a file may hold many log epochs.
DAYS = 2

#: The column by which the table of layout 2 is partitioned: the UTC date of `sealed_at`.
DAY_COLUMN = "sealed_date"

#: The columns of the table of layout 2.  Its files hold those of `TABLE_SCHEMA`.
DAY_SCHEMA = TABLE_SCHEMA.append(pa.field(DAY_COLUMN, pa.date32()))

#: The key in a file's own metadata under which the writer leaves the checksum of what it wrote.
CHECKSUM_KEY = "penstock.checksum"

#: The same of layout 2: which log epochs the file holds, in which rows.
CONTENTS_KEY = "penstock.log_epochs"

_SPARK_TYPES = {
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.string(): "string",
    pa.binary(): "binary",
    # Not "timestamp", which spark.sql.timestampType makes one without a zone.
    _UTC_MICROSECONDS: "timestamp_ltz",
}

#: The same as Spark writes it.
SPARK_SCHEMA = ", ".join(f"`{field.name}` {_SPARK_TYPES[field.type]}" for field in TABLE_SCHEMA)


def repeated(value: int, rows: int) -> pa.Array[Any]:
    """A column of one 32-bit number."""
    return of_numbers(array("i", [value]) * rows, pa.int32())


def repeated_text(text: str, rows: int) -> pa.Array[Any]:
    """A column of one text."""
    written = text.encode()
    offsets = array("i", range(0, (rows + 1) * len(written), len(written)))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(written * rows)]
    return pa.Array.from_buffers(pa.string(), rows, buffers)


def of_numbers(numbers: array[int], kind: pa.DataType) -> pa.Array[Any]:
    """A column of numbers, as they lie in memory: ``pa.array`` loads pandas where there is one."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def with_epoch(batch: pa.RecordBatch, partition: int, log_epoch: int) -> pa.RecordBatch:
    """Rows of one log epoch with the columns of ``TABLE_SCHEMA``."""
    constants = [repeated(value, batch.num_rows) for value in (partition, log_epoch)]
    columns = [batch.column(name) for name in FILE_SCHEMA.names]
    return pa.RecordBatch.from_arrays([*constants, *columns], schema=TABLE_SCHEMA)
