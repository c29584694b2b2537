"""What a relay does: how far it is behind, how fast it is, and why it stands."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ops.lateness import of_queue, queue_names
from penstock import subscriptions
from penstock.database import call
from penstock.errors import SubscriptionNotFound

if TYPE_CHECKING:
    from penstock.database import Connection
    from penstock.subscriptions.stream import Membership


@dataclass(frozen=True, slots=True)
class RelayStatus:
    """A relay in one partition.

    ``oldest_seconds`` is how long its first event that was not sent has waited.
    ``events_per_second`` is of the last minute. ``attempts`` and ``last_error`` are those of the
    block that is open. ``breaker`` is that of the process that holds the partition.
    """

    topic: str
    partition: int
    position: int
    lag_events: int
    oldest_seconds: float
    events_per_second: float
    attempts: int
    breaker: str
    left_out: int
    holder: str
    last_error: str
    failed_at: datetime | None


def relay_status(connection: Connection, subscription: str) -> list[RelayStatus]:
    """A row for each partition that the relay reads.  Of a queue it has only the lag."""
    found_lags = subscriptions.lag(connection, subscription)
    if subscription in queue_names(connection):
        found_lags = list(of_queue(connection, subscription, found_lags))
    lags = {(each.topic, each.partition): each for each in found_lags}
    if not lags:
        raise SubscriptionNotFound(
            f"there is no subscription {subscription!r}",
            hint=f"create it: penstock subscription create {subscription} --topic TOPIC",
        )
    found = []
    for row in call(connection, "relay_status", subscription=subscription):
        topic, partition, rate, attempts, error, failed_at, left_out, breaker, _ = row
        lag = lags.get((topic, partition))
        if lag is not None:
            found.append(
                RelayStatus(
                    topic,
                    partition,
                    lag.position,
                    lag.lag_events,
                    round(float(lag.lag_seconds), 3),
                    round(float(rate), 1),
                    int(attempts),
                    breaker or "closed",
                    int(left_out),
                    lag.holder or "",
                    error or "",
                    failed_at,
                )
            )
    return found


def note_breaker(connection: Connection, member: Membership, state: str, error: str) -> None:
    """Record whether the breaker of this process is closed, open or half-open."""
    call(
        connection,
        "note_breaker",
        subscription=member.subscription,
        consumer=member.consumer,
        state=state,
        error=error,
    )
