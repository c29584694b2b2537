"""Commits to the archive's Delta tables: their creation, log epochs in, leftovers out."""

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

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from ops.archive_plans import EpochPlan
from penstock.archive.copies import EpochKey
from penstock.archive.format import PARTITION_COLUMNS, TABLE_SCHEMA
from penstock.archive.table import ArchiveFile, ArchiveTable
from penstock.archive.targets import Target, make_durable
from penstock.errors import EpochError

#: One commit per log epoch: readers get a checkpoint every so many of them.
_CONFIGURATION = {"delta.checkpointInterval": "50"}
#: No run is at work for so long: a file that is older and that no commit names is left over.
LEFTOVER_HOURS = 168
_COMMIT_ATTEMPTS = 20
_BACKOFF_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that a task wrote, complete and forced to the disk, not yet part of the table."""

    path: str
    size: int
    modified_ms: int


def create_table(target: Target, known_as: str) -> ArchiveTable:
    """The topic's table on the target, made when it is not there; several may try at once."""
    table = ArchiveTable(target, known_as)
    if table.delta is None:
        _create(table.path, known_as)
        table = ArchiveTable(target, known_as)
    assert table.delta is not None
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
            before = self._delta.version()
            try:
                _commit(self._delta, app_id, plan, file)
            except CommitFailedError:
                _back_off()
                self._open()
                continue
            self._delta.update_incremental()
            _make_log_durable(self._table.path, before + 1, self._delta.version())
            self._follow(before, plan, file)
            return True
        raise EpochError(
            f"log epoch {plan.log_epoch} of {self._known_as}/{plan.partition} could not be "
            f"committed to {self._target.name}: other runs were faster {_COMMIT_ATTEMPTS} times",
        )

    def _open(self) -> None:
        self._table = create_table(self._target, self._known_as)
        assert self._table.delta is not None
        self._delta = self._table.delta
        self._present = dict(self._table.committed(self._wanted))

    def _follow(self, before: int, plan: EpochPlan, file: WrittenFile) -> None:
        """Note our own commit; when others came between, look at what they did."""
        if self._delta.version() == before + 1:
            self._present[plan.key] = [
                ArchiveFile(
                    file.path, file.size, plan.event_count, plan.last_sequence, plan.history
                )
            ]
        else:
            self._present = dict(self._table.committed(self._wanted))


def commit_epoch(target: Target, known_as: str, plan: EpochPlan, file: WrittenFile) -> bool:
    """The same of one log epoch."""
    return EpochCommitter(target, known_as, [plan.key]).commit(plan, file)


def discard(target: Target, known_as: str, file: WrittenFile) -> None:
    """Remove a file that will not be committed."""
    (target.table_path(known_as) / file.path).unlink(missing_ok=True)


def remove_leftovers(
    target: Target, known_as: str, retention_hours: int = LEFTOVER_HOURS
) -> list[str]:
    """Remove files of killed runs and replaced copies that are older than the given hours."""
    table = ArchiveTable(target, known_as).delta
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
