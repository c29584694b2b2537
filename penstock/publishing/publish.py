"""Publishing: an event exists if and only if the caller's transaction commits.

What can be refused is refused before the INSERT, so that the caller's transaction is not aborted.
Sizes and names are checked without the database.  Topics and partitions are checked by a look-up
whose result is remembered.  The database checks everything again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from penstock.database import dialects
from penstock.database.steps import run
from penstock.publishing import packing, rows as outgoing
from penstock.publishing.columns import packed
from penstock.publishing.known_topics import known_topics
from penstock.publishing.steps import batch_steps, publish_steps
from penstock.records import Message, Published


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
    checked: bool = False,
) -> uuid.UUID:
    """Publish one event in the caller's transaction.  Returns its id.

    An event whose ``dedup_key`` was used within the window is a duplicate: then this returns the id
    of the earlier event (`publish_once` also tells whether it was a duplicate).  ``strict`` gives
    the events of one key the order of their commits: a transaction waits until the one before it
    has ended.  ``checked`` asks for the schema of topic and type first: SchemaMismatch, before
    anything is written, when the payload does not fit.
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
    return publish_once(connection, message, strict=strict, checked=checked).event_id


def publish_once(
    connection: Any, message: Message, *, strict: bool = False, checked: bool = False
) -> Published:
    """Publish one event.  Returns its id and whether it was a duplicate of an earlier one."""
    if checked:
        _require_fitting(connection, [message])
    row = outgoing.row(message)
    return run(connection, publish_steps(known_topics(connection), row, strict=strict))


def publish_batch(
    connection: Any, messages: Iterable[Message], *, strict: bool = False, checked: bool = False
) -> list[uuid.UUID]:
    """Publish many events in one round trip, in order.  Returns their ids, as `publish` does.

    When one event is invalid, none is published, and the error names the event's index.
    """
    if checked:
        messages = list(messages)
        _require_fitting(connection, messages)
    steps = batch_steps(
        partial(packed, connection),
        known_topics(connection),
        messages,
        strict=strict,
        by_columns=dialects.of_connection(connection).name == "postgres",
        pack_plain=packing.packer(connection),
    )
    return run(connection, steps)


def _require_fitting(connection: Any, messages: Sequence[Message]) -> None:
    # Imported here: only who asks for it needs the libraries of the schemas.
    from penstock.publishing.schemas.registry import require_fitting

    require_fitting(connection, messages)
