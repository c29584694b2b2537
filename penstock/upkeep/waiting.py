"""Figures of what waits: events for the sequencer, and dead letters for an operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import NotMigrated, PermissionDenied
from penstock.log import LogStatus
from penstock.subscriptions import dead_letters
from penstock.upkeep.metrics import Figures

#: More subscriptions than this share one figure, under this name.
MOST_SUBSCRIPTIONS = 1_000
THE_OTHERS = "(others)"


def figures(connection: Any, status: LogStatus, served: Sequence[str] | None) -> Figures:
    """Of the subscriptions that are served, or of all.  Figures not available are absent."""
    found: Figures = {}
    if status.last_pass_age_seconds is not None:
        found["sequencer_last_pass_seconds", ""] = float(status.last_pass_age_seconds)
    for number, each in enumerate(_counts(connection, served)):
        name = each.subscription if number < MOST_SUBSCRIPTIONS else THE_OTHERS
        before = found.get(("dead_letters", name), 0.0)
        assert isinstance(before, float)
        found["dead_letters", name] = before + each.left
    return found


def _counts(connection: Any, served: Sequence[str] | None) -> list[dead_letters.DeadLetterCounts]:
    """Empty where the schema, or the rights of the login, are of an older version."""
    try:
        if served is None:
            return dead_letters.counts(connection)
        return [each for name in served for each in dead_letters.counts(connection, name)]
    except (NotMigrated, PermissionDenied):
        return []
