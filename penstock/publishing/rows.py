"""Events before they are sent: checked, and turned into rows, without asking the database."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

from penstock.errors import InvalidArgument, PenstockError
from penstock.publishing import tracing, validation
from penstock.publishing.event_ids import uuid7, uuid7s
from penstock.records import Message

#: Headers that are for relays: where and how often an event is to be delivered.
EXCHANGE = "penstock-exchange"
ROUTING_KEY = "penstock-routing-key"
MAX_ATTEMPTS = "penstock-max-attempts"

_CHUNK = 500  # events that get their ids together


class Row(NamedTuple):
    """A checked event.  Its fields and ``strict`` are the binds of the statement ``publish``."""

    topic: str
    payload: bytes
    key: str | None
    type: str
    content_type: str
    headers: str | None
    event_id: uuid.UUID
    partition: int | None
    not_before: datetime | None
    dedup_key: str | None


def row(message: Message) -> Row:
    """One event."""
    return _row(message, message.event_id or uuid7(), tracing.context_headers())


def rows(messages: Iterable[Message], place: int = 0) -> Iterator[Row]:
    """Many events, in order.  An error names the event's index; the first event has ``place``."""
    source = iter(messages)
    while chunk := list(islice(source, _CHUNK)):
        context = tracing.context_headers()
        for message, new_id in zip(chunk, uuid7s(len(chunk)), strict=True):
            try:
                yield _row(_message(message), message.event_id or new_id, context)
            except PenstockError as error:
                raise at(place, error) from None
            place += 1


def at(place: int, error: PenstockError) -> PenstockError:
    """The same error, naming the event of the batch that it is about."""
    return type(error)(f"event {place}: {error.message}", hint=error.hint)


def _message(given: Any) -> Message:
    if isinstance(given, Message):
        return given
    raise InvalidArgument(
        f"a {type(given).__name__} is not a Message",
        hint="give penstock.Message(topic, payload, ...)",
    )


def _row(message: Message, event_id: uuid.UUID, context: Mapping[str, str]) -> Row:
    validation.message(message)
    validation.headers(message.headers)
    return Row(
        message.topic,
        bytes(message.payload),
        message.key,
        message.type,
        message.content_type,
        validation.headers_json(_headers(message, context)),
        event_id,
        message.partition,
        message.not_before,
        message.dedup_key,
    )


def _headers(message: Message, context: Mapping[str, str]) -> Any:
    """The caller's headers, those for relays, and the trace unless the caller gave one."""
    given = message.headers
    if (
        message.exchange is None
        and message.routing_key is None
        and message.max_attempts is None
        and not context
    ):
        return given
    added: dict[str, Any] = {
        name: value
        for name, value in (
            (EXCHANGE, message.exchange),
            (ROUTING_KEY, message.routing_key),
            (MAX_ATTEMPTS, message.max_attempts),
        )
        if value is not None
    }
    if given is None:
        return {**added, **context}
    if any(name in tracing.NAMES for name in given):
        context = {}
    return {**given, **added, **context}
