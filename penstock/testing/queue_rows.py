"""The rows of queues in memory."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from datetime import datetime

from penstock.database.dialect import Row
from penstock.errors import WrongMode
from penstock.subscriptions.queue import QueueSettings
from penstock.testing.dead_letters import LetterRow, put_letter
from penstock.testing.statements import refused
from penstock.testing.store import MemoryTransaction
from penstock.testing.tables import HISTORY, EventRow, Place, SubscriptionRow, find_subscription
from penstock.topics.partition_ids import number_of

#: From so many deliveries without an end on, an event comes alone.
SUSPECT = 2


@dataclass(frozen=True, slots=True)
class Dealt:
    """Table queue_events, by subscription, partition and sequence: an event of a queue.

    ``copied``: it failed, was redriven or has a body of its own, so the position does not wait for
    it.  ``begun``: it was handed out since it came.  ``done`` rows stay until the position passes.
    """

    place: Place
    sequence: int
    event: EventRow
    sequenced_at: datetime
    claim: int = 0
    token: uuid.UUID | None = None
    deadline: datetime | None = None
    deliveries: int = 0
    failures: int = 0
    reason: str = ""
    body: bytes | None = None
    due_at: datetime | None = None
    copied: bool = False
    begun: bool = False
    done: bool = False

    @property
    def key(self) -> tuple[int, int, int]:
        """Its key in the table."""
        return (*self.place, self.sequence)

    @property
    def is_in_window(self) -> bool:
        """Whether it counts as in flight for the limit: begun, and not waiting for a retry."""
        return self.begun and not self.done and self.due_at is None

    @property
    def is_suspect(self) -> bool:
        """Whether it may be what ends its workers."""
        return self.deliveries >= SUSPECT

    def is_hidden(self, now: datetime) -> bool:
        """Whether somebody has it."""
        return self.token is not None and self.deadline is not None and self.deadline > now

    def is_free(self, now: datetime) -> bool:
        """Whether it can be handed out."""
        is_due = self.due_at is None or self.due_at <= now
        return not self.done and is_due and not self.is_hidden(now)


def find_queue(tx: MemoryTransaction, name: str) -> tuple[SubscriptionRow, QueueSettings]:
    """A subscription in queue mode.  Raises SubscriptionNotFound, and WrongMode for a stream."""
    owner = find_subscription(tx, name)
    settings: QueueSettings | None = tx.get("queues", owner.subscription_id)
    if settings is None:
        raise refused(WrongMode, f'subscription "{name}" is a stream')
    return owner, settings


def unfinished_rows(
    tx: MemoryTransaction, owner: SubscriptionRow
) -> dict[tuple[int, int, int], Dealt]:
    """The rows of a queue, by their keys."""
    rows: dict[tuple[int, int, int], Dealt] = tx.rows("queue_events")
    return {key: row for key, row in rows.items() if key[0] == owner.subscription_id}


def put_dealt(tx: MemoryTransaction, row: Dealt) -> None:
    """Write a row."""
    tx.put("queue_events", row.key, row)


def bury(tx: MemoryTransaction, row: Dealt, reason: str) -> None:
    """Make an event a dead letter."""
    letters = tx.rows("dead_letters").values()
    known = [
        each.letter_id
        for each in letters
        if (each.place, each.sequence) == (row.place, row.sequence)
    ]
    payload = row.event.payload if row.body is None else row.body
    put_letter(
        tx,
        LetterRow(
            known[0] if known else tx.store.next("dead_letters"),
            row.place,
            row.sequence,
            replace(row.event, payload=payload),
            max(row.deliveries, 1),
            reason,
            parked=False,
            died_at=tx.store.clock.now(),
        ),
    )
    put_dealt(tx, replace(row, done=True, token=None))


def event_row(row: Dealt, topic: str) -> Row:
    """The event in the columns of receive and peek."""
    event = row.event
    return (
        topic, number_of(row.place[1]), row.sequence, event.event_id, event.key, event.type,
        event.content_type, event.headers, event.payload if row.body is None else row.body,
        event.created_at, row.sequenced_at, HISTORY,
    )  # fmt: skip
