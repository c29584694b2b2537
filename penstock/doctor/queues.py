"""Queues that hand out nothing more, or whose oldest event waits for long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from penstock.doctor.findings import Finding, Limits, duration, more, shell, warning
from penstock.errors import NotMigrated, PermissionDenied, SubscriptionNotFound
from penstock.subscriptions import lag, list_subscriptions, queue

#: How many events are looked at for one that is handed out.
_LOOKS = (1, 30, 1_000)


def examine_queues(connection: Any, limits: Limits) -> list[Finding]:
    """At most one finding of each kind.  Nothing for a login that may not look into queues."""
    found: dict[str, list[Finding]] = {}
    try:
        names = [each.name for each in list_subscriptions(connection) if each.mode == "queue"]
        for name in names:
            with suppress(SubscriptionNotFound):  # it was deleted meanwhile
                for each in _of_queue(connection, name, limits):
                    found.setdefault(each.check, []).append(each)
    except (NotMigrated, PermissionDenied):
        return []
    return [
        warning(each[0].check, each[0].what + more(len(each) - 1), each[0].command)
        for each in found.values()
    ]


def _of_queue(connection: Any, name: str, limits: Limits) -> Iterator[Finding]:
    settings = queue.describe(connection, name)
    counted = queue.statistics(connection, name)
    behind = 0
    if settings.order == "key":
        behind = sum(each.behind for each in queue.pointers(connection, name))
    if counted.in_flight + behind >= settings.max_in_flight:
        keys = f" and {behind} wait behind their key" if behind else ""
        yield warning(
            "queue_full",
            f"queue {name!r} hands out nothing more: {counted.in_flight} events are in flight"
            f"{keys}, as many as its max_in_flight allows{_oldest(connection, name)}",
            shell("penstock", "queue", "peek", name)
            + "  # then let its workers finish or release, or raise max_in_flight",
        )
    seconds = max((float(each.lag_seconds) for each in lag(connection, name)), default=0.0)
    # The position of an empty queue may be behind.
    if counted.size > 0 and seconds > limits.queue_seconds:
        yield warning(
            "queue_old",
            f"the oldest event of queue {name!r} has waited for {duration(seconds)}: "
            f"{counted.ready} are ready, {counted.in_flight} in flight, {counted.delayed} delayed",
            shell("penstock", "queue", "describe", name) + "  # then: more workers, or faster ones",
        )


def _oldest(connection: Any, name: str) -> str:
    """The first event that is handed out.  Others may stand before it: those that wait for a retry.

    A look reads payloads, so the first one is short.
    """
    for most in _LOOKS:
        peeked = queue.peek(connection, name, most)
        for each in peeked:
            if each.state == "in_flight":
                event = each.event
                place = f"{event.topic} partition {event.partition} sequence {event.sequence}"
                until = f"{each.visible_at:%Y-%m-%d %H:%M:%S}"
                return f"; the first is {place}, hand-out {each.deliveries}, until {until}"
        if len(peeked) < most:
            break
    return ""
