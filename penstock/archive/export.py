"""Export: all events of a topic in files that any program reads, hot and cold as one."""

from __future__ import annotations

import base64
import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.archive.format import TABLE_SCHEMA
from penstock.archive.log_reader import events_of, read_on
from penstock.archive.targets import Target
from penstock.errors import ConfigurationError, InvalidArgument, NoDiskSpace, PenstockError
from penstock.records import Event
from penstock.topics.names import partition_ranges

JSONL, PARQUET = FORMATS = ("jsonl", "parquet")
#: What a disk may say after whole partitions were written, so the call was not wrong.
_FAILURES: dict[int | None, type[PenstockError]] = {
    errno.ENOSPC: NoDiskSpace,
    errno.EDQUOT: NoDiskSpace,
    errno.EIO: PenstockError,
}


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written of a partition.  ``last_sequence`` is where it ended at the start."""

    partition: int
    first_sequence: int
    last_sequence: int
    events: int
    file: str


def export_topic(
    connection: Any,
    topic: str,
    folder: Path,
    form: str = JSONL,
    *,
    first_sequence: int = 1,
    targets: Iterable[Target] = (),
) -> Iterator[Exported]:
    """Write each partition into a file of its own, up to where it ends at the start.

    ``form`` is jsonl or parquet.  Cold events are read from the ``targets``.  A file that is there
    is refused, and an unfinished one has another name, so a file that is there is whole.
    """
    if form not in FORMATS:
        raise InvalidArgument(f"{form!r} is no format", hint=f"use {' or '.join(FORMATS)}")
    given = tuple(targets)
    ranges = partition_ranges(connection, topic)
    paths = [folder / f"{each.partition}.{form}" for each in ranges]
    for path in paths:
        if path.exists():
            raise InvalidArgument(f"{path} is there already", hint="export into an empty folder")
    with _typed_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for each, path in zip(ranges, paths, strict=True):
        count = each.high_watermark - first_sequence + 1
        written = 0
        with _typed_errors(path), _writing(path, form, topic) as write:
            if count > 0:
                with read_on(
                    connection, topic, each.partition, first_sequence, count, targets=given
                ) as batches:
                    for batch in batches:
                        write(batch)
                        written += batch.num_rows
        yield Exported(each.partition, first_sequence, each.high_watermark, written, str(path))


@contextmanager
def _typed_errors(path: Path) -> Iterator[None]:
    """ConfigurationError for what the file system refuses; reading has errors of its own."""
    try:
        yield
    except OSError as error:
        if kind := _FAILURES.get(error.errno):
            raise kind(
                f"{path} cannot be written: {error.strerror or error}",
                hint="partitions before it are whole; export again to another folder, with room",
            ) from error
        raise ConfigurationError(
            f"{path} cannot be written: {error.strerror or error}",
            hint="take a folder that this user may write to",
        ) from error


@contextmanager
def _writing(path: Path, form: str, topic: str) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """What writes a batch into the file, which has its name once it is whole and on the disk."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    with unfinished.open("wb") as file:
        if form == PARQUET:
            with pq.ParquetWriter(file, TABLE_SCHEMA) as parquet:
                parquet.add_key_value_metadata({"penstock.topic": topic})
                yield parquet.write_batch
        else:
            yield lambda batch: file.writelines(map(_line, events_of(topic, batch)))
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)


def _line(event: Event) -> bytes:
    """An event as one JSON object: what is no text is in base64."""
    found: dict[str, Any] = {
        "topic": event.topic,
        "partition": event.partition,
        "sequence": event.sequence,
        "history": event.history,
        "event_id": str(event.event_id),
        "key": event.key,
        "type": event.type,
        "content_type": event.content_type,
        "headers": event.headers,
        "created_at": event.created_at.isoformat(),
        "sequenced_at": event.sequenced_at.isoformat(),
    }
    try:
        found["payload"] = event.payload.decode()
    except UnicodeDecodeError:
        found["payload_base64"] = base64.b64encode(event.payload).decode()
    return f"{json.dumps(found, ensure_ascii=False)}\n".encode()
