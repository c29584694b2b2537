"""Backfill requests: asking for a window to be brought again, and the calls of who works it off.

A request is a row of the database with its ranges, each a log epoch.  A runner claims a request and
gets an attempt.  Each later call names that attempt, and the database refuses the calls of an older
one (StaleAttempt), so a runner that was paused or cut off changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from penstock.database import call
from penstock.errors import ConfigurationError
from penstock.log.bookmarks import bookmark_positions
from penstock.topics.names import partition_ranges

#: What can be asked for.
COPY, REHYDRATE, RELAY = KINDS = ("copy", "rehydrate", "relay")
#: What becomes of a request.
STATES = ("waiting", "running", "done", "failed", "cancelled")
#: A runner that is silent for so long has lost its request.
LEASE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Window:
    """What a request is about; both sequences belong to it, ``to_time`` does not.

    The times choose log epochs by the time at which they were sealed.
    """

    partition: int | None = None
    from_sequence: int | None = None
    to_sequence: int | None = None
    from_time: datetime | None = None
    to_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Requested:
    """A new request, and how much it is about."""

    request: int
    units: int
    total_events: int


@dataclass(frozen=True, slots=True)
class BackfillClaim:
    """A request that this runner holds; ``attempt`` proves it."""

    request: int
    kind: str
    topic: str
    known_as: str
    target: str
    attempt: int
    max_attempts: int
    units: int
    total_events: int
    done_units: int
    done_events: int


@dataclass(frozen=True, slots=True)
class BackfillUnit:
    """A range that is not done: a log epoch, or a part of what is not sealed (no ``log_epoch``).

    ``checksum`` is the seal's, None when the range is only a part of its log epoch.  ``is_hot``
    says that the database still has the events.
    """

    partition: int
    log_epoch: int | None
    first_sequence: int
    last_sequence: int
    checksum: str | None
    is_hot: bool

    @property
    def event_count(self) -> int:
        """How many events it holds: sequences have no gaps."""
        return self.last_sequence - self.first_sequence + 1


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """A request as the list shows it."""

    request: int
    kind: str
    topic: str
    target: str
    partition: int | None
    from_sequence: int | None
    to_sequence: int | None
    from_time: datetime | None
    to_time: datetime | None
    dry_run: bool
    priority: int
    state: str
    run: str | None
    units: int
    total_events: int
    done_units: int
    done_events: int
    attempts: int
    max_attempts: int
    not_before: datetime
    error: str
    requested_by: str
    requested_at: datetime
    changed_at: datetime


@dataclass(frozen=True, slots=True)
class BackfillRange:
    """A range of a request, and the attempt that has done it."""

    partition: int
    log_epoch: int | None
    first_sequence: int
    last_sequence: int
    done_by: int | None
    done_at: datetime | None


def request_backfill(
    connection: Any,
    topic: str,
    kind: str,
    target: str = "",
    window: Window | None = None,
    *,
    dry_run: bool = False,
    priority: int = 0,
    max_attempts: int = 5,
) -> Requested:
    """Ask for a window to be brought again; a dry run only counts it.

    Raises InvalidArgument or InvalidPartition if the window does not exist, before anything is
    written.
    """
    window = window or Window()
    ((request, units, events),) = call(
        connection,
        "request_backfill",
        topic=topic,
        kind=kind,
        target=target,
        partition=window.partition,
        from_sequence=window.from_sequence,
        to_sequence=window.to_sequence,
        from_time=window.from_time,
        to_time=window.to_time,
        dry_run=dry_run,
        priority=priority,
        max_attempts=max_attempts,
    )
    return Requested(request, int(units), int(events))


def windows_between(
    connection: Any, topic: str, window: Window, after: str | None, until: str | None
) -> list[Window]:
    """The windows between two bookmarks, one for each partition that has events there.

    Without the first one a window has the beginning of ``window``, without the second one its end.
    """
    begins = {} if after is None else bookmark_positions(connection, topic, after)
    ends = {} if until is None else bookmark_positions(connection, topic, until)
    found = []
    for each in partition_ranges(connection, topic):
        if window.partition not in (None, each.partition):
            continue
        first = window.from_sequence if after is None else begins[each.partition] + 1
        last = window.to_sequence if until is None else ends[each.partition]
        if (first or 1) <= (each.high_watermark if last is None else last):
            found.append(
                replace(window, partition=each.partition, from_sequence=first, to_sequence=last)
            )
    return found


def claim_backfill(
    connection: Any,
    run: str,
    *,
    request: int | None = None,
    kinds: Sequence[str] | None = None,
    lease_seconds: float = LEASE_SECONDS,
) -> BackfillClaim | None:
    """Take the next request that is due, or a given one; None when there is none."""
    rows = call(
        connection,
        "claim_backfill",
        run=run,
        lease_seconds=lease_seconds,
        request=request,
        kinds=None if kinds is None else list(kinds),
    )
    return BackfillClaim(*rows[0]) if rows else None


def extend(connection: Any, claim: BackfillClaim, lease_seconds: float = LEASE_SECONDS) -> None:
    """Say that this runner is alive; StaleAttempt when the request is no longer its own."""
    call(connection, "extend_backfill", **_fence(claim), lease_seconds=lease_seconds)


def open_units(
    connection: Any, claim: BackfillClaim, after: BackfillUnit | None, max_units: int
) -> list[BackfillUnit]:
    """The next ranges that are not done, after one that was seen."""
    rows = call(
        connection,
        "backfill_work",
        **_fence(claim),
        max_units=max_units,
        after_partition=-1 if after is None else after.partition,
        after_sequence=0 if after is None else after.first_sequence,
    )
    return [
        BackfillUnit(partition, log_epoch, first, last, checksum, bool(is_hot))
        for partition, log_epoch, first, last, checksum, is_hot in rows
    ]


def progress(
    connection: Any, claim: BackfillClaim, unit: BackfillUnit, lease_seconds: float = LEASE_SECONDS
) -> int:
    """Record that a range is done, in the caller's transaction.  Returns how many events are."""
    ((events,),) = call(
        connection,
        "progress_backfill",
        **_fence(claim),
        partition=unit.partition,
        first_sequence=unit.first_sequence,
        lease_seconds=lease_seconds,
    )
    return int(events)


