"""Foreign files of layout 1, in the folder of a log epoch: a file of ours takes their place there.

It stays in layout 1, so that one commit is enough, and the manifest names the folder as before.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ops.archive.commits import Spans, WrittenFile, now_ms, remove_folders, replace_folder
from ops.archive.foreign_rows import (
    ForeignRows,
    epochs_of,
    foreign_damage,
    is_foreign,
    read_foreign,
    require_others,
)
from ops.seal import forget_copy
from penstock.archive.checksum import EpochChecksum
from penstock.archive.copies import EpochKey
from penstock.archive.copy_reader import read_rows
from penstock.archive.format import CHECKSUM_KEY, FILE_SCHEMA, FOLDERS
from penstock.archive.table import ArchiveTable
from penstock.errors import CopyDamaged
from penstock.records import LogEpoch

log = logging.getLogger(__name__)


def adopt_folders(
    connection: Any, topic: str, table: ArchiveTable, seals: dict[EpochKey, LogEpoch]
) -> list[str]:
    """Replace the foreign files of layout 1; returns these.  CopyDamaged as in layout 2."""
    replaced = []
    for key, entries in sorted(table.committed_folders().items()):
        paths = [each.path for each in entries]
        if not any(map(is_foreign, paths)):
            continue
        try:
            found = _by_columns(table, key, paths, seals)
        except CopyDamaged as error:
            require_others(seals, [key], table.target.name, error)
            remove_folders(table, [(key, path) for path in paths])
            log.warning("%s; its copy is forgotten, and is made again", error.message)
            forget_copy(connection, topic, key, table.target.name, error.message)
            continue
        if _replace(table, paths, found):
            replaced += paths
    return replaced


def _by_columns(
    table: ArchiveTable, key: EpochKey, paths: Sequence[str], seals: dict[EpochKey, LogEpoch]
) -> ForeignRows:
    """The rows of a log epoch; of several files, each may hold all of it."""
    whole = pa.concat_tables(
        [read_foreign(table, FOLDERS, path, FILE_SCHEMA.names) for path in paths]
    ).sort_by("sequence")
    seal = seals.get(key)
    times, rest = divmod(whole.num_rows, seal.event_count) if seal else (1, 0)
    times = 1 if rest else max(times, 1)
    slices = [
        (key, whole.take(pa.array(range(start, whole.num_rows, times)))) for start in range(times)
    ]
    return epochs_of(table, paths[0], slices, seals)[0]


def _replace(table: ArchiveTable, paths: Sequence[str], found: ForeignRows) -> bool:
    """Write, read back, and replace in one commit."""
    seal = found.epoch
    folder = f"partition={seal.partition}/log_epoch={seal.log_epoch}"
    relative = f"{folder}/{uuid.uuid4()}.parquet"
    store, place = table.target.store, f"{table.name(FOLDERS)}/{relative}"
    with (
        store.sink(place) as sink,
        pq.ParquetWriter(sink, FILE_SCHEMA, compression="zstd", write_page_checksum=True) as writer,
    ):
        writer.write_table(found.rows)
        writer.add_key_value_metadata({CHECKSUM_KEY: seal.checksum})
    try:
        seen = EpochChecksum()
        for batch in read_rows(store, place):
            seen.add(batch)
        if seen.hexdigest() != seal.checksum:
            raise foreign_damage(table, relative, "it was not read back as it was written")
        size = store.size(place)
        assert size is not None
        spans = Spans((0, 0), (0, 0), found.histories)
        file = WrittenFile(relative, size, now_ms(), spans)
        is_made = replace_folder(
            table, (seal.partition, seal.log_epoch), paths, file, found.placed(0)
        )
    except BaseException:
        store.delete(place)
        raise
    if not is_made:
        store.delete(place)
    return is_made
