"""The archive's table: one Delta table per topic and target, written through delta-rs, no JAR.

A table has the name that its topic is known as, which no other topic ever gets.

A log epoch is in the archive when the Delta log says so.  Files that no commit names, which a
killed run leaves behind, are not part of it, whatever lies in the folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from ops.archive_format import PARTITION_COLUMNS, TABLE_SCHEMA, EpochPlan
from ops.seal import EpochKey
from ops.targets import Target, make_durable
from penstock.errors import ConfigurationError, EpochError

#: One commit per log epoch: readers get a checkpoint every so many of them.
_CONFIGURATION = {"delta.checkpointInterval": "50"}
#: No run is at work for so long: a file that is older and that no commit names is left over.
LEFTOVER_HOURS = 168
_COMMIT_ATTEMPTS = 20
_BACKOFF_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A file that the Delta log names."""

    path: str
    size: int
    event_count: int
    last_sequence: int
    history: int


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that a task wrote, complete and forced to the disk, not yet part of the table."""

    path: str
    size: int
    modified_ms: int


Committed = dict[EpochKey, list[ArchiveFile]]


def open_table(target: Target, known_as: str) -> DeltaTable | None:
    """The topic's table on the target, or None when nothing was ever archived there."""
    path = target.table_path(known_as)
    if not DeltaTable.is_deltatable(str(path)):
        return None
    table = DeltaTable(str(path))
    if table.metadata().name != known_as:
        raise ConfigurationError(
            f"{path} holds the archive of {table.metadata().name!r}, not of {known_as!r}",
            hint="give every installation its own archive target",
        )
    return table


def create_table(target: Target, known_as: str) -> DeltaTable:
    """The topic's table on the target, made when it is not there; several may try at once."""
    table = open_table(target, known_as)
    if table is None:
        _create(target.table_path(known_as), known_as)
        table = open_table(target, known_as)
    assert table is not None
    return table


def _create(path: Path, known_as: str) -> None:
    """Make the first commit of a table, or find that another run has made it.

    Of two writers that create one table at once, delta-rs commits both, one after the other, each
    with a table id of its own.  So the first commit is made aside, where nobody else writes, and
    then linked: of two links with one name only one succeeds.
    """
    log = path / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".creating-") as aside:
        table = DeltaTable.create(
            aside,
            TABLE_SCHEMA,
            mode="error",
            partition_by=list(PARTITION_COLUMNS),
            name=known_as,
            configuration=_CONFIGURATION,
        )
        first = f"{table.version():020d}.json"
        make_durable(Path(aside, "_delta_log", first))
        with contextlib.suppress(FileExistsError):
            os.link(Path(aside, "_delta_log", first), log / first)
    make_durable(log)


def committed_epochs(
    table: DeltaTable | None, wanted: Collection[EpochKey] | None = None
) -> Committed:
    """The files of every log epoch that the table holds, or of the wanted ones alone."""
    found: Committed = {}
    if table is None:
        return found
    # `pa.table` because delta-rs answers with an Arrow table of its own kind
    actions = pa.table(table.get_add_actions(flatten=True))
    if wanted is not None:
        actions = _only(actions, wanted)
    rows: list[dict[str, Any]] = actions.to_pylist()
    for row in sorted(rows, key=lambda each: str(each["path"])):
        epoch = int(row["partition.partition"]), int(row["partition.log_epoch"])
        entry = ArchiveFile(
            str(row["path"]),
            int(row["size_bytes"]),
            int(row["num_records"]),
            int(row["max.sequence"] or 0),
            int(row.get("max.history") or 1),
        )
        found.setdefault(epoch, []).append(entry)
    return found


def _only(actions: pa.Table, wanted: Collection[EpochKey]) -> pa.Table:
    """The rows of some log epochs; without it a commit would make objects of all there are."""
    shift = pa.scalar(1 << 32, pa.int64())
    keys = pc.add(
        pc.multiply(pc.cast(actions["partition.partition"], pa.int64()), shift),
        pc.cast(actions["partition.log_epoch"], pa.int64()),
    )
    chosen = pa.array([(partition << 32) + epoch for partition, epoch in wanted], pa.int64())
    return actions.filter(pc.is_in(keys, value_set=chosen))


