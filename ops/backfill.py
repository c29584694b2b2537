"""Backfill: find copies that are gone or damaged, and make every missing copy again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ops.archive import CopyJob, EpochCopy, bring_copies, require_archived, verify_copies
from ops.archive_commits import LEFTOVER_HOURS, remove_leftovers
from ops.seal import forget_copy, log_epochs, missing_copies
from penstock.archive.copies import key_of
from penstock.archive.markers import check_marker, require_target
from penstock.archive.table import ArchiveTable
from penstock.database import connect
from penstock.topics.names import describe_topic

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock.archive.targets import Target


@dataclass(frozen=True, slots=True)
class ForgottenCopy:
    """A recorded copy that turned out not to be there, and why."""

    partition: int
    log_epoch: int
    reason: str


def backfill(
    spark: SparkSession,
    url: str,
    topic: str,
    target: Target,
    *,
    sources: Sequence[Target] = (),
) -> list[EpochCopy]:
    """Make every missing copy of a topic on a target; repairs what is there but damaged.

    Log epochs that the database has dropped come from ``sources``, other targets.  Can be stopped
    at any point and run again.  Answers the copies that it recorded; one that cannot be made stops
    no other, and is in the CopiesFailed at the end.
    """
    installation = require_target(url, target, write=True)
    require_archived(url, topic, target)
    audit_files(url, topic, target)
    with connect(url) as connection:
        missing = missing_copies(connection, topic, target.name)
    job = CopyJob(spark, url, target, installation, repair=True, sources=tuple(sources))
    return bring_copies(job, missing)


def audit_files(url: str, topic: str, target: Target) -> list[ForgottenCopy]:
    """Without Spark: forget the recorded copies whose files are gone or have another size.

    Cheap enough for a sensor; what it forgets, :func:`backfill` makes again.  On a target that is
    not there nothing is gone: TargetUnavailable.
    """
    installation = require_target(url, target)
    with connect(url) as connection:
        known_as = describe_topic(connection, topic).known_as
        recorded = [each for each in log_epochs(connection, topic) if target.name in each.targets]
        if not recorded:
            return []
        table = ArchiveTable(target, known_as)
        committed = table.committed()
        found = []
        for epoch in recorded:
            files = committed.get(key_of(epoch), [])
            whole = bool(files) and all(_has_size(table.file(each), each.size) for each in files)
            if not whole:
                reason = "its files are gone or have another size"
                found.append(ForgottenCopy(*key_of(epoch), reason))
        if found:
            check_marker(target, installation)  # it may have been unmounted meanwhile
        _forget(connection, topic, target, found)
    return found


def tidy(url: str, topic: str, target: Target, *, hours: int = LEFTOVER_HOURS) -> list[str]:
    """Remove the files of killed runs and of replaced copies that no commit has named for a week.

    Answers their paths; on a target that is not there nothing is removed: TargetUnavailable.
    """
    require_target(url, target)
    with connect(url) as connection:
        known_as = describe_topic(connection, topic).known_as
    return remove_leftovers(target, known_as, hours)


def audit_copies(spark: SparkSession, url: str, topic: str, target: Target) -> list[ForgottenCopy]:
    """Read every recorded copy back and forget those that are not what was sealed."""
    readings = verify_copies(spark, url, topic, target)
    found = [ForgottenCopy(*each.key, each.damage) for each in readings if each.damage]
    with connect(url) as connection:
        _forget(connection, topic, target, found)
    return found


def _forget(connection: Any, topic: str, target: Target, found: list[ForgottenCopy]) -> None:
    for each in found:
        key = (each.partition, each.log_epoch)
        forget_copy(connection, topic, key, target.name, each.reason)


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False
