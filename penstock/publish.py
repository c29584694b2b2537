"""Publishing: an event exists if and only if the caller's transaction commits.

What can be refused is refused before the INSERT, so that the caller's transaction is not aborted:
sizes and names without the database, unknown topics and partitions by a look-up that is remembered.
The database checks everything again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock import database, outgoing
from penstock.errors import InvalidArgument, PenstockError
from penstock.outgoing import Row
from penstock.packed_arrays import packed
from penstock.publish_steps import batch_steps, publish_steps, rows_of
from penstock.records import Message, Published
from penstock.steps import run
from penstock.topic_cache import KnownTopics, known_topics, require_installed

if TYPE_CHECKING:
    from penstock.database import Connection

_COPY = (
    "COPY pg_temp.penstock_bulk"
    " (topic, payload, key, type, content_type, headers, event_id, partition, not_before)"
    " FROM STDIN (FORMAT BINARY)"
)
# The headers travel as raw bytes: binary jsonb is a version byte and the text, which is at hand.
_COPY_TYPES = ("text", "bytea", "text", "text", "text", "bytea", "uuid", "int4", "timestamptz")
_JSONB_VERSION = b"\x01"
_CHUNK_EVENTS, _CHUNK_BYTES = 5_000, 16 << 20
_IDLE = 0  # libpq's PQTRANS_IDLE


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


def publish_bulk(connection: Any, messages: Iterable[Message]) -> int:
    """Publish any number of events at the speed of COPY; answers how many.

    Needs psycopg, below SQLAlchemy too, and an open transaction.  It works inside a savepoint: when
    one event is refused, none is published and the caller's transaction can go on.  It knows no
    dedup keys and no strict order.
    """
    driver = _psycopg_connection(connection)
    # On the caller's connection: this begins its transaction, also for SQLAlchemy, whose commit
    # would otherwise not know that there is something to commit.
    require_installed(connection)
    published = 0
    with database.typed_errors(), driver.transaction(), ThreadPoolExecutor(1) as server:
        database.call(driver, "prepare_bulk")
        stored: Future[int] | None = None
        for chunk in _chunks(driver, known_topics(connection), messages):
            published += stored.result() if stored else 0
            _copy(driver, chunk)
            # The next chunk is checked and packed while the server stores this one.
            stored = server.submit(_store, driver)
        published += stored.result() if stored else 0
    return published


def _store(driver: Connection) -> int:
    return int(database.call(driver, "publish_bulk")[0][0])


def _chunks(
    driver: Connection, known: KnownTopics, messages: Iterable[Message]
) -> Iterator[list[tuple[Any, ...]]]:
    """The rows to copy, checked; topics are looked up here, because no COPY allows it meanwhile."""
    chunk: list[tuple[Any, ...]] = []
    size = 0
    for place, row in enumerate(outgoing.rows(messages)):
        try:
            placed = known.placed(row) or run(driver, known.asked_for(row))
        except PenstockError as error:
            raise outgoing.at(place, error) from None
        chunk.append(_copied(place, placed))
        size += len(row.payload)
        if len(chunk) == _CHUNK_EVENTS or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _copy(driver: Connection, chunk: list[tuple[Any, ...]]) -> None:
    with driver.cursor() as cursor, cursor.copy(_COPY) as copy:
        copy.set_types(_COPY_TYPES)
        for row in chunk:
            copy.write_row(row)


def _copied(place: int, row: Row) -> tuple[Any, ...]:
    if row.dedup_key is not None:
        raise InvalidArgument(
            f"event {place}: publish_bulk knows no dedup keys", hint="use publish_batch"
        )
    headers = None if row.headers is None else _JSONB_VERSION + row.headers.encode()
    return (*row[:5], headers, row.event_id, row.partition, row.not_before)


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
