"""Queues that hand out nothing more, or whose oldest event waits for long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from penstock.database import call
from penstock.doctor.findings import Finding, Limits, duration, more, shell, warning
from penstock.errors import NotMigrated, PermissionDenied, SubscriptionNotFound

#: The columns of `peek` that are named here.
_STATE, _UNTIL, _DELIVERIES, _, _TOPIC, _PARTITION, _SEQUENCE = range(7)
#: How many events are looked at for one that is handed out.
_LOOKS = (1, 30, 1_000)


def examine_queues(connection: Any, limits: Limits) -> list[Finding]:
    """At most one finding of each kind.  Nothing for a login that may not look into queues."""
    found: dict[str, list[Finding]] = {}
    try:
        names = [row[0] for row in call(connection, "list_subscriptions") if row[1] == "queue"]
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
    settings = call(connection, "describe_queue", subscription=name)[0]
    most, order = int(settings[3]), settings[7]
    counted = map(int, call(connection, "queue_statistics", subscription=name)[0][:5])
    size, ready, in_flight, delayed, _ = counted
    behind = 0
    if order == "key":
        behind = sum(int(row[5]) for row in call(connection, "queue_pointers", subscription=name))
    if in_flight + behind >= most:
        keys = f" and {behind} wait behind their key" if behind else ""
        yield warning(
            "queue_full",
            f"queue {name!r} hands out nothing more: {in_flight} events are in flight{keys}, as "
            f"many as its max_in_flight allows{_oldest(connection, name)}",
            shell("penstock", "queue", "peek", name)
            + "  # then let its workers finish or release, or raise max_in_flight",
        )
    lags = call(connection, "subscription_lag", subscription=name)
    seconds = max((float(row[6]) for row in lags), default=0.0)
    if size > 0 and seconds > limits.queue_seconds:  # the position of an empty one may be behind
        yield warning(
            "queue_old",
            f"the oldest event of queue {name!r} has waited for {duration(seconds)}: {ready} are "
            f"ready, {in_flight} in flight, {delayed} delayed",
            shell("penstock", "queue", "describe", name) + "  # then: more workers, or faster ones",
        )


def _oldest(connection: Any, name: str) -> str:
    """The first event that is handed out.  Others may stand before it: those that wait for a retry.

    A look reads payloads, so the first one is short.
    """
    for most in _LOOKS:
        rows = call(connection, "peek", subscription=name, max_events=most)
        for row in rows:
            if row[_STATE] == "in_flight":
                place = f"{row[_TOPIC]} partition {row[_PARTITION]} sequence {row[_SEQUENCE]}"
                until = f"{row[_UNTIL]:%Y-%m-%d %H:%M:%S}"
                return f"; the first is {place}, hand-out {row[_DELIVERIES]}, until {until}"
        if len(rows) < most:
            break
    return ""
