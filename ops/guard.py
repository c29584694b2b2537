"""Guard: read back the copies of what retention is about to remove.

The database drops a log epoch on the strength of a recorded copy.  A record says what was true when
the copy was made; the guard looks again, right before the events go, and forgets a copy that is not
what was sealed: then the database refuses the drop, and backfill makes the copy again.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ops.archive import verify_copies
from ops.policy_file import RetentionPolicy
from ops.seal import forget_copy, key_of, log_epochs
from penstock import subscriptions
from penstock.database import connect
from penstock.records import LogEpoch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ops.targets import Target

#: How many copies of one target are read back in one run; the next run looks at what is left.
MOST_COPIES = 1_000

CLOCK_SLACK_SECONDS = 300


@dataclass(frozen=True, slots=True)
class DamagedCopy:
    """A copy that is not what was sealed."""

    target: str
    partition: int
    log_epoch: int
    damage: str


@dataclass(frozen=True, slots=True)
class GuardResult:
    """What was read back: ``events`` in ``copies`` copies, and those that failed."""

    copies: int
    events: int
    damaged: tuple[DamagedCopy, ...]


def guard(
    spark: Callable[[], SparkSession],
    url: str,
    topic: str,
    targets: Sequence[Target],
    retention: RetentionPolicy,
) -> GuardResult:
    """Read back, on every target, the copies of the log epochs that are due to be removed.

    ``spark`` is called only when there is something to read.
    """
    with connect(url) as connection:
        due = due_epochs(connection, topic, retention)
    copies = events = 0
    damaged: list[DamagedCopy] = []
    for target in targets:
        chosen = [key_of(epoch) for epoch in due if target.name in epoch.targets][:MOST_COPIES]
        readings = verify_copies(spark(), url, topic, target, chosen) if chosen else []
        copies += len(readings)
        events += sum(reading.event_count for reading in readings)
        damaged += [
            DamagedCopy(target.name, reading.partition, reading.log_epoch, reading.damage)
            for reading in readings
            if reading.damage
        ]
    with connect(url) as connection:
        for each in damaged:
            key = (each.partition, each.log_epoch)
            forget_copy(connection, topic, key, each.target, each.damage)
    return GuardResult(copies, events, tuple(damaged))


def due_epochs(connection: Any, topic: str, retention: RetentionPolicy) -> list[LogEpoch]:
    """The sealed log epochs that age and subscriptions no longer keep in the database."""
    passed: dict[int, int] = {}
    for each in subscriptions.lag(connection):
        if each.topic == topic:
            passed[each.partition] = min(passed.get(each.partition, each.position), each.position)
    # The database's clock decides what goes; ours may be behind it, so we look at a little more.
    oldest = datetime.datetime.now(datetime.UTC) - datetime.timedelta(
        seconds=retention.minimum_age_seconds - CLOCK_SLACK_SECONDS
    )
    return [
        epoch
        for epoch in log_epochs(connection, topic)
        if epoch.dropped_at is None
        and (epoch.sealed_at is None or epoch.sealed_at <= oldest)
        and epoch.last_sequence <= passed.get(epoch.partition, epoch.last_sequence)
    ]
