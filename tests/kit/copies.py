"""Copies of log epochs without Spark: written from what the database has, recorded, and removed.

The file is the one that a task of the archive would leave: its folder, its columns, its checksum.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ops.seal import log_epochs
from penstock import database
from penstock.archive.copies import epoch_folder, key_of
from penstock.archive.database_reader import read_hot
from penstock.archive.format import CHECKSUM_KEY, FILE_SCHEMA
from penstock.archive.markers import mark
from penstock.archive.targets import Target
from penstock.records import LogEpoch
from tests.kit.cleaning import clean_unread


def copy_all(own: Any, topic: str, *targets: Target) -> list[LogEpoch]:
    """Every log epoch that the database still has, on each of the targets."""
    found = [each for each in log_epochs(own, topic) if each.dropped_at is None]
    for target in targets:
        for epoch in found:
            write_copy(own, epoch, target)
    return found


def write_copy(own: Any, epoch: LogEpoch, target: Target, group_rows: int = 7) -> Path:
    """One log epoch, written and recorded.  Returns its file."""
    ((installation,),) = database.call(own, "installation_id")
    mark(target, str(installation))
    batches = read_hot(
        own, epoch.topic, epoch.partition, log_epoch=epoch.log_epoch, first=epoch.first_sequence,
        last=epoch.last_sequence,
    )  # fmt: skip
    table = pa.Table.from_batches(batches).select(FILE_SCHEMA.names)
    folder = epoch_folder(target, epoch.known_as, key_of(epoch))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "part-1.parquet"
    with pq.ParquetWriter(path, FILE_SCHEMA) as writer:
        writer.write_table(table, row_group_size=group_rows)
        writer.add_key_value_metadata({CHECKSUM_KEY: epoch.checksum})
    record(own, epoch, target.name, str(folder))
    return path


def record(own: Any, epoch: LogEpoch, target: str, location: str = "nowhere") -> None:
    """Record a copy, whether it is there or not."""
    database.call(
        own, "record_copy", topic=epoch.topic, partition=epoch.partition,
        log_epoch=epoch.log_epoch, target=target, location=location,
        event_count=epoch.event_count, checksum=epoch.checksum, layout=1, first_row=0,
    )  # fmt: skip


def drop(own: Any, topic: str, targets: Iterable[Target]) -> None:
    """Retention removes all that is sealed, as if every copy had been read back."""
    database.call(
        own, "set_retention", topic=topic, minimum_age_seconds=0, copies=1, origin="hand",
        max_bytes=None, targets=[target.name for target in targets],
    )  # fmt: skip
    clean_unread(own, topic)


def remove(target: Target) -> None:
    """The place of a target is gone, its marker too."""
    shutil.rmtree(target.root)
