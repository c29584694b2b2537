"""Archive: bring sealed log epochs to a target with Spark, verify them there, record the copies.

The order is what makes it safe: write, commit to the Delta log, read the committed files back, and
only then tell the database that there is a copy.  Each step can be repeated; a run that is killed
leaves at most files that no commit names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ops.archive_format import SPARK_SCHEMA, TABLE_SCHEMA, EpochPlan, dump_plans
from ops.archive_reader import EpochSource
from ops.archive_table import Committed, committed_epochs, create_table, open_table
from ops.archive_verify import CopyReading, read_copies
from ops.archive_writer import ArchiveSink
from ops.seal import EpochKey, key_of, log_epochs
from ops.spark import register
from ops.targets import Target
from penstock.database import call, connect
from penstock.errors import EpochError, NoDiskSpace
from penstock.log.restores import Seen, require_log
from penstock.records import LogEpoch
from penstock.topics.names import describe_topic, partition_ranges
from penstock.topics.partition_ids import id_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Commits come at the end of a job: a killed run repeats at most this many log epochs.
EPOCHS_PER_JOB = 32


@dataclass(frozen=True, slots=True)
class EpochCopy:
    """A verified and recorded copy; ``written`` says whether this run wrote it."""

    epoch: LogEpoch
    target: str
    location: str
    written: bool


def archive_epochs(
    spark: SparkSession,
    url: str,
    topic: str,
    target: Target,
    epochs: Collection[EpochKey] | None = None,
) -> list[EpochCopy]:
    """Archive the given (partition, log epoch) pairs, or every one without a verified copy there.

    A log epoch that is recorded already is answered as it is.  One that was committed but not
    recorded, because a run died between the two, is verified and recorded.  A copy that does not
    verify is an EpochError, after the others are recorded; ``backfill`` repairs it.
    """
    require_archived(url, topic, target)
    chosen = _choose(url, topic, epochs)
    todo = [epoch for epoch in chosen if target.name not in epoch.targets]
    done = [
        EpochCopy(epoch, target.name, location(target, epoch), written=False)
        for epoch in chosen
        if target.name in epoch.targets
    ]
    for start in range(0, len(todo), EPOCHS_PER_JOB):
        done += bring_copies(spark, url, target, todo[start : start + EPOCHS_PER_JOB])
    return sorted(done, key=lambda copy: key_of(copy.epoch))


def require_archived(url: str, topic: str, target: Target) -> None:
    """LogBehind when the log does not reach what the target holds of it: one call for each run."""
    with connect(url) as connection:
        found = describe_topic(connection, topic)
        seen: dict[int, Seen] = {}
        for (partition, _), entries in committed_epochs(open_table(target, found.known_as)).items():
            own = id_of(found.topic_id, partition)
            for entry in entries:
                place = Seen(entry.last_sequence, entry.history)
                seen[own] = max(seen.get(own, place), place, key=_place)
        require_log(connection, seen, f"the archive {target.name}")


def _place(seen: Seen) -> tuple[int, int]:
    return seen.history, seen.sequence


def read_archive(spark: SparkSession, target: Target, known_as: str) -> DataFrame:
    """The archived events of a topic: the files that the Delta log names, and no others.

    ``known_as`` is what `describe_topic` answers; no database is needed.
    """
    root = target.table_path(known_as)
    files = [
        str(root / entry.path)
        for entries in committed_epochs(open_table(target, known_as)).values()
        for entry in entries
    ]
    if not files:
        return spark.createDataFrame([], SPARK_SCHEMA)
    reader = spark.read.schema(SPARK_SCHEMA).option("basePath", str(root))
    return reader.parquet(*files).select(*TABLE_SCHEMA.names)


def verify_copies(
    spark: SparkSession,
    url: str,
    topic: str,
    target: Target,
    epochs: Collection[EpochKey] | None = None,
) -> list[CopyReading]:
    """Read back the given copies, or every recorded one of the target; changes nothing."""
    chosen = [
        epoch
        for epoch in _choose(url, topic, epochs)
        if epochs is not None or target.name in epoch.targets
    ]
    committed = _committed(target, chosen)
    readings = read_copies(spark, [_copy_plan(target, each, committed) for each in chosen])
    return [readings[key_of(epoch)] for epoch in chosen]


def verify_copy(
    spark: SparkSession, url: str, topic: str, target: Target, epoch: EpochKey
) -> CopyReading:
    """Read back one copy, recorded or not; its ``damage`` is empty when it is whole."""
    return verify_copies(spark, url, topic, target, [epoch])[0]


def location(target: Target, epoch: LogEpoch) -> str:
    """Where a log epoch lies on a target, for the record of its copy."""
    folder = target.table_path(epoch.known_as)
    return (folder / f"partition={epoch.partition}" / f"log_epoch={epoch.log_epoch}").as_uri()


def bring_copies(
    spark: SparkSession,
    url: str,
    target: Target,
    epochs: Sequence[LogEpoch],
    *,
    repair: bool = False,
    sources: Sequence[Target] = (),
) -> list[EpochCopy]:
    """Write what the table lacks, verify all of it, record what verifies.

    With ``repair`` a damaged copy is replaced; ``sources`` are targets to read from what the
    database has dropped.
    """
    if not epochs:
        return []
    committed = committed_epochs(create_table(target, epochs[0].known_as))
    missing = [epoch for epoch in epochs if key_of(epoch) not in committed]
    _write(spark, url, epochs[0], target, _plans(spark, url, missing, sources))
    committed = _committed(target, epochs)
    readings = _read_back(spark, target, epochs, committed)
    written = {key_of(epoch) for epoch in missing}
    damaged = [epoch for epoch in epochs if readings[key_of(epoch)].damage]
    if repair and damaged:
        _refuse_other_logs(target, epochs[0].topic, readings)
        plans = [
            dataclasses.replace(
                plan, replaces=tuple(entry.path for entry in committed.get(plan.key, []))
            )
            for plan in _plans(spark, url, damaged, sources)
        ]
        _write(spark, url, epochs[0], target, plans)
        committed = _committed(target, epochs)
        readings |= _read_back(spark, target, damaged, committed)
        written |= {key_of(epoch) for epoch in damaged}
    return _record(url, target, epochs, readings, written)


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


def _copy_plan(target: Target, epoch: LogEpoch, committed: Committed) -> EpochPlan:
    root = target.table_path(epoch.known_as)
    entries = committed.get(key_of(epoch), [])
    return _plan(epoch, [str(root / entry.path) for entry in entries])


def _committed(target: Target, epochs: Sequence[LogEpoch]) -> Committed:
    """What the target's table holds of the topic that the log epochs are of."""
    return committed_epochs(open_table(target, epochs[0].known_as)) if epochs else {}


