"""Commits to the archive's Delta tables: their creation, log epochs in, leftovers out."""

from __future__ import annotations

import datetime as dt
import json
import random
import tempfile
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from ops.archive.plans import EpochPlan
from penstock.archive.contents import EpochRows
from penstock.archive.copies import EpochKey
from penstock.archive.format import (
    DAY_COLUMN,
    DAY_SCHEMA,
    DAYS,
    FOLDERS,
    PARTITION_COLUMNS,
    TABLE_SCHEMA,
)
from penstock.archive.stores import Store
from penstock.archive.table import ArchiveFile, ArchiveTable, ToldBy, app_id, place_version
from penstock.archive.targets import Target
from penstock.errors import EpochError

#: Readers get a checkpoint every so many commits.
_CONFIGURATION = {"delta.checkpointInterval": "50"}
#: No run is at work for so long: a file that is older and that no commit names is left over.
LEFTOVER_HOURS = 168
_COMMIT_ATTEMPTS = 20
_BACKOFF_SECONDS = 0.05


#: The lowest and the highest value of a column.
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Spans:
    """The spans of a file's columns; those of times are in microseconds since 1970."""

    created: Span
    sequenced: Span
    histories: Span


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that a task wrote, complete and forced to the disk, not yet part of the table."""

    path: str
    size: int
    modified_ms: int
    spans: Spans


def create_table(target: Target, known_as: str, told_by: ToldBy | None = None) -> ArchiveTable:
    """The topic's table on the target, made when it is not there; several may try at once."""
    table = ArchiveTable(target, known_as, told_by)
    if table.delta(DAYS) is None:
        _create(target.store, table.name(DAYS), known_as)
        table.refresh()
    assert table.delta(DAYS) is not None
    return table


