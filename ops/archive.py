"""Archive: bring sealed log epochs to a target with Spark, verify them there, record the copies.

The order is what makes it safe: write, commit to the Delta log, read the committed files back, and
only then tell the database that there is a copy.  Each step can be repeated; a run that is killed
leaves at most files that no commit names.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ops.archive_commits import create_table
from ops.archive_plans import EpochPlan, dump_plans
from ops.archive_reader import EpochSource
from ops.archive_verify import read_copies
from ops.archive_writer import ArchiveSink
from ops.readings import CopyReading
from ops.seal import forget_copy, log_epochs
from ops.spark import register
from penstock.archive.copies import EpochKey, epoch_folder, key_of
from penstock.archive.format import SPARK_SCHEMA, TABLE_SCHEMA
from penstock.archive.markers import check_marker, marker_path, require_target
from penstock.archive.table import ArchiveTable
from penstock.archive.targets import Target
from penstock.database import call, connect
from penstock.errors import EpochError, ForeignTarget, NoDiskSpace, TargetUnavailable
from penstock.log.restores import Seen, require_log
from penstock.records import LogEpoch
from penstock.topics.names import describe_topic, partition_ranges
from penstock.topics.partition_ids import id_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Commits come at the end of a job: a killed run repeats at most this many log epochs.
EPOCHS_PER_JOB = 32
#: An error names so many log epochs with their reasons.
_MOST_NAMED = 10
_SAYS_WHY = re.compile(r"[A-Za-z_.]*(Error|Exception|Refused|Unavailable|NotFound)\b.*:")


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
            hint="run backfill; if it answers the same, see the reason of each",
        )
        self.made = tuple(made)
        self.failed = tuple(failed)


def archive_epochs(
    spark: SparkSession,
    url: str,
    topic: str,
    target: Target,
    epochs: Collection[EpochKey] | None = None,
    *,
    repair: bool = False,
    sources: Sequence[Target] = (),
) -> list[EpochCopy]:
    """Archive the given (partition, log epoch) pairs, or every one without a verified copy there.

    A log epoch that is recorded already is answered as it is.  One that was committed but not
    recorded, because a run died between the two, is verified and recorded.  A copy that cannot be
    made or does not verify is a CopiesFailed, after all others are recorded.

    With ``repair`` what is recorded is read back too, and whatever is damaged or gone is made
    again, from ``sources``, other targets, where the database has dropped it.
    """
    installation = require_target(url, target, write=True)
    require_archived(url, topic, target)
    chosen = _choose(url, topic, epochs)
    recorded = [epoch for epoch in chosen if target.name in epoch.targets]
    if repair:
        recorded = _still_whole(spark, url, target, recorded)
    kept = {key_of(epoch) for epoch in recorded}
    todo = [epoch for epoch in chosen if key_of(epoch) not in kept]
    job = CopyJob(spark, url, target, installation, repair, tuple(sources))
    made = [EpochCopy(each, target.name, location(target, each), False) for each in recorded]
    return sorted(bring_copies(job, todo, made), key=lambda copy: key_of(copy.epoch))


def require_archived(url: str, topic: str, target: Target) -> None:
    """LogBehind when the log does not reach what the target holds of it: one call for each run."""
    with connect(url) as connection:
        found = describe_topic(connection, topic)
        newest = ArchiveTable(target, found.known_as).newest()
        seen = {
            id_of(found.topic_id, partition): Seen(sequence, history)
            for partition, (history, sequence) in newest.items()
        }
        require_log(connection, seen, f"the archive {target.name}")


def read_archive(spark: SparkSession, target: Target, known_as: str) -> DataFrame:
    """The archived events of a topic: the files that the Delta log names, and no others.

    ``known_as`` is what `describe_topic` answers; no database is needed.
    """
    table = ArchiveTable(target, known_as)
    files = [str(table.file(each)) for entries in table.committed().values() for each in entries]
    if not files:
        return spark.createDataFrame([], SPARK_SCHEMA)
    reader = spark.read.schema(SPARK_SCHEMA).option("basePath", str(table.path))
    return reader.parquet(*files).select(*TABLE_SCHEMA.names)


def verify_copies(
    spark: SparkSession,
    url: str,
    topic: str,
    target: Target,
    epochs: Collection[EpochKey] | None = None,
) -> list[CopyReading]:
    """Read back the given copies, or every recorded one of the target; changes no copy."""
    chosen = _choose(url, topic, epochs)
    if epochs is None:
        chosen = [epoch for epoch in chosen if target.name in epoch.targets]
    return read_epochs(spark, url, target, chosen)


def read_epochs(
    spark: SparkSession, url: str, target: Target, epochs: Sequence[LogEpoch]
) -> list[CopyReading]:
    """Read back the target's copies of log epochs of one topic, recorded or not."""
    require_target(url, target)
    if not epochs:
        return []
    readings = _read_back(spark, ArchiveTable(target, epochs[0].known_as), epochs)
    return [readings[key_of(epoch)] for epoch in epochs]


