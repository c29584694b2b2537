"""How events are published, whatever kind of connection carries the statements."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from penstock.database.steps import Steps, asked
from penstock.errors import InvalidArgument, PenstockError
from penstock.publishing import rows as outgoing
from penstock.publishing.blocks import block_of
from penstock.publishing.columns import Column
from penstock.publishing.known_topics import KnownTopics
from penstock.publishing.rows import Row
from penstock.records import Message, Published, as_uuid


def rows_of(messages: Iterable[Message]) -> list[Row]:
    """The events of a batch, checked."""
    return list(outgoing.rows(messages))


def publish_steps(known: KnownTopics, row: Row, *, strict: bool) -> Steps[Published]:
    """How one event is published."""
    placed = known.placed(row) or (yield from known.asked_for(row))
    binds = placed._asdict()
    binds["event_id"] = str(row.event_id)
    with known.forgotten_on_refusal([row.topic]):
        rows = yield from asked("publish", **binds, strict=_switch(strict))
    event_id, duplicate = rows[0]
    return Published(as_uuid(event_id) if duplicate else row.event_id, bool(duplicate))


def batch_steps(
    pack: Callable[..., dict[str, Any]],
    known: KnownTopics,
    messages: Iterable[Message],
    *,
    strict: bool,
    by_columns: bool = False,
    pack_plain: Callable[[Sequence[Row]], dict[str, Any] | None] | None = None,
) -> Steps[list[uuid.UUID]]:
    """How many events are published; ``pack`` writes the columns as the driver takes them.

    There are two short ways for plain events, and a dialect has one of them or none:
    ``by_columns`` for those of one topic, or ``pack_plain``.  A short way publishes all or nothing,
    and leaves to ``publish_batch`` what it does not take and what is wrong.
    """
    given = messages if isinstance(messages, list | tuple) else _drawn(messages)
    if not given:
        return []
    if by_columns and strict is False:
        block = block_of(given, known)
        if block is not None:
            event_ids = block.ids()
            if (yield from _columns_steps(known, block.topic, block.binds(pack, event_ids))):
                return event_ids
    return (yield from _rows_steps(pack, known, rows_of(given), strict, pack_plain))


def _drawn(messages: Iterable[Message]) -> Sequence[Message]:
    if not isinstance(messages, Iterable):
        raise InvalidArgument(f"messages is a {type(messages).__name__}", hint="give a list")
    return list(messages)


def _columns_steps(known: KnownTopics, topic: str, binds: dict[str, Any]) -> Steps[bool]:
    """How a block is published.  False when its topic needs publish_batch."""
    with known.forgotten_on_refusal([topic]):
        ((published,),) = yield from asked("publish_columns", **binds)
    if published is None:
        known.not_by_columns(topic)
    return published is not None


def _rows_steps(
    pack: Callable[..., dict[str, Any]],
    known: KnownTopics,
    rows: Sequence[Row],
    strict: bool,
    pack_plain: Callable[[Sequence[Row]], dict[str, Any] | None] | None,
) -> Steps[list[uuid.UUID]]:
    placed = []
    for place, row in enumerate(rows):
        try:
            placed.append(known.placed(row) or (yield from known.asked_for(row)))
        except PenstockError as error:
            raise outgoing.at(place, error) from None
    plain = pack_plain(placed) if pack_plain is not None and not _switch(strict) else None
    with known.forgotten_on_refusal({row.topic for row in rows}):
        if plain is not None:
            ((published,),) = yield from asked("publish_packed", **plain)
            if published is not None:
                return [row.event_id for row in rows]
        binds = pack(**columns_of(placed))
        answer = yield from asked("publish_batch", **binds, strict=_switch(strict))
    event_ids = [row.event_id for row in rows]
    _, duplicates, original_ids = answer[0]
    for place, original_id in zip(duplicates, original_ids, strict=True):
        event_ids[place] = as_uuid(original_id)
    return event_ids


def columns_of(rows: Sequence[Row]) -> dict[str, Column]:
    """The events of a batch column by column, named as the arguments of publish_batch."""
    columns = list(zip(*rows, strict=True))
    topics, payloads, keys, types, content_types, headers, event_ids, partitions = columns[:8]
    not_befores, dedup_keys = columns[8:]
    return {
        "topics": ("text", topics),
        "payloads": ("bytea", payloads),
        "keys": ("text", _unless_empty(keys)),
        "types": ("text", types),
        "content_types": ("text", content_types),
        "headers": ("text", _unless_empty(headers)),
        "event_ids": ("uuid", event_ids),
        "partitions": ("int4", _unless_empty(partitions)),
        "not_befores": ("timestamptz", _unless_empty(not_befores)),
        "dedup_keys": ("text", _unless_empty(dedup_keys)),
    }


def _unless_empty(values: Sequence[Any]) -> Sequence[Any] | None:
    return values if any(value is not None for value in values) else None


def _switch(strict: Any) -> bool:
    if isinstance(strict, bool):
        return strict
    raise InvalidArgument(f"strict is a {type(strict).__name__}", hint="give True or False")
