"""Backfill: find copies that are gone or damaged, and make every missing copy again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ops.archive.archiving import require_archived
from ops.archive.auditing import ForgottenCopy, audit_suspects
from ops.archive.commits import LEFTOVER_HOURS, remove_leftovers
from ops.archive.copying import CopyJob, EpochCopy, bring_copies
from ops.archive.foreign import adopt
from ops.archive.limits import within
from ops.archive.placing import Placed, place_copies
from ops.seal import copies_of, forget_copy, missing_copies
from penstock.archive.format import DAYS
from penstock.archive.markers import check_marker, require_target
from penstock.archive.table import ArchiveTable
from penstock.database import connect
from penstock.errors import ConfigurationError, TargetUnavailable
from penstock.records import EpochCopyState
from penstock.topics.names import describe_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ops.archive.placement import Placement
    from penstock.archive.targets import Target

log = logging.getLogger(__name__)


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
    at any point and run again.  Returns the copies that it recorded; one that cannot be made stops
    no other, and is in the CopiesFailed at the end.
    """
    installation = require_target(url, target, write=True)
    require_archived(url, topic, target)
    audit_files(url, topic, target)
    with connect(url) as connection:
        missing = missing_copies(connection, topic, target.name)
    job = CopyJob(spark, url, target, installation, repair=True, sources=tuple(sources))
    return bring_copies(job, missing)


def catch_up(
    spark: Callable[[], SparkSession],
    url: str,
    topic: str,
    placement: Placement,
    find: Callable[[str], Target],
) -> Placed:
    """Make every copy that a topic lacks by its policy, whichever of its targets are there.

    It looks first whether the files of the recorded copies are there. What the database has dropped
    comes from other targets. Spark is started only when a copy is lacking. QuorumMissed as in
    :func:`ops.archive.placing.place_copies`.
    """
    for name in placement.targets:
        try:
            within(placement.copy_seconds, f"a look at the archive target {name}",
                   partial(_audit, url, topic, find, name))  # fmt: skip
        except (TargetUnavailable, ConfigurationError) as error:
            log.warning("the archive target %s is not looked at: %s", name, error)
    return place_copies(spark, url, topic, placement, find, repair=True)


def _audit(
    url: str, topic: str, find: Callable[[str], Target], name: str, _: threading.Event
) -> None:
    audit_files(url, topic, find(name))


def audit_files(url: str, topic: str, target: Target) -> list[ForgottenCopy]:
    """Without Spark: forget the recorded copies whose files are gone or have another size.

    Those that readers have found damaged are read back, and forgotten where they are.  Cheap enough
    for a sensor; what it forgets, :func:`backfill` makes again.  On a target that is not there
    nothing is gone: TargetUnavailable.
    """
    installation = require_target(url, target)
    adopt(url, topic, target)
    return _gone_files(url, topic, target, installation) + audit_suspects(url, topic, target)


def _gone_files(url: str, topic: str, target: Target, installation: str) -> list[ForgottenCopy]:
    with connect(url) as connection:
        known_as = describe_topic(connection, topic).known_as
        recorded = [
            each
            for each in copies_of(connection, topic)
            if each.target == target.name and each.state == "verified"
        ]
        if not recorded:
            return []
        files = _Files(ArchiveTable(target, known_as))
        found = [
            ForgottenCopy(copy.partition, copy.log_epoch, "its files are gone or have another size")
            for copy in recorded
            if not files.are_whole(copy)
        ]
        if found:
            check_marker(target, installation)  # it may have been unmounted meanwhile
        _forget(connection, topic, target, found)
    return found


def tidy(url: str, topic: str, target: Target, *, hours: int = LEFTOVER_HOURS) -> list[str]:
    """Remove the files of killed runs and of replaced copies that no commit has named for a week.

    Returns their paths; on a target that is not there nothing is removed: TargetUnavailable.
    """
    require_target(url, target)
    with connect(url) as connection:
        known_as = describe_topic(connection, topic).known_as
        named = {each.location for each in copies_of(connection, topic) if each.layout == DAYS}
    return remove_leftovers(target, known_as, hours, named=named)


def _forget(connection: Any, topic: str, target: Target, found: list[ForgottenCopy]) -> None:
    for each in found:
        key = (each.partition, each.log_epoch)
        forget_copy(connection, topic, key, target.name, each.reason)


class _Files:
    """Whether the files of recorded copies are there with the size that the Delta log says."""

    def __init__(self, table: ArchiveTable) -> None:
        self._table = table
        self._folders = table.committed_folders()
        self._sizes = {each.path: each.size for each in table.day_files()}
        self._looked_at: dict[str, bool] = {}

    def are_whole(self, copy: EpochCopyState) -> bool:
        if copy.layout != DAYS:
            entries = self._folders.get((copy.partition, copy.log_epoch), [])
            return bool(entries) and all(
                self._has_size(self._table.file(each), each.size) for each in entries
            )
        if copy.location not in self._looked_at:
            path = f"{self._table.name(DAYS)}/{copy.location}"
            size = self._sizes.get(copy.location)
            # A file that a rollup has replaced is as good as it was until the manifest has moved.
            is_held = size is not None or bool(
                self._table.committed([(copy.partition, copy.log_epoch)])
            )
            self._looked_at[copy.location] = is_held and self._has_size(path, size)
        return self._looked_at[copy.location]

    def _has_size(self, path: str, size: int | None) -> bool:
        found = self._table.target.store.size(path)
        return found is not None and size in {None, found}
