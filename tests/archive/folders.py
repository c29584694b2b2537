"""Archives of layout 1, as versions before layout 2 have written them."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from ops.archive.epoch_reader import EpochReader
from penstock.archive.copies import Copy, epoch_folder, key_of
from penstock.archive.format import (
    CHECKSUM_KEY,
    FILE_SCHEMA,
    FOLDERS,
    PARTITION_COLUMNS,
    TABLE_SCHEMA,
)
from penstock.archive.markers import require_target
from penstock.archive.targets import Target
from penstock.records import LogEpoch
from tests.archive.logs import Log, plan_of, record


def bring_folders(log: Log, target: Target, epochs: Sequence[LogEpoch]) -> list[Copy]:
    """Write, commit and record log epochs in layout 1."""
    require_target(log.url, target, write=True)
    path = target.table_path(log.known_as, FOLDERS)
    if not DeltaTable.is_deltatable(str(path)):
        DeltaTable.create(
            str(path),
            TABLE_SCHEMA,
            partition_by=list(PARTITION_COLUMNS),
            name=log.known_as,
            configuration={"delta.checkpointInterval": "50"},
        )
    for epoch in epochs:
        _bring(log, target, DeltaTable(str(path)), epoch)
    return record(log, target, epochs)


def _bring(log: Log, target: Target, table: DeltaTable, epoch: LogEpoch) -> None:
    plan = plan_of(epoch)
    batches = EpochReader(log.url, log.topic).read(plan)
    rows = pa.Table.from_batches(batches).select(FILE_SCHEMA.names)
    folder = epoch_folder(target, log.known_as, key_of(epoch))
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{uuid.uuid4()}.parquet"
    with pq.ParquetWriter(file, FILE_SCHEMA, compression="zstd") as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata({CHECKSUM_KEY: epoch.checksum})
    status = os.stat(file)
    lowest = {"sequence": epoch.first_sequence, "history": 1}
    highest = {"sequence": epoch.last_sequence, "history": 1}
    stats = {"numRecords": epoch.event_count, "minValues": lowest, "maxValues": highest}
    values = dict(zip(PARTITION_COLUMNS, map(str, key_of(epoch)), strict=True))
    relative = str(file.relative_to(target.table_path(log.known_as, FOLDERS)))
    table.create_write_transaction(
        [
            AddAction(
                relative,
                status.st_size,
                values,
                status.st_mtime_ns // 1_000_000,
                data_change=True,
                stats=json.dumps(stats),
            )
        ],
        mode="append",
        schema=TABLE_SCHEMA,
        partition_by=list(PARTITION_COLUMNS),
    )
