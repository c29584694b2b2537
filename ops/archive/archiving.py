"""Archive: bring sealed log epochs to a target with Spark, verify them there, record the copies.

How a copy is made is in :mod:`ops.archive.copying`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ops.archive import manifest
from ops.archive.copying import (
    CopiesFailed as CopiesFailed,
    CopyJob,
    EpochCopy as EpochCopy,
    bring_copies,
    read_epochs as read_epochs,
)
from ops.seal import choose_epochs, forget_copy
from penstock.archive.copies import EpochKey, key_of
from penstock.archive.markers import require_target
from penstock.archive.table import ArchiveTable
from penstock.archive.targets import Target
from penstock.database import connect
from penstock.log.restores import Seen, require_log
from penstock.records import LogEpoch
from penstock.topics.names import describe_topic
from penstock.topics.partition_ids import id_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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

    A log epoch that is recorded already is returned as it is.  One that was committed but not
    recorded, because a run died between the two, is verified and recorded.  A copy that cannot be
    made or does not verify is a CopiesFailed, after all others are recorded.

    With ``repair`` what is recorded is read back too, and whatever is damaged or gone is made
    again, from ``sources``, other targets, where the database has dropped it.
    """
    installation = require_target(url, target, write=True)
    require_archived(url, topic, target)
    with connect(url) as connection:
        chosen = choose_epochs(connection, topic, epochs)
    recorded = [epoch for epoch in chosen if target.name in epoch.targets]
    if repair:
        recorded = still_whole(spark, url, target, recorded)
    kept = {key_of(epoch) for epoch in recorded}
    todo = [epoch for epoch in chosen if key_of(epoch) not in kept]
    job = CopyJob(spark, url, target, installation, repair, tuple(sources))
    with connect(url) as connection:
        places = manifest.recorded(connection, target.name, recorded) if recorded else {}
    made = [EpochCopy(each, target.name, places[key_of(each)].location, False) for each in recorded]
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


def still_whole(
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
