"""What has become of the events of a queue's relay."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from penstock.database import call
from penstock.records import as_time

if TYPE_CHECKING:
    from penstock.database import Connection


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
