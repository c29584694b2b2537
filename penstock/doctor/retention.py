"""What retention removed before it was read, and limits in bytes that it cannot keep."""

from __future__ import annotations

from typing import Any

from penstock.doctor.findings import Finding, more, shell, size, warning
from penstock.errors import PermissionDenied
from penstock.records import RetentionLimit
from penstock.subscriptions import Skip, skips
from penstock.topics.retention import retention_limits

#: A topic may be so much above its limit before the next run of clean: a part of the limit.
_ABOVE = 0.1


def examine_skips(connection: Any) -> list[Finding]:
    """At most one finding: the subscription that lost most and has not moved past the gap.

    Returns nothing for a login that may not call list_skips; the check of dead letters has already
    said so.
    """
    try:
        found = [each for each in skips(connection) if each.unread]
    except PermissionDenied:
        return []
    places: dict[tuple[str, str, int], int] = {}
    last: dict[tuple[str, str, int], Skip] = {}
    for each in found:
        place = (each.subscription, each.topic, each.partition)
        places[place] = places.get(place, 0) + each.last_sequence - each.first_sequence + 1
        last[place] = each
    if not places:
        return []
    place, events = max(places.items(), key=lambda each: each[1])
    subscription, topic, partition = place
    return [
        warning(
            "skips",
            f"retention removed {events} events of {topic} partition {partition} that "
            f"subscription {subscription!r} has not read{more(len(places) - 1)}: "
            f"{_why(last[place])}, and it gets an error",
            shell("penstock", "subscription", "seek", subscription, topic, "--to", "earliest")
            + f" --partition {partition} --yes  # goes on with what is left",
        )
    ]


def _why(skip: Skip) -> str:
    if skip.reason == "max_bytes":
        return (
            f"the topic held {size(skip.size_bytes or 0)}, more than its max_bytes of "
            f"{size(skip.limit_bytes or 0)} (a larger limit, a faster consumer, or one "
            "that reads the archive keeps it from missing more)"
        )
    return "its policy max_lag_seconds lets nothing wait for longer"


def examine_byte_limits(connection: Any) -> list[Finding]:
    """At most one finding: the topic that is furthest above its limit, and what keeps it there."""
    try:
        found = retention_limits(connection)
    except PermissionDenied:
        return []
    full = [
        each for each in found if each.above and (each.hold or each.above > _ABOVE * each.max_bytes)
    ]
    if not full:
        return []
    worst = max(full, key=lambda each: each.above)
    keeps = (
        f"in partition {worst.partition} nothing more goes, because: {worst.hold}"
        if worst.hold
        else "the next run of clean removes what is above it"
    )
    return [
        warning(
            "max_bytes",
            f"{worst.topic} holds {size(worst.size)}, more than its max_bytes of "
            f"{size(worst.max_bytes)}{more(len(full) - 1)}: {keeps}",
            _mends(worst),
        )
    ]


def _mends(limit: RetentionLimit) -> str:
    """The command that lets the oldest log epoch go."""
    hold = limit.hold or ""
    if not hold:
        return shell("penstock", "clean", limit.topic, "--yes")
    if hold.startswith("legal hold"):
        return (
            shell("penstock", "hold", "list", limit.topic)
            + f"  # then: penstock hold release {shell(limit.topic)} NAME --reason WHY"
        )
    if "archive target" in hold:
        return "penstock policy apply  # with archive: [target] for the topic in the policy file"
    return shell("penstock", "archive", limit.topic) + "  # makes the copies that are missing"
