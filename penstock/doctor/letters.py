"""Events that nobody gets: dead letters."""

from __future__ import annotations

from typing import Any

from penstock.database import call
from penstock.doctor.findings import Finding, duration, shell, warning
from penstock.errors import PermissionDenied
from penstock.records import DeadLetterCounts

#: How many dead letters of a subscription are counted at most.
_MOST_COUNTED = 10_000


def examine_letters(connection: Any) -> list[Finding]:
    """At most one finding: the subscription with the most of them.

    An upgrade brings functions that the roles get only by ``penstock rights install``: a login that
    lives by its role is told so.
    """
    try:
        rows = call(connection, "dead_letter_counts", subscription=None)
    except PermissionDenied:
        what = (
            "the login may not count dead letters: its role has not the functions of this version"
        )
        return [warning("dead_letters", what, shell("penstock", "rights", "install"))]
    found = [each for each in (DeadLetterCounts(*row) for row in rows) if each.left]
    if not found:
        return []
    most = max(found, key=lambda each: each.left)
    others = f" ({len(found) - 1} more subscriptions like it)" if len(found) > 1 else ""
    many = f"{most.left}{' or more' if most.left >= _MOST_COUNTED else ''}"
    parked = f", {most.parked} of them parked" if most.parked else ""
    if most.not_forwarded:
        parked += f", {most.not_forwarded} of them not taken by the topic that it names"
    return [
        warning(
            "dead_letters",
            f"subscription {most.subscription!r} has {many} dead letters{parked}, the oldest for "
            f"{duration(most.oldest_seconds)}{others}: no consumer gets these events",
            shell("penstock", "dead-letter", "list", most.subscription)
            + "  # then: penstock dead-letter redrive, or drop",
        )
    ]
