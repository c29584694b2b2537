"""Seal: cut the end of each partition's log into log epochs, and list them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.archive.copies import EpochKey, key_of
from penstock.database import call
from penstock.errors import EpochError
from penstock.records import EpochCopyState, LogEpoch

if TYPE_CHECKING:
    from ops.archive.placement import Placement

#: A log epoch of this size is one file of some ten megabytes, written and verified in seconds.
MAX_EVENTS = 100_000


def seal(
    connection: Any,
    topic: str,
    *,
    max_events: int = MAX_EVENTS,
    max_age_seconds: float | None = None,
    max_epochs: int = 1_000,
) -> list[LogEpoch]:
    """Seal what is ready in every partition of a topic.  Returns the new log epochs.

    A log epoch is ready when it holds ``max_events``, or when its first event has been in the log
    for ``max_age_seconds``: 0 seals whatever there is, None looks at the size alone. On a
    connection in autocommit each log epoch is its own transaction.
    """
    found: list[LogEpoch] = []
    for partition, _ in call(connection, "low_sequences", topic=topic):
        while len(found) < max_epochs:
            rows = call(
                connection,
                "seal",
                topic=topic,
                partition=partition,
                max_events=max_events,
                max_age_seconds=max_age_seconds,
            )
            if not rows:
                break
            found += [LogEpoch(topic, partition, *row) for row in rows]
    return found


def log_epochs(connection: Any, topic: str) -> list[LogEpoch]:
    """Every sealed log epoch of a topic, with the targets that hold a verified copy."""
    return [log_epoch_of(topic, row) for row in call(connection, "log_epochs_of", topic=topic)]


def choose_epochs(
    connection: Any, topic: str, epochs: Collection[EpochKey] | None
) -> list[LogEpoch]:
    """The sealed log epochs of these keys, or all for None; EpochError when one is not there."""
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


def missing_copies(connection: Any, topic: str, target: str) -> list[LogEpoch]:
    """The sealed log epochs that lack a verified copy on the target."""
    rows = call(connection, "missing_copies", topic=topic, target=target)
    return [log_epoch_of(topic, row) for row in rows]


def lacking(connection: Any, topic: str, placement: Placement) -> list[LogEpoch]:
    """The log epochs with fewer verified copies than their policy wants: the one look for all."""
    return [each for each in log_epochs(connection, topic) if placement.lacking(each)]


def due_log_epochs(connection: Any, topic: str, max_epochs: int) -> list[LogEpoch]:
    """The log epochs that a run of clean has to read back before it can drop them."""
    rows = call(connection, "log_epochs_due", topic=topic, max_epochs=max_epochs)
    return [log_epoch_of(topic, row) for row in rows]


def copies_of(connection: Any, topic: str) -> list[EpochCopyState]:
    """Every copy of a topic's log epochs that was ever recorded, and whether it still exists."""
    return [EpochCopyState(*row) for row in call(connection, "copies_of", topic=topic)]


def forget_copy(connection: Any, topic: str, key: EpochKey, target: str, reason: str) -> None:
    """Record that the target's copy of a log epoch is lost or damaged.  Backfill makes it again."""
    partition, log_epoch = key
    call(
        connection,
        "forget_copy",
        topic=topic,
        partition=partition,
        log_epoch=log_epoch,
        target=target,
        reason=reason,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class SuspectedCopy:
    """A copy that a reader has found damaged, and that nobody has read back since."""

    partition: int
    log_epoch: int
    target: str
    reason: str
    suspected_at: datetime

    @property
    def key(self) -> EpochKey:
        """(partition, log epoch)."""
        return self.partition, self.log_epoch


def suspected_copies(connection: Any, topic: str) -> list[SuspectedCopy]:
    """The copies of a topic that readers have found damaged."""
    return [SuspectedCopy(*row) for row in call(connection, "suspected_copies_of", topic=topic)]


def clear_suspicion(connection: Any, topic: str, key: EpochKey, target: str) -> None:
    """A suspected copy was read back, and is what was sealed."""
    partition, log_epoch = key
    call(
        connection,
        "clear_suspicion",
        topic=topic,
        partition=partition,
        log_epoch=log_epoch,
        target=target,
    )


def log_epoch_of(topic: str, row: tuple[Any, ...]) -> LogEpoch:
    """A log epoch from a row of `log_epochs_of` or of a function with its columns."""
    found = LogEpoch(topic, *row)
    return dataclasses.replace(found, targets=tuple(sorted(found.targets or ())))
