"""What a relay does: how far it is behind, how fast it is, and why it stands."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ops.relay.pace import CLOSED, Breaker
from penstock import subscriptions
from penstock.database import call
from penstock.errors import SubscriptionNotFound

if TYPE_CHECKING:
    from penstock.database import Connection

log = logging.getLogger(__name__)


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
    """A row for each partition that the relay of a stream reads."""
    found = subscriptions.lag(connection, subscription)
    lags = {(each.topic, each.partition): each for each in found}
    if not lags:
        raise SubscriptionNotFound(
            f"there is no subscription {subscription!r}",
            hint=f"create it: penstock subscription create {subscription} --topic TOPIC",
        )
    rows = []
    for row in call(connection, "relay_status", subscription=subscription):
        topic, partition, rate, attempts, error, failed_at, left_out, breaker, _ = row
        lag = lags.get((topic, partition))
        if lag is not None:
            rows.append(
                RelayStatus(
                    topic,
                    partition,
                    lag.position,
                    lag.lag_events,
                    round(float(lag.lag_seconds), 3),
                    round(float(rate), 1),
                    int(attempts),
                    breaker or CLOSED,
                    int(left_out),
                    lag.holder or "",
                    error or "",
                    failed_at,
                )
            )
    return rows


class ToldBreaker:
    """Records in the database when the breaker of this process opens, and when it closes again."""

    def __init__(
        self, breaker: Breaker, sink: str, subscription: str, told: str | None = CLOSED
    ) -> None:
        self._breaker, self._sink, self._subscription = breaker, sink, subscription
        self._told = told

    def forget(self) -> None:
        """The database may say something else by now: tell it again."""
        self._told = None

    def tell(self, connection: Connection, error: str, consumer: str = "") -> None:
        """Record it if it has changed."""
        state = self._breaker.state
        if state == self._told:
            return
        call(
            connection,
            "note_breaker",
            subscription=self._subscription,
            consumer=consumer,
            state=state,
            error=error,
        )
        if state != CLOSED or self._told is not None:
            log.warning("the breaker of %s is %s", self._sink, state)
        self._told = state