def _create(store: Store, name: str, known_as: str) -> None:
    """Make the first commit of a table, or find that another run has made it.

    Of two writers that create one table at once, delta-rs commits both, one after the other, each
    with a table id of its own.  So the first commit is made aside, where nobody else writes, and
    put into its place only if there is none.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-creating-") as aside:
        table = DeltaTable.create(
            aside,
            DAY_SCHEMA,
            mode="error",
            partition_by=[DAY_COLUMN],
            name=known_as,
            configuration=_CONFIGURATION,
        )
        first = f"{table.version():020d}.json"
        content = Path(aside, "_delta_log", first).read_bytes()
    store.put_new(f"{name}/_delta_log/{first}", content)


class EpochCommitter:
    """Makes files log epochs of one topic's archive, all that a job has written in one transaction.

    What the archive holds of the wanted log epochs is listed once and followed from there on: a
    listing for each commit would cost more with every log epoch that was ever archived.
    """

    def __init__(self, target: Target, known_as: str, plans: Collection[EpochPlan]) -> None:
        """Open the table, or make it."""
        self._target = target
        self._known_as = known_as
        self._plans = {plan.key: plan for plan in plans}
        self._open()

    def commit(self, written: Iterable[tuple[EpochPlan, WrittenFile]]) -> set[EpochKey]:
        """Make each file the log epoch of its plan; those that another run has made are left out.

        Every commit carries an app transaction of each of its partitions, so that of two commits
        that started from the same version of the table one fails, and then finds the other's files.
        That the table has the file, not the transaction's number, says that a log epoch is there: a
        repair of an older one must stay possible after newer ones.
        """
        files = {plan.key: file for plan, file in written}
        for _ in range(_COMMIT_ATTEMPTS):
            keys = self._still_wanted(files.keys())
            if not keys:
                return set()
            try:
                self._take_out_folders([self._plans[key] for key in keys])
                chosen = [(self._plans[key], files[key]) for key in keys]
                self._commit(
                    DAYS,
                    [plan for plan, _ in chosen],
                    [*_removed(chosen), *(_added(plan, file) for plan, file in chosen)],
                )
            except CommitFailedError:
                time.sleep(random.uniform(0, _BACKOFF_SECONDS))
                self._open()
                continue
            self._follow(chosen)
            return set(keys)
        raise EpochError(
            f"{len(files)} log epochs of {self._known_as} could not be committed to "
            f"{self._target.name}: other runs were faster {_COMMIT_ATTEMPTS} times",
            hint="run it again",
        )

    def _open(self) -> None:
        self._table = create_table(self._target, self._known_as)
        for plan in self._plans.values():
            for path in plan.replaces if plan.together else ():
                self._table.learn(path, [EpochRows(*key, 0, 0, "", 0, 0) for key in plan.together])
        self._present = self._table.committed(self._plans.keys())

    def _still_wanted(self, keys: Collection[EpochKey]) -> list[EpochKey]:
        """Those whose files are the ones to replace, and that have all with them that they need."""
        wanted = set()
        for key in keys:
            plan, present = self._plans[key], self._present.get(key, [])
            if (_paths(present, DAYS), _paths(present, FOLDERS)) == (
                sorted(plan.replaces),
                sorted(plan.replaces_folders),
            ):
                wanted.add(key)
        return sorted(key for key in wanted if wanted.issuperset(self._plans[key].together))

    def _take_out_folders(self, plans: Sequence[EpochPlan]) -> None:
        """Damaged copies of layout 1 go first: a run that dies here makes them again.

        The other order would leave them in both tables for a moment, or for good.
        """
        replacing = [plan for plan in plans if plan.replaces_folders]
        if not replacing:
            return
        removed = [
            _removed_folder(plan.key, path) for plan in replacing for path in plan.replaces_folders
        ]
        self._commit(FOLDERS, replacing, removed)
        for plan in replacing:
            self._plans[plan.key] = replace(plan, replaces_folders=())
            self._present[plan.key] = [
                each for each in self._present.get(plan.key, []) if each.layout != FOLDERS
            ]

    def _commit(
        self, layout: int, plans: Sequence[EpochPlan], actions: list[AddAction | RemoveAction]
    ) -> None:
        delta = self._table.delta(layout)
        assert delta is not None
        transactions = transactions_of(
            delta,
            self._known_as,
            self._target,
            [(plan.partition, plan.history, plan.last_sequence) for plan in plans],
        )
        before = delta.version()
        with self._target.store.told():
            delta.create_write_transaction(
                actions,
                mode="append",
                schema=TABLE_SCHEMA if layout == FOLDERS else DAY_SCHEMA,
                partition_by=list(PARTITION_COLUMNS) if layout == FOLDERS else [DAY_COLUMN],
                commit_properties=CommitProperties(
                    custom_metadata={"log_epochs": _said(plans)}, app_transactions=transactions
                ),
            )
            delta.update_incremental()
        make_log_durable(self._table, layout, before + 1)
        self._was_alone = delta.version() == before + 1

    def _follow(self, chosen: Sequence[tuple[EpochPlan, WrittenFile]]) -> None:
        """Note our own commit; when others came between, look at what they did."""
        if not self._was_alone:
            self._present = self._table.committed(self._plans.keys())
            return
        for plan, file in chosen:
            self._present[plan.key] = [
                ArchiveFile(
                    file.path, file.size, plan.event_count, plan.last_sequence, plan.history, DAYS
                )
            ]


def transactions_of(
    delta: DeltaTable, known_as: str, target: Target, places: Iterable[tuple[int, int, int]]
) -> list[Transaction]:
    """The app transactions of a commit: of each (partition, history, sequence) the newest place."""
    newest: dict[int, int] = {}
    for partition, history, sequence in places:
        place = place_version(history, sequence)
        newest[partition] = max(newest.get(partition, place), place)
    found = []
    for partition, place in newest.items():
        name = app_id(known_as, partition, target)
        found.append(Transaction(name, max(place, delta.transaction_version(name) or 0)))
    return found


def replace_files(
    table: ArchiveTable,
    sealed_date: dt.date,
    replaced: Collection[str],
    file: WrittenFile,
    rows: Sequence[EpochRows],
    *,
    data_change: bool = False,
) -> bool:
    """Put a file in the place of others of a day; False when one of these is there no more."""
    day: dict[str, str | None] = {DAY_COLUMN: sealed_date.isoformat()}
    stats = _statistics_of(file, rows)
    added = AddAction(
        file.path, file.size, day, file.modified_ms, data_change=data_change, stats=stats
    )
    places = [(each.partition, each.history, each.last_sequence) for each in rows]
    return _swap(table, DAYS, day, replaced, added, places=places, data_change=data_change)


def replace_folder(
    table: ArchiveTable,
    key: EpochKey,
    replaced: Collection[str],
    file: WrittenFile,
    rows: EpochRows,
) -> bool:
    """The same in layout 1, for a log epoch."""
    stats = json.dumps(
        {
            "numRecords": rows.event_count,
            "minValues": {"sequence": rows.first_sequence, "history": file.spans.histories[0]},
            "maxValues": {"sequence": rows.last_sequence, "history": file.spans.histories[1]},
        }
    )
    values = _folder_of(rows.key)
    added = AddAction(
        file.path, file.size, values, file.modified_ms, data_change=False, stats=stats
    )
    places = [(rows.partition, rows.history, rows.last_sequence)]
    return _swap(table, FOLDERS, values, replaced, added, places=places, data_change=False)


def take_out(table: ArchiveTable, sealed_date: dt.date, removed: Collection[str]) -> bool:
    """Take files of a day out of their table; False when one of them is there no more."""
    day: dict[str, str | None] = {DAY_COLUMN: sealed_date.isoformat()}
    return _swap(table, DAYS, day, removed, None, places=[], data_change=True)


def _swap(
    table: ArchiveTable,
    layout: int,
    values: dict[str, str | None],
    removed: Collection[str],
    added: AddAction | None,
    *,
    places: Sequence[tuple[int, int, int]],
    data_change: bool,
) -> bool:
    """Files out of a table, and one into it, in one commit; False when one is there no more.

    Each commit carries a Delta app transaction for its partitions.  If two commits touch log epochs
    of the same partition at once, one fails and tries again on the new state.
    """
    for _ in range(_COMMIT_ATTEMPTS):
        table.refresh()
        if not set(removed) <= table.paths(layout):
            return False
        delta = table.delta(layout)
        assert delta is not None
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(
                path, data_change=data_change, deletion_timestamp=now_ms(), partition_values=values
            )
            for path in sorted(removed)
        ]
        before = delta.version()
        transactions = transactions_of(delta, table.known_as, table.target, places)
        try:
            with table.target.store.told():
                delta.create_write_transaction(
                    actions if added is None else [*actions, added],
                    mode="append",
                    schema=TABLE_SCHEMA if layout == FOLDERS else DAY_SCHEMA,
                    partition_by=list(values),
                    commit_properties=CommitProperties(app_transactions=transactions),
                )
                delta.update_incremental()
        except CommitFailedError:
            time.sleep(random.uniform(0, _BACKOFF_SECONDS))
            continue
        make_log_durable(table, layout, before + 1)
        return True
    raise EpochError(
        f"a file of {table.known_as} on {table.target.name} could not be committed: other runs "
        f"were faster {_COMMIT_ATTEMPTS} times",
        hint="run it again",
    )


def _statistics_of(file: WrittenFile, rows: Sequence[EpochRows]) -> str:
    partitions, numbers = zip(*(each.key for each in rows), strict=True)
    return statistics(
        (min(partitions), max(partitions)),
        (min(numbers), max(numbers)),
        (min(each.first_sequence for each in rows), max(each.last_sequence for each in rows)),
        file.spans,
        event_count=sum(each.event_count for each in rows),
    )


def remove_folders(table: ArchiveTable, entries: Sequence[tuple[EpochKey, str]]) -> None:
    """Take files of layout 1 out of their table."""
    delta = table.delta(FOLDERS)
    assert delta is not None
    actions = [_removed_folder(key, path) for key, path in entries]
    before = delta.version()
    with table.target.store.told():
        delta.create_write_transaction(
            actions, mode="append", schema=TABLE_SCHEMA, partition_by=list(PARTITION_COLUMNS)
        )
        delta.update_incremental()
    make_log_durable(table, FOLDERS, before + 1)


def _removed_folder(key: EpochKey, path: str) -> AddAction | RemoveAction:
    return RemoveAction(
        path,
        data_change=True,
        deletion_timestamp=now_ms(),
        partition_values=_folder_of(key),
    )


def _folder_of(key: EpochKey) -> dict[str, str | None]:
    return dict(zip(PARTITION_COLUMNS, map(str, key), strict=True))


def unnamed_files(
    table: ArchiveTable, layout: int, retention_hours: int = 0, *, were_named: bool = False
) -> list[str]:
    """The files that no commit names any more, or named never, for so many hours.

    With ``were_named`` only the former: nobody is about to commit one of them.
    """
    delta = table.delta(layout)
    if delta is None:
        return []
    with table.target.store.told():
        return delta.vacuum(
            retention_hours=retention_hours,
            dry_run=True,
            enforce_retention_duration=False,
            full=not were_named,
        )


def discard(target: Target, known_as: str, file: WrittenFile) -> None:
    """Remove a file that will not be committed."""
    target.store.delete(f"{target.table_name(known_as, DAYS)}/{file.path}")


def remove_leftovers(
    target: Target,
    known_as: str,
    retention_hours: int = LEFTOVER_HOURS,
    *,
    named: Collection[str] = (),
) -> list[str]:
    """Remove files of killed runs and replaced copies that are older than the given hours.

    A replaced file's age counts from its replacement.  ``named`` are files of layout 2 that the
    database's manifest still names: they stay, whatever the Delta log says.
    """
    table = ArchiveTable(target, known_as)
    gone = []
    for layout in (FOLDERS, DAYS):
        for path in unnamed_files(table, layout, retention_hours):
            if layout == FOLDERS or path not in named:
                target.store.delete(f"{table.name(layout)}/{path}")
                gone.append(path)
    return gone


def statistics(
    partitions: Span, log_epochs: Span, sequences: Span, spans: Spans, *, event_count: int
) -> str:
    """The statistics of a file, as the Delta log has them: (lowest, highest) of each column."""
    whole = {
        "partition": partitions,
        "log_epoch": log_epochs,
        "sequence": sequences,
        "history": spans.histories,
    }
    moments = {"created_at": spans.created, "sequenced_at": spans.sequenced}
    lowest = {name: low for name, (low, _) in whole.items()}
    highest = {name: high for name, (_, high) in whole.items()}
    return json.dumps(
        {
            "numRecords": event_count,
            "minValues": lowest | {name: _moment(low) for name, (low, _) in moments.items()},
            "maxValues": highest | {name: _moment(high) for name, (_, high) in moments.items()},
            "nullCount": dict.fromkeys([*whole, *moments], 0),
        }
    )


def make_log_durable(table: ArchiveTable, layout: int, first: int) -> None:
    """Force commits from a version on to the disk."""
    delta = table.delta(layout)
    assert delta is not None
    versions = range(first, delta.version() + 1)
    log = f"{table.name(layout)}/_delta_log"
    table.target.store.make_durable(*(f"{log}/{version:020d}.json" for version in versions))


def now_ms() -> int:
    """The time as Delta has it."""
    return time.time_ns() // 1_000_000


def _moment(microseconds: int) -> str:
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=microseconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _added(plan: EpochPlan, file: WrittenFile) -> AddAction:
    stats = statistics(
        (plan.partition, plan.partition),
        (plan.log_epoch, plan.log_epoch),
        (plan.first_sequence, plan.last_sequence),
        file.spans,
        event_count=plan.event_count,
    )
    day: dict[str, str | None] = {DAY_COLUMN: plan.sealed_date}
    return AddAction(file.path, file.size, day, file.modified_ms, data_change=True, stats=stats)


def _removed(chosen: Sequence[tuple[EpochPlan, WrittenFile]]) -> list[RemoveAction]:
    """What the commit replaces in layout 2, each file once."""
    days = {path: plan.sealed_date for plan, _ in chosen for path in plan.replaces}
    return [
        RemoveAction(
            path, data_change=True, deletion_timestamp=now_ms(), partition_values={DAY_COLUMN: day}
        )
        for path, day in days.items()
    ]


def _said(plans: Sequence[EpochPlan]) -> list[dict[str, int | str]]:
    """What a commit says of its log epochs, for who reads the Delta log."""
    return [
        {
            "partition": plan.partition,
            "log_epoch": plan.log_epoch,
            "first_sequence": plan.first_sequence,
            "last_sequence": plan.last_sequence,
            "event_count": plan.event_count,
            "checksum": plan.checksum,
        }
        for plan in plans
    ]


def _paths(entries: Sequence[ArchiveFile], layout: int) -> list[str]:
    return sorted({each.path for each in entries if each.layout == layout})
