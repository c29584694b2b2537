"""A batch of plain events of one topic, checked column by column.

To check each event by itself takes most of the time of a batch.  Here each column is checked at
once, and what all events share is checked and sent once.  A batch that is not plain, or in which
anything is wrong, is left to the way that looks at each event: that way names the culprit.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from penstock.errors import PenstockError
from penstock.publishing import tracing, validation
from penstock.publishing.columns import Column
from penstock.publishing.event_ids import uuid7s
from penstock.publishing.known_topics import KnownTopics
from penstock.records import Message
from penstock.topics.validation import MAX_CONTENT_TYPE, MAX_KEY, MAX_TYPE

_COLUMNS = attrgetter("topic", "payload", "key", "type", "content_type", "headers", "event_id")
_OPTIONS = attrgetter(
    "partition", "not_before", "dedup_key", "exchange", "routing_key", "max_attempts"
)
_MESSAGE, _BYTES, _TEXT = {Message}, {bytes}, {str}
_NO_OPTIONS = {(None,) * 6}
_IDS = {uuid.UUID, type(None)}


class Block(NamedTuple):
    """Plain events of one topic.  ``types`` is None when all have ``type``; so with the others."""

    topic: str
    type: str
    content_type: str
    payloads: Sequence[bytes]
    keys: Sequence[str | None] | None
    types: Sequence[str] | None
    content_types: Sequence[str] | None
    headers: Sequence[str | None] | None
    #: The ids that the events brought; None when all are to get new ones.
    event_ids: Sequence[uuid.UUID | None] | None

    def ids(self) -> list[uuid.UUID]:
        """An id for each event: its own or a new one."""
        new = uuid7s(len(self.payloads))
        if self.event_ids is None:
            return new
        return [given or made for given, made in zip(self.event_ids, new, strict=True)]

    def binds(
        self, pack: Callable[..., dict[str, Any]], event_ids: Sequence[Any]
    ) -> dict[str, Any]:
        """The binds of publish_columns; ``pack`` writes the columns as the driver takes them."""
        columns: dict[str, Column] = {
            "payloads": ("bytea", self.payloads),
            "keys": ("text", self.keys),
            "types": ("text", self.types),
            "content_types": ("text", self.content_types),
            "headers": ("text", self.headers),
            "event_ids": ("uuid", event_ids),
            "partitions": ("int4", None),
        }
        scalars = {"topic": self.topic, "type": self.type, "content_type": self.content_type}
        return scalars | pack(**columns)


def block_of(messages: Sequence[Any], known: KnownTopics) -> Block | None:
    """The messages as a block.  None when they are not plain, or something is wrong."""
    if set(map(type, messages)) != _MESSAGE or tracing.context_headers():
        return None
    try:
        return _block(messages, known)
    except (PenstockError, TypeError, ValueError, RecursionError):
        return None


def _block(messages: Sequence[Message], known: KnownTopics) -> Block | None:
    topics, payloads, keys, types, content_types, headers, event_ids = zip(
        *map(_COLUMNS, messages), strict=True
    )
    facts = known.plain(topics[0])
    if facts is None or not _all_equal(topics) or set(map(_OPTIONS, messages)) != _NO_OPTIONS:
        return None
    if set(map(type, payloads)) != _BYTES or max(map(len, payloads)) > facts.max_payload_bytes:
        return None
    _require_texts("key", [key for key in keys if key is not None], MAX_KEY)
    _require_texts("type", types, MAX_TYPE)
    _require_texts("content_type", content_types, MAX_CONTENT_TYPE)
    written = None if _all_equal(headers, None) else validation.headers_column(headers)
    if (written is None) != (headers.count(None) == len(headers)):
        return None
    if not _IDS.issuperset(map(type, event_ids)):
        return None
    return Block(
        topics[0], types[0], content_types[0], payloads,
        None if _all_equal(keys, None) else keys,
        None if _all_equal(types) else types,
        None if _all_equal(content_types) else content_types,
        written,
        None if _all_equal(event_ids, None) else event_ids,
    )  # fmt: skip


def _all_equal(values: Sequence[Any], *to: Any) -> bool:
    return values.count(*to or values[:1]) == len(values)


def _require_texts(what: str, values: Sequence[Any], longest: int) -> None:
    """The checks of one text, of all of them; the joined text holds what any of them holds."""
    if not values:
        return
    if set(map(type, values)) != _TEXT:
        raise TypeError(what)
    if _all_equal(values):
        values = values[:1]
    if max(map(len, values)) > longest:
        raise ValueError(what)
    joined = "".join(values)
    validation.text(what, joined, len(joined))