def finish(connection: Any, claim: BackfillClaim) -> None:
    """End a request of which every range is done."""
    call(connection, "finish_backfill", **_fence(claim))


def fail(connection: Any, claim: BackfillClaim, error: str, base_seconds: float = 30.0) -> str:
    """End an attempt that did not do everything.  Returns "waiting", or "failed" after the last."""
    ((state,),) = call(
        connection, "fail_backfill", **_fence(claim), error=error, base_seconds=base_seconds
    )
    return str(state)


def give_back(connection: Any, request: BackfillRequest, error: str) -> str:
    """End the attempt of a runner that is known to be gone.

    Returns what :func:`fail` does; StaleAttempt when the request was claimed again meanwhile.
    """
    ((state,),) = call(
        connection,
        "fail_backfill",
        request=request.request,
        attempt=request.attempts,
        error=error,
        base_seconds=1.0,
    )
    return str(state)


def cancel(connection: Any, request: int) -> bool:
    """End a request that waits or runs.  Returns whether there was anything to cancel."""
    ((was_open,),) = call(connection, "cancel_backfill", request=request)
    return bool(was_open)


def list_backfills(
    connection: Any,
    topic: str | None = None,
    *,
    state: str | None = None,
    request: int | None = None,
    max_rows: int = 100,
) -> list[BackfillRequest]:
    """The newest requests of the topics that the login may read."""
    rows = call(
        connection, "list_backfills", topic=topic, state=state, request=request, max_rows=max_rows
    )
    return [BackfillRequest(*row) for row in rows]


def request_of(connection: Any, number: int) -> BackfillRequest:
    """One request by its number; ConfigurationError when the login sees none."""
    found = list_backfills(connection, request=number)
    if not found:
        raise ConfigurationError(
            f"there is no backfill request {number}", hint="penstock backfill list names them"
        )
    return found[0]


def ranges(connection: Any, request: int, *, max_rows: int = 1000) -> list[BackfillRange]:
    """The first ranges of a request, and which attempt has done each."""
    rows = call(
        connection,
        "backfill_ranges",
        request=request,
        max_rows=max_rows,
        after_partition=-1,
        after_sequence=0,
    )
    return [BackfillRange(*row) for row in rows]


def _fence(claim: BackfillClaim) -> dict[str, int]:
    return {"request": claim.request, "attempt": claim.attempt}
