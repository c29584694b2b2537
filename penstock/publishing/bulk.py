"""Publishing very many events: COPY on PostgreSQL, batches elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from penstock import database
from penstock.database.steps import run
from penstock.errors import InvalidArgument, PenstockError
from penstock.publishing import rows as outgoing
from penstock.publishing.known_topics import KnownTopics, known_topics, require_installed
from penstock.publishing.rows import Row
from penstock.records import Message

if TYPE_CHECKING:
    from penstock.database import Connection


_COPY = (
    "COPY pg_temp.penstock_bulk"
    " (topic, payload, key, type, content_type, headers, event_id, partition, not_before)"
    " FROM STDIN (FORMAT BINARY)"
)


# The headers travel as raw bytes: binary jsonb is a version byte and the text, which we have.
_COPY_TYPES = ("text", "bytea", "text", "text", "text", "bytea", "uuid", "int4", "timestamptz")


_JSONB_VERSION = b"\x01"


_CHUNK_EVENTS, _CHUNK_BYTES = 5_000, 16 << 20


_IDLE = 0  # libpq's PQTRANS_IDLE


def publish_bulk(connection: Any, messages: Iterable[Message]) -> int:
    """Publish any number of events at the speed of COPY.  Returns how many.

    Needs psycopg (directly or below SQLAlchemy) and an open transaction.  It works inside a
    savepoint: when one event is refused, none is published and the caller's transaction can go on.
    It supports neither dedup keys nor strict order.
    """
    driver = _psycopg_connection(connection)
    # On the caller's connection: this begins its transaction, also for SQLAlchemy, whose commit
    # would otherwise not know that there is something to commit.
    require_installed(connection)
    with database.typed_errors(), driver.transaction(), ThreadPoolExecutor(1) as server:
        database.call(driver, "prepare_bulk")
        return _Bulk(driver, known_topics(connection), server).publish(messages)


class _Bulk:
    """Sends chunk after chunk: while the server stores one, the next is checked and packed."""

    def __init__(self, driver: Connection, known: KnownTopics, server: ThreadPoolExecutor) -> None:
        self._driver = driver
        self._known = known
        self._server = server
        self._storing: Future[int] | None = None
        self._published = 0

    def publish(self, messages: Iterable[Message]) -> int:
        source = iter(messages)
        place = 0
        while drawn := self._drawn(source):
            if place:
                self._storing = self._server.submit(self._store)
            packed = list(self._packed(drawn, place))
            place += len(drawn)
            self._stored()
            self._copy(packed)
        self._storing = self._server.submit(self._store)
        return self._stored()

    def _drawn(self, source: Iterator[Message]) -> list[Message]:
        """The next messages, drawn while the connection is idle: a generator may use it too.

        A generator could leave a savepoint open and roll back to it later, with the chunks stored
        since.  The savepoint that is set here ends such savepoints.
        """
        with self._driver.transaction():
            return list(_chunk(source))

    def _copy(self, rows: list[tuple[Any, ...]]) -> None:
        with self._driver.cursor() as cursor, cursor.copy(_COPY) as copy:
            copy.set_types(_COPY_TYPES)
            for row in rows:
                copy.write_row(row)

    def _packed(self, drawn: list[Message], first: int) -> Iterator[tuple[Any, ...]]:
        for place, row in enumerate(outgoing.rows(drawn, first), first):
            placed = self._known.placed(row)
            if placed is None:
                self._stored()  # raises what it refused before the errors of the next call
                try:
                    placed = run(self._driver, self._known.asked_for(row))
                except PenstockError as error:
                    raise outgoing.at(place, error) from None
            yield _copied(place, placed)

    def _store(self) -> int:
        return int(database.call(self._driver, "publish_bulk")[0][0])

    def _stored(self) -> int:
        """Wait for the chunk that is being stored.  Returns how many events all chunks had."""
        if self._storing is not None:
            self._published += self._storing.result()
            self._storing = None
        return self._published


def _chunk(source: Iterator[Message]) -> Iterator[Message]:
    size = 0
    for number, message in enumerate(source, 1):
        yield message
        size += _size(getattr(message, "payload", None))
        if number == _CHUNK_EVENTS or size >= _CHUNK_BYTES:
            return


def _size(payload: Any) -> int:
    """The payload's size; 0 for what is not bytes, which is refused when it is packed."""
    return len(payload) if isinstance(payload, bytes | bytearray | memoryview) else 0


def _copied(place: int, row: Row) -> tuple[Any, ...]:
    if row.dedup_key is not None:
        raise InvalidArgument(
            f"event {place}: publish_bulk does not support dedup keys", hint="use publish_batch"
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
