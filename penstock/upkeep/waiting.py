"""Figures of what waits, for the sequencer or an operator, and of what an operator must watch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from penstock import subscriptions
from penstock.database import call
from penstock.driver_errors import errno_of
from penstock.errors import NotMigrated, PermissionDenied, SubscriptionNotFound
from penstock.log import LogStatus
from penstock.subscriptions import dead_letters, queue
from penstock.upkeep.metrics import MOST_SUBSCRIPTIONS, Figures, labels_of

#: What MySQL and MariaDB say to a login without the right PROCESS.
_NO_PROCESS_RIGHT = 1227


def figures(connection: Any, status: LogStatus, served: Sequence[str] | None) -> Figures:
    """Of the subscriptions that are served, or of all.  Figures not available are absent."""
    found: Figures = {}
    if status.last_pass_age_seconds is not None:
        found["sequencer_last_pass_seconds", ""] = float(status.last_pass_age_seconds)
    if served is None:
        found |= _of_the_server(connection)
    found |= _of_queues(connection, served)
    counts = _counts(connection, served)
    labels = labels_of(each.subscription for each in counts)
    for each in counts:
        label = labels[each.subscription]
        for name, number in (
            ("dead_letters", each.left),
            ("dead_letters_not_forwarded", each.not_forwarded),
        ):
            found[name, label] = float(number) + _plain(found.get((name, label)))
    return found


def _plain(figure: float | list[float] | None) -> float:
    """The figure so far of what has no buckets."""
    return figure if isinstance(figure, float) else 0.0


def _of_queues(connection: Any, served: Sequence[str] | None) -> Figures:
    """How many events each queue has, by state, and the age of its oldest unfinished one."""
    found: Figures = {}
    with suppress(NotMigrated, PermissionDenied):
        names = [
            each.name
            for each in subscriptions.list_subscriptions(connection)
            if each.mode == "queue" and (served is None or each.name in served)
        ]
        for name in names[:MOST_SUBSCRIPTIONS]:
            with suppress(SubscriptionNotFound):  # it was deleted meanwhile
                found |= _of_queue(connection, name)
    return found


def _of_queue(connection: Any, name: str) -> Figures:
    counted = queue.statistics(connection, name)
    # The position of an empty queue may be behind.
    lags = subscriptions.lag(connection, name) if counted.size else []
    ages = [each.lag_seconds for each in lags]
    return {
        ("queue_ready", name): float(counted.ready),
        ("queue_in_flight", name): float(counted.in_flight),
        ("queue_delayed", name): float(counted.delayed),
        ("queue_oldest_seconds", name): float(max(ages, default=0.0)),
    }


def _of_the_server(connection: Any) -> Figures:
    """What holds old rows, and for how long storage is ready.  Empty without the right to look."""
    found: Figures = {}
    with suppress(NotMigrated, PermissionDenied):
        ready = [days for _, _, _, days, _ in call(connection, "slices_ready")]
        known = (float(days) for days in ready if days is not None)
        found["storage_days", ""] = min(known, default=math.inf)
        ages = [age for _, _, _, _, _, age, _ in _snapshots(connection)]
        found["horizon_age_seconds", ""] = float(max((age or 0 for age in ages), default=0))
    return found


def _snapshots(connection: Any) -> list[tuple[Any, ...]]:
    try:
        return call(connection, "doctor_snapshots")
    except Exception as error:
        if errno_of(error) == _NO_PROCESS_RIGHT:
            raise PermissionDenied("the login may not look at open transactions") from error
        raise


def _counts(connection: Any, served: Sequence[str] | None) -> list[dead_letters.DeadLetterCounts]:
    """Empty where the schema, or the rights of the login, are of an older version."""
    try:
        if served is None:
            return dead_letters.counts(connection)
        return [each for name in served for each in dead_letters.counts(connection, name)]
    except (NotMigrated, PermissionDenied):
        return []