class EpochCommitter:
    """Makes files log epochs of one table, each in a transaction of its own.

    What the table holds of the wanted log epochs is listed once and followed from there on: a
    listing for each commit would cost more with every log epoch that was ever archived.
    """

    def __init__(self, target: Target, known_as: str, wanted: Collection[EpochKey]) -> None:
        """Open the table, or make it."""
        self._target = target
        self._known_as = known_as
        self._wanted = frozenset(wanted)
        self._open()

    def commit(self, plan: EpochPlan, file: WrittenFile) -> bool:
        """Make the file the log epoch of the plan; False when another run did.

        Every commit carries an app transaction of its partition, so that of two commits that
        started from the same version of the table one fails, and then finds the other's file.  That
        the table has the file, not the transaction's number, says that a log epoch is there: a
        repair of an older one must stay possible after newer ones.
        """
        app_id = f"{self._known_as}/{plan.partition}@{self._target.name}"
        for _ in range(_COMMIT_ATTEMPTS):
            present = tuple(entry.path for entry in self._present.get(plan.key, []))
            if sorted(present) != sorted(plan.replaces):
                return False
            before = self._table.version()
            try:
                _commit(self._table, app_id, plan, file)
            except CommitFailedError:
                _back_off()
                self._open()
                continue
            self._table.update_incremental()
            _make_log_durable(
                self._target.table_path(self._known_as), before + 1, self._table.version()
            )
            self._follow(before, plan, file)
            return True
        raise EpochError(
            f"log epoch {plan.log_epoch} of {self._known_as}/{plan.partition} could not be "
            f"committed to {self._target.name}: other runs were faster {_COMMIT_ATTEMPTS} times",
        )

    def _open(self) -> None:
        self._table = create_table(self._target, self._known_as)
        self._present = committed_epochs(self._table, self._wanted)

    def _follow(self, before: int, plan: EpochPlan, file: WrittenFile) -> None:
        """Note our own commit; when others came between, look at what they did."""
        if self._table.version() == before + 1:
            self._present[plan.key] = [
                ArchiveFile(
                    file.path, file.size, plan.event_count, plan.last_sequence, plan.history
                )
            ]
        else:
            self._present = committed_epochs(self._table, self._wanted)


def commit_epoch(target: Target, known_as: str, plan: EpochPlan, file: WrittenFile) -> bool:
    """The same of one log epoch."""
    return EpochCommitter(target, known_as, [plan.key]).commit(plan, file)


def newest_of_partitions(table: DeltaTable | None) -> dict[int, tuple[int, int]]:
    """The newest place of each partition that the table holds: (history, last sequence)."""
    if table is None:
        return {}
    actions = pa.table(table.get_add_actions(flatten=True))
    history = ["max.history"] if "max.history" in actions.column_names else []
    places = actions.group_by(["partition.partition", *history])
    found: dict[int, tuple[int, int]] = {}
    for row in places.aggregate([("max.sequence", "max")]).to_pylist():
        partition = int(row["partition.partition"])
        place = int(row.get("max.history") or 1), int(row["max.sequence_max"] or 0)
        found[partition] = max(found.get(partition, place), place)
    return found


def discard(target: Target, known_as: str, file: WrittenFile) -> None:
    """Remove a file that will not be committed."""
    (target.table_path(known_as) / file.path).unlink(missing_ok=True)


def remove_leftovers(
    target: Target, known_as: str, retention_hours: int = LEFTOVER_HOURS
) -> list[str]:
    """Remove files of killed runs and replaced copies that are older than the given hours."""
    table = open_table(target, known_as)
    if table is None:
        return []
    return table.vacuum(
        retention_hours=retention_hours,
        dry_run=False,
        enforce_retention_duration=False,
        full=True,
    )


def _commit(table: DeltaTable, app_id: str, plan: EpochPlan, file: WrittenFile) -> None:
    values: dict[str, str | None] = {
        "partition": str(plan.partition),
        "log_epoch": str(plan.log_epoch),
    }
    removed = [
        RemoveAction(path, data_change=True, deletion_timestamp=_now_ms(), partition_values=values)
        for path in plan.replaces
    ]
    added = AddAction(
        file.path, file.size, values, file.modified_ms, data_change=True, stats=_statistics(plan)
    )
    version = max(plan.log_epoch, table.transaction_version(app_id) or 0)
    table.create_write_transaction(
        [*removed, added],
        mode="append",
        schema=TABLE_SCHEMA,
        partition_by=list(PARTITION_COLUMNS),
        commit_properties=CommitProperties(
            custom_metadata={
                "first_sequence": str(plan.first_sequence),
                "last_sequence": str(plan.last_sequence),
                "event_count": str(plan.event_count),
                "checksum": plan.checksum,
            },
            app_transactions=[Transaction(app_id, version)],
        ),
    )


def _statistics(plan: EpochPlan) -> str:
    return json.dumps(
        {
            "numRecords": plan.event_count,
            "minValues": {"sequence": plan.first_sequence, "history": plan.history},
            "maxValues": {"sequence": plan.last_sequence, "history": plan.history},
            "nullCount": {"sequence": 0, "history": 0},
        }
    )


def _make_log_durable(path: Path, first: int, last: int) -> None:
    log = path / "_delta_log"
    for version in range(first, last + 1):
        make_durable(log / f"{version:020d}.json")
    make_durable(log)


def _back_off() -> None:
    time.sleep(random.uniform(0, _BACKOFF_SECONDS))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
