"""Making copies: which log epochs a target lacks, where they are read, what is mended and recorded.

The order is what makes it safe: write, commit to the Delta log, read the committed files back, and
only then tell the database that there is a copy.  Each step can be repeated; a run that is killed
leaves at most files that no commit names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from ops.archive import erasing, manifest
from ops.archive.commits import create_table
from ops.archive.copy_readings import CopyReading
from ops.archive.epoch_reader import EpochSource
from ops.archive.foreign import adopt
from ops.archive.plans import TARGETS_OPTION, EpochPlan, FileRange, dump_plans, dump_targets
from ops.archive.tombstones import not_of_other_logs, require_ended
from ops.archive.verify import read_copies
from ops.archive.writer import ArchiveSink
from ops.seal import forget_copy, log_epochs
from ops.spark import reason, register
from penstock.archive.copies import Copy, EpochKey, epoch_folder, key_of
from penstock.archive.format import DAYS, FOLDERS
from penstock.archive.markers import check_marker, require_target
from penstock.archive.table import ArchiveFile, ArchiveTable
from penstock.archive.targets import Target
from penstock.database import connect
from penstock.errors import (
    CopyDamaged,
    EpochError,
    ForeignTarget,
    NoDiskSpace,
    RetentionRefused,
    TargetUnavailable,
)
from penstock.records import LogEpoch
from penstock.topics.names import partition_ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Commits come at the end of a job: a killed run repeats at most this many log epochs.
EPOCHS_PER_JOB = 32
#: An error names so many log epochs with their reasons.
_MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class EpochCopy:
    """A verified and recorded copy; ``written`` says whether this run wrote it."""

    epoch: LogEpoch
    target: str
    location: str
    written: bool


@dataclass(frozen=True, slots=True)
class FailedCopy:
    """A copy that could not be made, and why."""

    epoch: LogEpoch
    target: str
    reason: str


class CopiesFailed(EpochError):
    """Some copies could not be made; all others were: ``made`` are recorded, ``failed`` are not."""

    def __init__(self, made: Sequence[EpochCopy], failed: Sequence[FailedCopy]) -> None:
        """Say of the first ones which log epoch and why."""
        first = "; ".join(f"{_name(each.epoch)}: {each.reason}" for each in failed[:_MOST_NAMED])
        more = f"; and {len(failed) - _MOST_NAMED} more" if len(failed) > _MOST_NAMED else ""
        super().__init__(
            f"{len(failed)} copies on {failed[0].target} could not be made, "
            f"{len(made)} are there: {first}{more}",
            hint="run backfill; if it says the same, see the reason of each",
        )
        self.made = tuple(made)
        self.failed = tuple(failed)


@dataclass(frozen=True, slots=True)
class CopyJob:
    """What copies are made with: ``sources`` are read where the database has dropped events.

    Once ``given_up`` is set nothing more is begun: nobody waits for it any longer.
    """

    spark: SparkSession
    url: str
    target: Target
    installation: str
    repair: bool = False
    sources: tuple[Target, ...] = ()
    given_up: threading.Event = field(default_factory=threading.Event)


#: Why log epochs could not be made.
Failures = dict[EpochKey, str]


def bring_copies(
    job: CopyJob, epochs: Sequence[LogEpoch], made: Sequence[EpochCopy] = ()
) -> list[EpochCopy]:
    """Write what the table lacks, verify all of it, record what verifies; ``made`` and those.

    With ``repair`` a damaged copy is replaced.  What cannot be made stops no other: CopiesFailed
    comes at the end.
    """
    done = list(made)
    failed: list[FailedCopy] = []
    for start in range(0, len(epochs), EPOCHS_PER_JOB):
        lot = epochs[start : start + EPOCHS_PER_JOB]
        reasons: Failures = {}
        done += _bring_lot(job, lot, reasons)
        lost = [each for each in lot if key_of(each) in reasons]
        failed += [FailedCopy(each, job.target.name, reasons[key_of(each)]) for each in lost]
    if failed:
        raise CopiesFailed(done, failed)
    return done


def _bring_lot(job: CopyJob, epochs: Sequence[LogEpoch], failed: Failures) -> list[EpochCopy]:
    """Copies of a few log epochs; ``failed`` gets the reason of each that could not be made."""
    check_marker(job.target, job.installation)
    adopt(job.url, epochs[0].topic, job.target)
    told_by = partial(manifest.contents, job.url, epochs[0].topic, job.target)
    table = create_table(job.target, epochs[0].known_as, told_by)
    _rewrite_erased(job, epochs)
    table.refresh()
    committed = table.committed([key_of(epoch) for epoch in epochs])
    missing = [epoch for epoch in epochs if key_of(epoch) not in committed]
    _write(job, epochs[0], [[plan] for plan in _plans(job, missing, failed)], failed)
    table.refresh()
    rest = [epoch for epoch in epochs if key_of(epoch) not in failed]
    readings = _read_back(job.spark, table, rest)
    written = {key_of(epoch) for epoch in missing}
    if job.repair and any(readings[key_of(epoch)].damage for epoch in rest):
        mended = _mend(job, table, rest, readings, failed)
        table.refresh()
        readings |= _read_back(job.spark, table, mended)
        written |= {key_of(epoch) for epoch in mended}
        rest = list({key_of(epoch): epoch for epoch in (*rest, *mended)}.values())
        rest = [epoch for epoch in rest if key_of(epoch) not in failed]
    read = [(epoch, readings[key_of(epoch)]) for epoch in rest]
    made = _record(job, table, read, written, failed)
    if len(made) < len(read):  # events may have been erased since they were read
        _rewrite_erased(job, epochs)
    return made


def _rewrite_erased(job: CopyJob, epochs: Sequence[LogEpoch]) -> None:
    """Bring no erased event back: what an earlier or a slower run has left is replaced."""
    with connect(job.url) as connection:
        run = erasing.begin(connection, job.url, epochs[0].topic, [key_of(e) for e in epochs])
        with contextlib.suppress(CopyDamaged):  # that is mended as any other
            erasing.rewrite(run, job.target)


def _mend(
    job: CopyJob,
    table: ArchiveTable,
    epochs: Sequence[LogEpoch],
    readings: dict[EpochKey, CopyReading],
    failed: Failures,
) -> list[LogEpoch]:
    """Write damaged copies again; returns these, and what lay with them in a file.

    A file that holds several log epochs is replaced by files of one each, all of them in one
    commit: what is whole in it is read from there.
    """
    damaged = [epoch for epoch in epochs if readings[key_of(epoch)].damage]
    damaged = not_of_other_logs(job.url, damaged, readings, failed)
    units: list[list[EpochPlan]] = []
    mended: dict[EpochKey, LogEpoch] = {}
    for unit in _units(job, table, damaged, failed):
        plans = _unit_plans(job, table, unit, failed)
        if plans:
            units.append(plans)
            mended |= {key_of(epoch): epoch for epoch in unit}
    _write(job, epochs[0], units, failed)
    return [epoch for key, epoch in mended.items() if key not in failed]


def _units(
    job: CopyJob, table: ArchiveTable, damaged: Sequence[LogEpoch], failed: Failures
) -> list[list[LogEpoch]]:
    """What has to be written together: damaged log epochs, each with all that share its file."""
    committed = table.committed([key_of(epoch) for epoch in damaged])
    known: dict[EpochKey, LogEpoch] = {}
    units: dict[frozenset[EpochKey], list[LogEpoch]] = {}
    for epoch in damaged:
        shared = [each for each in committed.get(key_of(epoch), []) if each.shared]
        together = {rows.key for each in shared for rows in table.contents(each.path)}
        if not together:
            units[frozenset([key_of(epoch)])] = [epoch]
            continue
        if not known:
            with connect(job.url) as connection:
                known = {key_of(each): each for each in log_epochs(connection, epoch.topic)}
        if together <= known.keys():
            units[frozenset(together)] = [known[key] for key in sorted(together)]
        else:
            failed[key_of(epoch)] = (
                "its file also holds log epochs that the database does not have: "
                f"{sorted(together - known.keys())[:_MOST_NAMED]}"
            )
    return list(units.values())


def _unit_plans(
    job: CopyJob, table: ArchiveTable, unit: Sequence[LogEpoch], failed: Failures
) -> list[EpochPlan]:
    """How to write a unit again; nothing when a part of it cannot be made."""
    keys = [key_of(epoch) for epoch in unit]
    readings = _read_back(job.spark, table, unit)
    plans = {
        plan.key: plan
        for plan in _plans(job, [each for each in unit if readings[key_of(each)].damage], failed)
    }
    whole = copy_plans(table, [each for each in unit if not readings[key_of(each)].damage])
    lost = [epoch for epoch in unit if key_of(epoch) not in plans | whole]
    if lost:
        for key in plans:
            failed[key] = f"it lies in one file with {_name(lost[0])}, which cannot be made again"
        return []
    committed = table.committed(keys)
    history = max(each.history for each in plans.values())
    found = []
    for key in keys:
        entries = committed.get(key, [])
        plan = dataclasses.replace(
            (plans | whole)[key],
            history=history,
            replaces=tuple({each.path for each in entries if each.layout == DAYS}),
            replaces_folders=tuple({each.path for each in entries if each.layout == FOLDERS}),
            together=tuple(keys) if len(keys) > 1 else (),
        )
        found.append(plan)
    return found


def plan_of(epoch: LogEpoch, files: Sequence[FileRange] = ()) -> EpochPlan:
    """What is to be written or read of a log epoch."""
    if epoch.sealed_at is None:
        raise ValueError(f"{_name(epoch)} does not say when it was sealed")
    return EpochPlan(
        epoch.partition,
        epoch.log_epoch,
        epoch.first_sequence,
        epoch.last_sequence,
        epoch.event_count,
        epoch.checksum,
        sealed_date=epoch.sealed_at.astimezone(dt.UTC).date().isoformat(),
        files=tuple(files),
    )


def copy_plans(table: ArchiveTable, epochs: Sequence[LogEpoch]) -> dict[EpochKey, EpochPlan]:
    """How to read what the table holds of the log epochs."""
    committed = table.committed([key_of(epoch) for epoch in epochs])
    plans = {}
    for epoch in epochs:
        files = [_range(table, entry) for entry in committed.get(key_of(epoch), [])]
        plans[key_of(epoch)] = dataclasses.replace(plan_of(epoch, files), source=table.target.name)
    return plans


def _range(table: ArchiveTable, entry: ArchiveFile) -> FileRange:
    return table.file(entry), entry.first_row, entry.event_count if entry.shared else -1


def _read_back(
    spark: SparkSession, table: ArchiveTable, epochs: Sequence[LogEpoch]
) -> dict[EpochKey, CopyReading]:
    return read_copies(spark, list(copy_plans(table, epochs).values()), table.target)


def read_epochs(
    spark: SparkSession, url: str, target: Target, epochs: Sequence[LogEpoch]
) -> list[CopyReading]:
    """Read back the target's copies of log epochs of one topic, recorded or not.

    A recorded one is read where the manifest says that it is: readers look there.
    """
    require_target(url, target)
    if not epochs:
        return []
    adopt(url, epochs[0].topic, target)
    plans = recorded_plans(url, target, epochs)
    readings = read_copies(spark, [plans[key_of(epoch)] for epoch in epochs], target)
    with connect(url) as connection:
        require_ended(connection, epochs[0].topic, readings.values())
    return [readings[key_of(epoch)] for epoch in epochs]


def recorded_plans(
    url: str, target: Target, epochs: Sequence[LogEpoch]
) -> dict[EpochKey, EpochPlan]:
    """How to read the target's copies: in the manifest's file, if the Delta log names it still."""
    known_as, topic = epochs[0].known_as, epochs[0].topic
    with connect(url) as connection:
        copies = manifest.recorded(connection, target.name, epochs)
    # What another engine has replaced is removed by its VACUUM: such a file does not count.
    table = ArchiveTable(target, known_as, partial(manifest.contents, url, topic, target))
    named = {each.path for each in table.day_files()}
    in_days = {key: copy for key, copy in copies.items() if copy.location in named}
    others = [epoch for epoch in epochs if key_of(epoch) not in in_days]
    plans = copy_plans(table, others) if others else {}
    folder = target.table_name(known_as, DAYS)
    for epoch in epochs:
        copy = in_days.get(key_of(epoch))
        if copy is not None:
            place = f"{folder}/{copy.location}", copy.first_row, copy.event_count
            plans[copy.key] = dataclasses.replace(plan_of(epoch, [place]), source=target.name)
    return plans


def _plans(job: CopyJob, epochs: Sequence[LogEpoch], failed: Failures) -> list[EpochPlan]:
    """How to read each log epoch: from the database while it has it, else from another copy."""
    if not epochs:
        return []
    with connect(job.url) as connection:
        ranges = partition_ranges(connection, epochs[0].topic)
    low = {each.partition: each.low_sequence for each in ranges}
    history = max(each.history for each in ranges)
    kept = [each for each in epochs if each.first_sequence >= low[each.partition]]
    dropped = [each for each in epochs if each.first_sequence < low[each.partition]]
    plans = [*map(plan_of, kept), *_plans_from_copies(job, dropped, failed)]
    return [dataclasses.replace(plan, history=history) for plan in plans]


def _plans_from_copies(
    job: CopyJob, epochs: Sequence[LogEpoch], failed: Failures
) -> list[EpochPlan]:
    """Plans that read from the first source whose copy is whole."""
    found: dict[EpochKey, EpochPlan] = {}
    away: list[str] = []
    for source in job.sources:
        wanted = [e for e in epochs if source.name in e.targets and key_of(e) not in found]
        if not wanted:
            continue
        try:
            readings = read_epochs(job.spark, job.url, source, wanted)
        except (TargetUnavailable, ForeignTarget):
            away.append(source.name)
            continue
        plans = recorded_plans(job.url, source, wanted)
        found |= {each.key: plans[each.key] for each in readings if not each.damage}
        _forget_damaged(job, source, epochs[0].topic, readings)
    for epoch in epochs:
        if key_of(epoch) not in found:
            failed[key_of(epoch)] = _no_source(job, epoch, away)
    return list(found.values())


def _forget_damaged(
    job: CopyJob, source: Target, topic: str, readings: Sequence[CopyReading]
) -> None:
    """A source that was read back and is damaged is to be made again itself."""
    damaged = [each for each in readings if each.damage]
    if damaged:
        with connect(job.url) as connection:
            for each in damaged:
                forget_copy(connection, topic, each.key, source.name, each.damage)


def _no_source(job: CopyJob, epoch: LogEpoch, away: Sequence[str]) -> str:
    """Why a log epoch that the database has dropped cannot be read anywhere."""
    lost = "its events are no longer in the database"
    given = {each.name for each in job.sources}
    others = [each for each in epoch.targets if each not in {*given, job.target.name}]
    if others:
        return f"{lost}; give a source that has a copy recorded: --source {others[0]}"
    if away:
        return f"{lost}, and no whole copy was found; not available now: {', '.join(away)}"
    return f"{lost}, and no whole copy of them is left on any target"


def _write(job: CopyJob, of: LogEpoch, units: Sequence[list[EpochPlan]], failed: Failures) -> None:
    """Write and commit log epochs; when a job fails, in halves, until the one at fault is alone.

    ``of`` is any log epoch of the topic; what is one unit stays together.
    """
    if not units:
        return
    if job.given_up.is_set():
        raise TargetUnavailable(f"the copies on {job.target.name} took too long")
    register(job.spark, EpochSource, ArchiveSink)
    try:
        _write_once(job, of, [plan for unit in units for plan in unit])
    except NoDiskSpace:
        raise
    except Exception as error:
        # What is at fault for all of them is no log epoch's own.
        check_marker(job.target, job.installation)
        with connect(job.url):
            pass
        if len(units) == 1:
            failed |= dict.fromkeys((plan.key for plan in units[0]), reason(error))
            return
        half = len(units) // 2
        _write(job, of, units[:half], failed)
        _write(job, of, units[half:], failed)


def _write_once(job: CopyJob, of: LogEpoch, plans: list[EpochPlan]) -> None:
    """One Spark job: read the log epochs, write their files, commit each one that is as sealed."""
    text = dump_plans(plans)
    frame = job.spark.read.format(EpochSource.name()).options(plans=text).load()
    try:
        frame.write.format(ArchiveSink.name()).mode("append").options(
            url=job.url,
            topic=of.topic,
            target=job.target.name,
            **{TARGETS_OPTION: dump_targets([*job.sources, job.target])},
            installation=job.installation,
            known_as=of.known_as,
            plans=text,
        ).save()
    except Exception as error:
        if "No space left on device" in str(error):
            raise NoDiskSpace(
                f"the archive target {job.target.name} has no disk space left",
                hint="free or add space and run it again; nothing half-written is in the archive",
            ) from error
        raise


def _record(
    job: CopyJob,
    table: ArchiveTable,
    read: Sequence[tuple[LogEpoch, CopyReading]],
    written: Collection[EpochKey],
    failed: Failures,
) -> list[EpochCopy]:
    """Record what was read back and is as sealed, where the table has it."""
    copies = []
    committed = table.committed([key_of(epoch) for epoch, _ in read])
    with connect(job.url) as connection:
        for epoch, reading in read:
            if reading.damage:
                failed[key_of(epoch)] = reading.damage
                continue
            copy = copy_of(job.target, epoch, committed[key_of(epoch)][0])
            seen = dataclasses.replace(
                copy, event_count=reading.event_count, checksum=reading.checksum
            )
            try:
                manifest.record(connection, epoch.topic, seen)
            except RetentionRefused as error:  # it has another checksum since this run began
                failed[key_of(epoch)] = error.message
                continue
            made = EpochCopy(epoch, copy.target, copy.location, copy.key in written)
            copies.append(made)
    return copies


def copy_of(target: Target, epoch: LogEpoch, entry: ArchiveFile) -> Copy:
    """A copy as it is to be recorded."""
    return Copy(
        target.name,
        epoch.known_as,
        epoch.partition,
        epoch.log_epoch,
        epoch.first_sequence,
        epoch.last_sequence,
        epoch.event_count,
        epoch.checksum,
        entry.layout,
        entry.path
        if entry.layout == DAYS
        else epoch_folder(target, epoch.known_as, key_of(epoch)).as_uri(),
        entry.first_row,
    )


def _name(epoch: LogEpoch) -> str:
    return f"log epoch {epoch.log_epoch} of {epoch.topic}/{epoch.partition}"
