"""Publishing: an event exists if and only if the caller's transaction commits.

What can be refused is refused before the INSERT, so that the caller's transaction is not aborted:
sizes and names without the database, unknown topics and partitions by a look-up that is remembered.
The database checks everything again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.database.steps import run
from penstock.publishing import rows as outgoing
from penstock.publishing.columns import packed
from penstock.publishing.known_topics import known_topics
from penstock.publishing.steps import batch_steps, publish_steps, rows_of
from penstock.records import Message, Published

if TYPE_CHECKING:
    pass


def publish(
    connection: Any,
    topic: str,
    payload: bytes | bytearray | memoryview,
    *,
    key: str | None = None,
    type: str = "",
    content_type: str = "application/octet-stream",
    headers: Mapping[str, Any] | None = None,
    event_id: uuid.UUID | None = None,
    partition: int | None = None,
    not_before: datetime | None = None,
    dedup_key: str | None = None,
    exchange: str | None = None,
    routing_key: str | None = None,
    max_attempts: int | None = None,
    strict: bool = False,
) -> uuid.UUID:
    """Publish one event in the caller's transaction; answers its id.

    Of a duplicate, an event whose ``dedup_key`` was used within the window, it answers the id of
    the earlier event (`publish_once` tells which it was).  ``strict`` gives the events of one key
    the order of their commits: a transaction waits for the one before it to end.
    """
    message = Message(
        topic,
        payload,
        key=key,
        type=type,
        content_type=content_type,
        headers=headers,
        event_id=event_id,
        partition=partition,
        not_before=not_before,
        dedup_key=dedup_key,
        exchange=exchange,
        routing_key=routing_key,
        max_attempts=max_attempts,
    )
    return publish_once(connection, message, strict=strict).event_id


def publish_once(connection: Any, message: Message, *, strict: bool = False) -> Published:
    """Publish one event; answers its id and whether it was a duplicate of an earlier one."""
    row = outgoing.row(message)
    return run(connection, publish_steps(known_topics(connection), row, strict=strict))


def publish_batch(
    connection: Any, messages: Iterable[Message], *, strict: bool = False
) -> list[uuid.UUID]:
    """Publish many events in one round trip, in order; answers their ids, as `publish` does.

    A batch that is invalid in one event publishes none, and the error names the event's index.
    """
    rows = rows_of(messages)
    if not rows:
        return []
    steps = batch_steps(partial(packed, connection), known_topics(connection), rows, strict=strict)
    return run(connection, steps)