def _read_back(
    spark: SparkSession, target: Target, epochs: Sequence[LogEpoch], committed: Committed
) -> dict[EpochKey, CopyReading]:
    return read_copies(spark, [_copy_plan(target, epoch, committed) for epoch in epochs])


def _plans(
    spark: SparkSession,
    url: str,
    epochs: Sequence[LogEpoch],
    sources: Sequence[Target],
) -> list[EpochPlan]:
    """How to read each log epoch: from the database while it has it, else from another copy."""
    if not epochs:
        return []
    topic = epochs[0].topic
    with connect(url) as connection:
        ranges = partition_ranges(connection, topic)
    low = {each.partition: each.low_sequence for each in ranges}
    kept = [each for each in epochs if each.first_sequence >= low[each.partition]]
    dropped = [each for each in epochs if each not in kept]
    plans = [_plan(each) for each in kept]
    plans += [_plan_from_copy(spark, each, sources) for each in dropped]
    history = max(each.history for each in ranges)
    return [dataclasses.replace(plan, history=history) for plan in plans]


def _plan_from_copy(spark: SparkSession, epoch: LogEpoch, sources: Sequence[Target]) -> EpochPlan:
    for source in sources:
        if source.name in epoch.targets:
            committed = _committed(source, [epoch])
            plan = _copy_plan(source, epoch, committed)
            if not read_copies(spark, [plan])[plan.key].damage:
                return plan
    raise EpochError(
        f"{_name(epoch)} is no longer in the database and no source holds a whole copy",
        hint=f"give a target that has it; recorded are: {', '.join(epoch.targets) or 'none'}",
    )


def _write(
    spark: SparkSession, url: str, of: LogEpoch, target: Target, plans: list[EpochPlan]
) -> None:
    """One Spark job: read the log epochs, write their files, commit each one that is as epoch.

    ``of`` is any log epoch of the topic.
    """
    if not plans:
        return
    register(spark, EpochSource, ArchiveSink)
    text = dump_plans(plans)
    frame = (
        spark.read.format(EpochSource.name()).options(url=url, topic=of.topic, plans=text).load()
    )
    try:
        frame.write.format(ArchiveSink.name()).mode("append").options(
            target=target.name, uri=target.uri, known_as=of.known_as, plans=text
        ).save()
    except Exception as error:
        if "No space left on device" in str(error):
            raise NoDiskSpace(
                f"the archive target {target.name} has no disk space left",
                hint="free or add space and run it again; nothing half-written is in the archive",
            ) from error
        raise


def _record(
    url: str,
    target: Target,
    epochs: Sequence[LogEpoch],
    readings: dict[EpochKey, CopyReading],
    written: Collection[EpochKey],
) -> list[EpochCopy]:
    copies = []
    damaged = []
    with connect(url) as connection:
        for epoch in epochs:
            reading = readings[key_of(epoch)]
            if reading.damage:
                damaged.append(f"{_name(epoch)}: {reading.damage}")
                continue
            place = location(target, epoch)
            call(
                connection,
                "record_copy",
                topic=epoch.topic,
                partition=epoch.partition,
                log_epoch=epoch.log_epoch,
                target=target.name,
                location=place,
                event_count=reading.event_count,
                checksum=reading.checksum,
            )
            copies.append(EpochCopy(epoch, target.name, place, key_of(epoch) in written))
    if damaged:
        raise EpochError(
            f"copies on {target.name} do not verify: {'; '.join(damaged)}",
            hint="run backfill; if it answers the same, the log differs from its seal",
        )
    return copies


def _refuse_other_logs(target: Target, topic: str, readings: dict[EpochKey, CopyReading]) -> None:
    """Never replace a whole copy of some other log by a repair."""
    others = sorted(key for key, reading in readings.items() if reading.other_log)
    if others:
        raise EpochError(
            f"{target.name} holds another log's archive of {topic}: "
            f"(partition, log epoch) {others}",
            hint="give this installation an archive target of its own, or move the old one away",
        )


def _name(epoch: LogEpoch) -> str:
    return f"log epoch {epoch.log_epoch} of {epoch.topic}/{epoch.partition}"
