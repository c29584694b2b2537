"""How late each subscription is: a stream by its position, a queue by what nobody has taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from penstock import log, subscriptions
from penstock.errors import (
    BelowLowSequence,
    NotMigrated,
    PermissionDenied,
    SubscriptionNotFound,
)
from penstock.subscriptions import Lag, queue
from penstock.subscriptions.relay_groups import by_quorum

#: The state of a partition of a queue, which nobody leases.
QUEUE = "QUEUE"
#: The holder of a queue's partitions while workers have some of its events.
WORKERS = "workers"


def lateness(connection: Any) -> list[Lag]:
    """The lag of every partition of every subscription; relays of several sinks by their quorum.

    A queue is not late because an event waits for its retry or is in somebody's hands, though its
    position stands at that event.  It is late when events wait that were never handed out, or when
    some can be handed out again and no worker has any.
    """
    lags = by_quorum(connection, subscriptions.lag(connection))
    queues = queue_names(connection)
    found = [each for each in lags if each.subscription not in queues]
    for name in sorted(queues):
        found += of_queue(connection, name, [each for each in lags if each.subscription == name])
    return found


def queue_names(connection: Any) -> set[str]:
    """The subscriptions that are queues."""
    return {
        each.name
        for each in subscriptions.list_subscriptions(connection)
        if each.mode == "queue"
    }  # fmt: skip


def of_queue(connection: Any, name: str, lags: Sequence[Lag]) -> Sequence[Lag]:
    """The same of a queue.  It is looked into only if something is unfinished.

    Its position counts for a login that may not look into it, and where retention has removed what
    it stands at.
    """
    if any(each.lag_events for each in lags):
        with suppress(NotMigrated, PermissionDenied, SubscriptionNotFound, BelowLowSequence):
            return list(_waiting(connection, name, lags))
    return [replace(each, state=QUEUE) for each in lags]


def _waiting(connection: Any, name: str, lags: Sequence[Lag]) -> Iterator[Lag]:
    counted = queue.statistics(connection, name)
    next_of = {
        (each.topic, each.partition): each.reader for each in queue.pointers(connection, name)
    }
    is_left = counted.ready > 0 and not counted.in_flight
    for each in lags:
        reader = next_of.get((each.topic, each.partition), each.position + 1)
        events = max(0, each.high_watermark - reader + 1)
        seconds = _age(connection, each, reader) if events else 0.0
        if is_left and each.lag_events and not events:
            events, seconds = each.lag_events, each.lag_seconds
        holder = WORKERS if counted.in_flight else None
        yield replace(each, lag_events=events, lag_seconds=seconds, holder=holder, state=QUEUE)


def _age(connection: Any, lag: Lag, sequence: int) -> float:
    """For how long an event has waited, by the clock of the database, as the lag does it."""
    first, later = (
        log.fetch(connection, lag.topic, lag.partition, each, 1)[0].sequenced_at
        for each in (lag.position + 1, sequence)
    )
    return max(0.0, lag.lag_seconds - (later - first).total_seconds())
