"""Removed subscriptions whose rows stay: nobody deletes them, or somebody has locked them."""

from __future__ import annotations

from typing import Any

from penstock.database import call
from penstock.doctor.findings import Finding, Limits, duration, more, shell, warning
from penstock.errors import PermissionDenied

#: How many rows of a removal are counted at most.
_MOST_COUNTED = 1_000


def examine_removals(connection: Any, limits: Limits) -> list[Finding]:
    """At most one finding: the removal of which nothing was deleted for longest."""
    try:
        found = call(connection, "list_removals")
    except PermissionDenied:
        return []
    standing = [row for row in found if float(row[3]) > limits.removal_seconds]
    if not standing:
        return []
    subscription, _, left, seconds = max(standing, key=lambda row: float(row[3]))
    many = f"{left}{' or more' if left >= _MOST_COUNTED else ''}"
    return [
        warning(
            "removal",
            f"the removal of subscription {subscription!r} stands still for "
            f"{duration(float(seconds))}, and {many} of its rows are left"
            f"{more(len(standing) - 1)}: nobody sweeps, or open transactions have locked them",
            shell("penstock", "sweep") + "  # then: penstock upkeep, which sweeps all the time",
        )
    ]