def verify_copy(
    spark: SparkSession, url: str, topic: str, target: Target, epoch: EpochKey
) -> CopyReading:
    """Read back one copy, recorded or not; its ``damage`` is empty when it is whole."""
    return verify_copies(spark, url, topic, target, [epoch])[0]


def location(target: Target, epoch: LogEpoch) -> str:
    """Where a log epoch lies on a target, for the record of its copy."""
    return epoch_folder(target, epoch.known_as, key_of(epoch)).as_uri()


@dataclass(frozen=True, slots=True)
class CopyJob:
    """What copies are made with: ``sources`` are read where the database has dropped events."""

    spark: SparkSession
    url: str
    target: Target
    installation: str
    repair: bool = False
    sources: tuple[Target, ...] = ()


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
        reasons: dict[EpochKey, str] = {}
        done += _bring_lot(job, lot, reasons)
        failed += [
            FailedCopy(each, job.target.name, reasons[key_of(each)])
            for each in lot
            if key_of(each) in reasons
        ]
    if failed:
        raise CopiesFailed(done, failed)
    return done


def _bring_lot(
    job: CopyJob, epochs: Sequence[LogEpoch], failed: dict[EpochKey, str]
) -> list[EpochCopy]:
    """Copies of a few log epochs; ``failed`` gets the reason of each that could not be made."""
    check_marker(job.target, job.installation)
    table = create_table(job.target, epochs[0].known_as)
    committed = table.committed([key_of(epoch) for epoch in epochs])
    missing = [epoch for epoch in epochs if key_of(epoch) not in committed]
    _write(job, epochs[0], _plans(job, missing, failed), failed)
    table.refresh()
    rest = [epoch for epoch in epochs if key_of(epoch) not in failed]
    readings = _read_back(job.spark, table, rest)
    written = {key_of(epoch) for epoch in missing}
    damaged = [epoch for epoch in rest if readings[key_of(epoch)].damage]
    if job.repair and damaged:
        mendable = _not_of_other_logs(damaged, readings, failed)
        committed = table.committed([key_of(epoch) for epoch in mendable])
        plans = [
            dataclasses.replace(
                plan, replaces=tuple(entry.path for entry in committed.get(plan.key, []))
            )
            for plan in _plans(job, mendable, failed)
        ]
        _write(job, epochs[0], plans, failed)
        mended = [epoch for epoch in mendable if key_of(epoch) not in failed]
        table.refresh()
        readings |= _read_back(job.spark, table, mended)
        written |= {key_of(epoch) for epoch in mended}
        rest = [epoch for epoch in rest if key_of(epoch) not in failed]
    return _record(job, rest, readings, written, failed)


def _choose(url: str, topic: str, epochs: Collection[EpochKey] | None) -> list[LogEpoch]:
    with connect(url) as connection:
        known = {key_of(epoch): epoch for epoch in log_epochs(connection, topic)}
    if epochs is None:
        return list(known.values())
    unknown = sorted(set(epochs) - known.keys())
    if unknown:
        raise EpochError(
            f"{topic} has no sealed log epoch (partition, number) {unknown}",
            hint="seal it first, or ask for one that `log_epochs_of` lists",
        )
    return [known[key] for key in sorted(set(epochs))]


def _plan(epoch: LogEpoch, files: Sequence[str] = ()) -> EpochPlan:
    return EpochPlan(
        epoch.partition,
        epoch.log_epoch,
        epoch.first_sequence,
        epoch.last_sequence,
        epoch.event_count,
        epoch.checksum,
        files=tuple(files),
    )


def _copy_plans(table: ArchiveTable, epochs: Sequence[LogEpoch]) -> dict[EpochKey, EpochPlan]:
    """How to read what the table holds of the log epochs."""
    committed = table.committed([key_of(epoch) for epoch in epochs])
    marker = str(marker_path(table.target))
    plans = {}
    for epoch in epochs:
        files = [str(table.file(each)) for each in committed.get(key_of(epoch), [])]
        plans[key_of(epoch)] = dataclasses.replace(_plan(epoch, files), marker=marker)
    return plans


def _read_back(
    spark: SparkSession, table: ArchiveTable, epochs: Sequence[LogEpoch]
) -> dict[EpochKey, CopyReading]:
    return read_copies(spark, list(_copy_plans(table, epochs).values()))


