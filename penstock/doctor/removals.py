"""Removed subscriptions whose rows stay: nobody deletes them, or somebody has locked them."""

from __future__ import annotations

from typing import Any

from penstock.doctor.findings import Finding, Limits, duration, more, shell, warning
from penstock.errors import PermissionDenied
from penstock.subscriptions import removals

#: How many rows of a removal are counted at most.
_MOST_COUNTED = 1_000


def examine_removals(connection: Any, limits: Limits) -> list[Finding]:
    """At most one finding: the removal of which nothing was deleted for longest."""
    try:
        found = removals(connection)
    except PermissionDenied:
        return []
    standing = [each for each in found if each.idle_seconds > limits.removal_seconds]
    if not standing:
        return []
    longest = max(standing, key=lambda each: each.idle_seconds)
    many = f"{longest.rows_left}{' or more' if longest.rows_left >= _MOST_COUNTED else ''}"
    return [
        warning(
            "removal",
            f"the removal of subscription {longest.subscription!r} stands still for "
            f"{duration(longest.idle_seconds)}, and {many} of its rows are left"
            f"{more(len(standing) - 1)}: nobody sweeps, or open transactions have locked them",
            shell("penstock", "sweep") + "  # then: penstock upkeep, which sweeps all the time",
        )
    ]
