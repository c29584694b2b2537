"""Removed subscriptions whose rows stay: nobody deletes them, or somebody has locked them."""

from __future__ import annotations

from typing import Any

from penstock import subscriptions
from penstock.doctor.findings import Finding, Limits, duration, more, shell, warning
from penstock.errors import PermissionDenied
from penstock.subscriptions.overview import MOST_ROWS_LEFT


def examine_removals(connection: Any, limits: Limits) -> list[Finding]:
    """At most one finding: the removal of which nothing was deleted for longest."""
    try:
        found = subscriptions.removals(connection)
    except PermissionDenied:
        return []
    standing = [each for each in found if each.idle_seconds > limits.removal_seconds]
    if not standing:
        return []
    worst = max(standing, key=lambda each: each.idle_seconds)
    many = f"{worst.rows_left}{' or more' if worst.rows_left >= MOST_ROWS_LEFT else ''}"
    return [
        warning(
            "removal",
            f"the removal of subscription {worst.subscription!r} stands still for "
            f"{duration(worst.idle_seconds)}, and {many} of its rows are left"
            f"{more(len(standing) - 1)}: nobody sweeps, or open transactions have locked them",
            shell("penstock", "sweep") + "  # then: penstock upkeep, which sweeps all the time",
        )
    ]