def _still_whole(
    spark: SparkSession, url: str, target: Target, epochs: Sequence[LogEpoch]
) -> list[LogEpoch]:
    """Those of the recorded copies that are what was sealed; the others are forgotten."""
    readings = read_epochs(spark, url, target, epochs) if epochs else []
    damaged = {each.key: each.damage for each in readings if each.damage}
    with connect(url) as connection:
        for epoch in epochs:
            if key_of(epoch) in damaged:
                key = key_of(epoch)
                forget_copy(connection, epoch.topic, key, target.name, damaged[key])
    return [epoch for epoch in epochs if key_of(epoch) not in damaged]


def _plans(
    job: CopyJob, epochs: Sequence[LogEpoch], failed: dict[EpochKey, str]
) -> list[EpochPlan]:
    """How to read each log epoch: from the database while it has it, else from another copy."""
    if not epochs:
        return []
    with connect(job.url) as connection:
        ranges = partition_ranges(connection, epochs[0].topic)
    low = {each.partition: each.low_sequence for each in ranges}
    history = max(each.history for each in ranges)
    kept = [each for each in epochs if each.first_sequence >= low[each.partition]]
    dropped = [each for each in epochs if each.first_sequence < low[each.partition]]
    plans = [*map(_plan, kept), *_plans_from_copies(job, dropped, failed)]
    return [dataclasses.replace(plan, history=history) for plan in plans]


def _plans_from_copies(
    job: CopyJob, epochs: Sequence[LogEpoch], failed: dict[EpochKey, str]
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
        plans = _copy_plans(ArchiveTable(source, wanted[0].known_as), wanted)
        found |= {each.key: plans[each.key] for each in readings if not each.damage}
    for epoch in epochs:
        if key_of(epoch) not in found:
            failed[key_of(epoch)] = (
                "it is no longer in the database and no source holds a whole copy (recorded are: "
                f"{', '.join(epoch.targets) or 'none'}; not available: {', '.join(away) or 'none'})"
            )
    return list(found.values())


def _write(job: CopyJob, of: LogEpoch, plans: list[EpochPlan], failed: dict[EpochKey, str]) -> None:
    """Write and commit log epochs; when a job fails, in halves, until the one at fault is alone.

    ``of`` is any log epoch of the topic.
    """
    if not plans:
        return
    register(job.spark, EpochSource, ArchiveSink)
    try:
        _write_once(job, of, plans)
    except NoDiskSpace:
        raise
    except Exception as error:
        # What is at fault for all of them is no log epoch's own.
        check_marker(job.target, job.installation)
        with connect(job.url):
            pass
        if len(plans) == 1:
            failed[plans[0].key] = _reason(error)
            return
        half = len(plans) // 2
        _write(job, of, plans[:half], failed)
        _write(job, of, plans[half:], failed)


def _write_once(job: CopyJob, of: LogEpoch, plans: list[EpochPlan]) -> None:
    """One Spark job: read the log epochs, write their files, commit each one that is as sealed."""
    text = dump_plans(plans)
    reader = job.spark.read.format(EpochSource.name())
    frame = reader.options(url=job.url, topic=of.topic, plans=text).load()
    try:
        frame.write.format(ArchiveSink.name()).mode("append").options(
            target=job.target.name,
            uri=job.target.uri,
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


def _reason(error: Exception) -> str:
    """The line of an error out of a Spark task that says what happened there."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if _SAYS_WHY.match(line)]
    return (said or lines or [type(error).__name__])[-1 if said else 0][:500]


def _record(
    job: CopyJob,
    epochs: Sequence[LogEpoch],
    readings: dict[EpochKey, CopyReading],
    written: Collection[EpochKey],
    failed: dict[EpochKey, str],
) -> list[EpochCopy]:
    copies = []
    with connect(job.url) as connection:
        for epoch in epochs:
            reading = readings[key_of(epoch)]
            if reading.damage:
                failed[key_of(epoch)] = reading.damage
                continue
            place = location(job.target, epoch)
            call(
                connection,
                "record_copy",
                topic=epoch.topic,
                partition=epoch.partition,
                log_epoch=epoch.log_epoch,
                target=job.target.name,
                location=place,
                event_count=reading.event_count,
                checksum=reading.checksum,
                layout=1,
                first_row=0,
            )
            copies.append(EpochCopy(epoch, job.target.name, place, key_of(epoch) in written))
    return copies


def _not_of_other_logs(
    damaged: Sequence[LogEpoch],
    readings: dict[EpochKey, CopyReading],
    failed: dict[EpochKey, str],
) -> list[LogEpoch]:
    """Without those whose copy is a whole one of some other log: no repair ever replaces it."""
    for epoch in damaged:
        if readings[key_of(epoch)].other_log:
            failed[key_of(epoch)] = (
                "the target holds another log's archive of it: give this installation a target of "
                "its own, or move the old one away"
            )
    return [epoch for epoch in damaged if key_of(epoch) not in failed]


def _name(epoch: LogEpoch) -> str:
    return f"log epoch {epoch.log_epoch} of {epoch.topic}/{epoch.partition}"
