"""Where the relay of a queue stands, and what has become of its events."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ops.relay.pace import CLOSED
from penstock import subscriptions
from penstock.database import call
from penstock.records import as_time

if TYPE_CHECKING:
    from penstock.database import Connection


@dataclass(frozen=True, slots=True)
class QueueRelayStatus:
    """The relay of a queue.

    ``waiting`` can be sent now, ``delayed`` waits for its next attempt. ``oldest_seconds`` is how
    long the first event of the log that is not finished has waited; delayed ones do not count.
    ``last_error`` is the newest failure, at ``failed_at``: of an attempt, of an event that died, or
    of the whole sink, which has taken nothing since ``away_since``.
    """

    waiting: int
    in_flight: int
    delayed: int
    dead_letters: int
    oldest_seconds: float
    breaker: str
    away_since: datetime | None
    last_error: str
    failed_at: datetime | None


@dataclass(frozen=True, slots=True)
class RelayedEvent:
    """One event.  ``state``: pending, in_flight, sent or failed.

    ``attempts`` counts its hand-outs; None where that is not kept any more. ``next_attempt_at`` is
    when it is due again, or when others may get it that is in flight.
    """

    sequence: int
    event_id: str
    state: str
    attempts: int | None
    next_attempt_at: datetime | None
    last_error: str


def queue_relay_status(connection: Connection, subscription: str) -> QueueRelayStatus:
    """Where the relay of a queue stands."""
    (row,) = call(connection, "queue_relay_status", subscription=subscription)
    ready, in_flight, delayed, dead, error, failed_at, breaker, away_since = row
    lags = subscriptions.lag(connection, subscription)
    return QueueRelayStatus(
        int(ready),
        int(in_flight),
        int(delayed),
        int(dead),
        round(max((float(each.lag_seconds) for each in lags), default=0.0), 3),
        breaker or CLOSED,
        None if away_since is None else as_time(away_since),
        error or "",
        None if failed_at is None else as_time(failed_at),
    )


def relayed_events(
    connection: Connection,
    subscription: str,
    topic: str,
    partition: int,
    *,
    from_sequence: int = 1,
    max_events: int = 100,
) -> list[RelayedEvent]:
    """The events of a partition from a sequence on, as far as the log has them."""
    rows = call(
        connection,
        "relayed_events",
        subscription=subscription,
        topic=topic,
        partition=partition,
        from_sequence=from_sequence,
        max_events=max_events,
    )
    return [
        RelayedEvent(
            int(sequence),
            str(event_id),
            str(state),
            None if attempts is None else int(attempts),
            None if due is None else as_time(due),
            str(error),
        )
        for sequence, event_id, state, attempts, error, due in rows
    ]
