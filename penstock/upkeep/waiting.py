"""Figures of what waits: events for the sequencer, and dead letters for an operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import NotMigrated, PermissionDenied
from penstock.log import LogStatus
from penstock.subscriptions import dead_letters
from penstock.upkeep.metrics import Figures, labels_of


def figures(connection: Any, status: LogStatus, served: Sequence[str] | None) -> Figures:
    """Of the subscriptions that are served, or of all.  Figures not available are absent."""
    found: Figures = {}
    if status.last_pass_age_seconds is not None:
        found["sequencer_last_pass_seconds", ""] = float(status.last_pass_age_seconds)
    counts = _counts(connection, served)
    labels = labels_of(each.subscription for each in counts)
    left = dict.fromkeys(labels.values(), 0)
    for each in counts:
        left[labels[each.subscription]] += each.left
    return found | {("dead_letters", label): float(number) for label, number in left.items()}


def _counts(connection: Any, served: Sequence[str] | None) -> list[dead_letters.DeadLetterCounts]:
    """Empty where the schema, or the rights of the login, are of an older version."""
    try:
        if served is None:
            return dead_letters.counts(connection)
        return [each for name in served for each in dead_letters.counts(connection, name)]
    except (NotMigrated, PermissionDenied):
        return []
