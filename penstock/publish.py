"""Publishing: an event exists if and only if the caller's transaction commits.

What can be refused is refused before the INSERT, so that the caller's transaction is not aborted:
sizes and names without the database, unknown topics and partitions by a look-up that is remembered.
The database checks everything again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock import database, validation
from penstock.errors import InvalidArgument, PenstockError
from penstock.identifiers import uuid7, uuid7s
from penstock.packed_arrays import packed
from penstock.records import Message
from penstock.topic_cache import KnownTopics, require_installed

if TYPE_CHECKING:
    from penstock.database import Connection

_COPY = (
    "COPY pg_temp.penstock_bulk"
    " (topic, payload, key, type, content_type, headers, event_id, partition)"
    " FROM STDIN (FORMAT BINARY)"
)
# The headers travel as raw bytes: binary jsonb is a version byte and the text, which is at hand.
_COPY_TYPES = ("text", "bytea", "text", "text", "text", "bytea", "uuid", "int4")
_JSONB_VERSION = b"\x01"
_IDLE = 0  # libpq's PQTRANS_IDLE
_CHUNK = 500  # events that get their ids together


class _Row(NamedTuple):
    """A checked event; the fields are the binds of the statement ``publish``."""

    topic: str
    payload: bytes
    key: str | None
    type: str
    content_type: str
    headers: str | None
    event_id: str
    partition: int | None


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
) -> uuid.UUID:
    """Publish one event in the caller's transaction; answers its event id."""
    message = Message(
        topic,
        payload,
        key=key,
        type=type,
        content_type=content_type,
        headers=headers,
        event_id=event_id,
        partition=partition,
    )
    new_id = event_id or uuid7()
    row = _row(message, new_id)
    known = KnownTopics(connection)
    known.require(row.topic, len(row.payload), row.partition)
    with known.forgotten_on_refusal([row.topic]):
        database.call(connection, "publish", **row._asdict())
    return new_id


def publish_batch(connection: Any, messages: Iterable[Message]) -> list[uuid.UUID]:
    """Publish many events in one round trip, in order; answers their event ids.

    A batch that is invalid in one event publishes none, and the error names the event's index.
    """
    if not isinstance(messages, Iterable):
        raise InvalidArgument(f"messages is a {type(messages).__name__}", hint="give a list")
    checked = list(_rows(messages))
    if not checked:
        return []
    rows, event_ids = zip(*checked, strict=True)
    known = KnownTopics(connection)
    for place, row in enumerate(rows):
        try:
            known.require(row.topic, len(row.payload), row.partition)
        except PenstockError as error:
            raise _at(place, error) from None
    topics, payloads, keys, types, content_types, headers, _, partitions = zip(*rows, strict=True)
    arrays = packed(
        connection,
        topics=("text", topics),
        payloads=("bytea", payloads),
        keys=("text", keys),
        types=("text", types),
        content_types=("text", content_types),
        headers=("text", headers),
        event_ids=("uuid", event_ids),
        partitions=("int4", partitions),
    )
    with known.forgotten_on_refusal(set(topics)):
        database.call(connection, "publish_batch", **arrays)
    return list(event_ids)


def publish_bulk(connection: Any, messages: Iterable[Message]) -> int:
    """Publish any number of events at the speed of COPY; answers how many.

    Needs psycopg, below SQLAlchemy too, and an open transaction.  It works inside a savepoint: when
    one event is refused, none is published and the caller's transaction can go on.
    """
    driver = _psycopg_connection(connection)
    # On the caller's connection: this begins its transaction, also for SQLAlchemy, whose commit
    # would otherwise not know that there is something to commit.
    require_installed(connection)
    with database.typed_errors(), driver.transaction():
        database.call(driver, "prepare_bulk")
        with driver.cursor() as cursor, cursor.copy(_COPY) as copy:
            copy.set_types(_COPY_TYPES)
            for row, event_id in _rows(messages):
                headers = None if row.headers is None else _JSONB_VERSION + row.headers.encode()
                copy.write_row((*row[:5], headers, event_id, row.partition))
        (published,) = database.call(driver, "publish_bulk")[0]
    return int(published)


def _rows(messages: Iterable[Message]) -> Iterator[tuple[_Row, uuid.UUID]]:
    place = 0
    source = iter(messages)
    while chunk := list(islice(source, _CHUNK)):
        for message, new_id in zip(chunk, uuid7s(len(chunk)), strict=True):
            try:
                event_id = _message(message).event_id or new_id
                row = _row(message, event_id)
            except PenstockError as error:
                raise _at(place, error) from None
            yield row, event_id
            place += 1


def _message(given: Any) -> Message:
    if isinstance(given, Message):
        return given
    raise InvalidArgument(
        f"a {type(given).__name__} is no Message", hint="give penstock.Message(topic, payload, ...)"
    )


def _row(message: Message, event_id: uuid.UUID) -> _Row:
    validation.message(message)
    return _Row(
        message.topic,
        bytes(message.payload),
        message.key,
        message.type,
        message.content_type,
        validation.headers_json(message.headers),
        str(event_id),
        message.partition,
    )


def _at(place: int, error: PenstockError) -> PenstockError:
    """The same error, naming the event of the batch that it is about."""
    return type(error)(f"event {place}: {error.message}", hint=error.hint)


def _psycopg_connection(connection: Any) -> Connection:
    driver: Any = database.driver_connection(connection)
    if not hasattr(driver, "pgconn"):  # psycopg's own attribute, in subclasses too
        raise InvalidArgument(
            f"publish_bulk needs a psycopg connection, not {type(driver).__name__}",
            hint="use publish_batch with other drivers",
        )
    if driver.autocommit and driver.info.transaction_status == _IDLE:
        raise InvalidArgument(
            "publish_bulk is called outside a transaction",
            hint="call it inside `with connection.transaction():`",
        )
    return driver  # type: ignore[no-any-return]
