"""Logs for the tests of this folder, with events of every odd shape, and their archives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from ops.archive import manifest
from ops.archive.commits import create_table
from ops.archive.copy_readings import CopyReading
from ops.archive.copying import copy_of, plan_of as plan_of
from ops.archive.epoch_reader import EpochReader
from ops.archive.read_back import spark_reader
from ops.archive.writer import ArchiveWriter, WrittenEpochs, write_epoch
from ops.seal import copies_of, log_epochs, seal
from penstock.archive.copies import Copy, key_of
from penstock.archive.copy_reader import read_rows
from penstock.archive.format import DAYS, TABLE_SCHEMA, with_epoch
from penstock.archive.markers import require_target
from penstock.archive.table import ArchiveTable
from penstock.archive.targets import Target
from penstock.database import call
from penstock.publishing.publish import publish_batch
from penstock.records import LogEpoch, Message
from penstock.topics.names import describe_topic
from tests.kit.log import drain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "bank/Zürich/account-changed"

Row = tuple[Any, ...]

#: key, type, content type, headers, payload: what tends to be changed on the way.
ODD_EVENTS: list[tuple[str | None, str, str, dict[str, Any] | None, bytes]] = [
    (None, "", "application/octet-stream", None, b""),
    ("", "t", "text/plain", {}, b"\x00\xff\x00"),
    ("zürich-🏦-账户", "größe", "text/plain; charset=utf-8", {"ü": "💶"}, "grün 🟢".encode()),
    ("line\nbreak\ttab", "a b", "x/y", {"n": 1.10, "big": 12345678901234567890}, b"\r\n"),
    ("quote\"'\\", "t", "application/json", {"b": [1, None, True], "a": {"x": "\\u0041"}}, b"{}"),
    ("k" * 255, "t" * 200, "c/d", {"trace": "00-" + "a" * 32}, bytes(range(256)) * 40),
]


@dataclass(frozen=True)
class Log:
    """A topic under test."""

    connection: Any
    url: str
    topic: str

    @property
    def known_as(self) -> str:
        """The name of its tables."""
        return describe_topic(self.connection, self.topic).known_as

    def publish_odd(self) -> None:
        """One event of every odd shape into every partition, and their sequences."""
        publish_batch(
            self.connection,
            [
                Message(
                    self.topic,
                    payload,
                    key=key,
                    type=kind,
                    content_type=content_type,
                    headers=headers,
                    partition=partition,
                )
                for partition in range(2)
                for key, kind, content_type, headers, payload in ODD_EVENTS
            ],
        )
        drain(self.connection)

    def publish_many(self, count: int) -> None:
        """Plain events, spread over the partitions, and their sequences."""
        publish_batch(
            self.connection,
            [
                Message(self.topic, b"p%d" % n, key=f"k{n}", type="t", partition=n % 2)
                for n in range(1, count + 1)
            ],
        )
        drain(self.connection)

    def sequence(self) -> None:
        """Give every committed event its sequence."""
        drain(self.connection)

    def seal(self, max_events: int = 1_000) -> list[LogEpoch]:
        """Seal everything there is."""
        sealed = seal(self.connection, self.topic, max_events=max_events, max_age_seconds=0)
        keys = [key_of(epoch) for epoch in sealed]
        known = {key_of(epoch): epoch for epoch in log_epochs(self.connection, self.topic)}
        return [known[key] for key in keys]

    def rows(self) -> list[Row]:
        """Every event of the log as the archive has to hold it."""
        return [*self.rows_of(0), *self.rows_of(1)]

    def rows_of(self, partition: int) -> list[Row]:
        """The same of one partition."""
        found = call(
            self.connection,
            "archive_fetch",
            topic=self.topic,
            partition=partition,
            from_sequence=1,
            max_events=100_000,
        )
        return [(partition, *row) for row in found]

    def one(self, query: str, *binds: Any) -> Any:
        """The one value that a query answers."""
        row = self.connection.execute(query, binds).fetchone()
        assert row is not None
        return row[0]


def archived_table(target: Target, known_as: str) -> pa.Table:
    """The events of an archive: of the files that the Delta logs name, and of no others."""
    table = ArchiveTable(target, known_as)
    found = [
        batch.select(TABLE_SCHEMA.names)
        for each in table.day_files()
        for batch in read_rows(target.store, f"{table.name(DAYS)}/{each.path}")
    ]
    found += [
        with_epoch(batch, *key)
        for key, entries in table.committed_folders().items()
        for each in entries
        for batch in read_rows(target.store, table.file(each))
    ]
    return pa.Table.from_batches(found, TABLE_SCHEMA)


def archived_rows(target: Target, log: Log) -> list[Row]:
    """Every event of the archive, without the number of its log epoch, in order."""
    table = archived_table(target, log.known_as).drop_columns(["log_epoch"])
    rows = [tuple(row.values()) for row in table.to_pylist()]
    return sorted(rows, key=lambda row: (row[0], row[1]))


def read_by_tasks(spark: SparkSession, log: Log, target: Target) -> Sequence[CopyReading]:
    """What Spark's tasks read back of every recorded copy of a target."""
    recorded = [
        each for each in log_epochs(log.connection, log.topic) if target.name in each.targets
    ]
    return spark_reader(lambda: spark, log.url)(target, recorded)


def only_file(target: Target, log: Log, epoch: tuple[int, int]) -> Path:
    """The one file of a log epoch."""
    table = ArchiveTable(target, log.known_as)
    (entry,) = table.committed()[epoch]
    return target.root / table.file(entry)


def flip(path: Path) -> None:
    """One bit of the last page of payloads."""
    column = pq.read_metadata(path).row_group(0).column(TABLE_SCHEMA.get_field_index("payload"))
    whole = bytearray(path.read_bytes())
    begin = column.dictionary_page_offset or column.data_page_offset
    whole[begin + column.total_compressed_size - 5] ^= 1
    path.write_bytes(whole)


def archived(log: Log, target: Target) -> list[LogEpoch]:
    """A sealed log epoch in each partition, archived by the writer's own code without Spark."""
    log.publish_odd()
    sealed = log.seal()
    bring(log, target, sealed)
    return sealed


def bring(log: Log, target: Target, epochs: Sequence[LogEpoch]) -> list[Copy]:
    """Write, commit and record them."""
    installation = require_target(log.url, target, write=True)
    create_table(target, log.known_as)
    for epoch in epochs:
        plan = plan_of(epoch)
        reader = EpochReader(log.url, log.topic)
        written = write_epoch(target, log.known_as, plan, reader.read(plan))
        writer = ArchiveWriter(target, installation, log.known_as, [plan], reader)
        writer.commit([WrittenEpochs((written,))])
    return record(log, target, epochs)


def record(log: Log, target: Target, epochs: Sequence[LogEpoch]) -> list[Copy]:
    """Record them where the archive has them."""
    committed = ArchiveTable(target, log.known_as).committed()
    copies = [copy_of(target, epoch, committed[key_of(epoch)][0]) for epoch in epochs]
    for copy in copies:
        manifest.record(log.connection, log.topic, copy)
    return copies


def states(log: Log) -> list[str]:
    """The state of each copy."""
    return [each.state for each in copies_of(log.connection, log.topic)]
