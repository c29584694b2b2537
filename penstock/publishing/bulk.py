"""Publishing very many events on PostgreSQL: chunk after chunk, packed while one is stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock import database
from penstock.database.steps import run
from penstock.errors import InvalidArgument, PenstockError, UsageError
from penstock.publishing import rows as outgoing
from penstock.publishing.blocks import block_of
from penstock.publishing.columns import new_ids, packed_as, takes_binary
from penstock.publishing.known_topics import KnownTopics, known_topics, require_installed
from penstock.publishing.rows import Row
from penstock.publishing.steps import columns_of
from penstock.records import Message

if TYPE_CHECKING:
    from penstock.database import Connection


_CHUNK_EVENTS, _CHUNK_BYTES = 5_000, 16 << 20


_IDLE = 0  # libpq's PQTRANS_IDLE


def publish_bulk(connection: Any, messages: Iterable[Message]) -> int:
    """Publish any number of events, faster than by COPY.  Returns how many.

    Needs psycopg (directly or below SQLAlchemy) and an open transaction.  It works inside a
    savepoint: when one event is refused, none is published and the caller's transaction can go on.
    It supports neither dedup keys nor strict order.
    """
    driver = _psycopg_connection(connection)
    # On the caller's connection: this begins its transaction, also for SQLAlchemy, whose commit
    # would otherwise not know that there is something to commit.
    require_installed(connection)
    with database.typed_errors(), driver.transaction(), ThreadPoolExecutor(1) as server:
        return _Bulk(driver, known_topics(connection), server).publish(messages)


class Packed(NamedTuple):
    """A chunk as it is sent: by columns for one topic, else by publish_batch."""

    first: int
    messages: list[Message]
    topic: str | None
    binds: dict[str, Any]


class _Bulk:
    """Sends chunk after chunk: while the server stores one, the next is checked and packed."""

    def __init__(self, driver: Connection, known: KnownTopics, server: ThreadPoolExecutor) -> None:
        self._driver = driver
        # Asked once: while a chunk is being stored, the connection belongs to the other thread.
        self._binary = takes_binary(driver)
        self._pack = partial(packed_as, self._binary)
        self._known = known
        self._server = server
        self._storing: Future[int] | None = None
        self._published = 0

    def publish(self, messages: Iterable[Message]) -> int:
        source = iter(messages)
        place = 0
        packed: Packed | None = None
        while drawn := self._drawn(source):
            if packed is not None:
                self._storing = self._server.submit(self._store, packed)
            packed = self._packed(drawn, place)
            place += len(drawn)
            self._stored()
        return self._published + (0 if packed is None else self._store(packed))

    def _drawn(self, source: Iterator[Message]) -> list[Message]:
        """The next messages, drawn while the connection is idle: a generator may use it too.

        A generator could leave a savepoint open and roll back to it later, with the chunks stored
        since.  The savepoint that is set here ends such savepoints.
        """
        with self._driver.transaction():
            return list(_chunk(source))

    def _packed(self, drawn: list[Message], first: int) -> Packed:
        block = block_of(drawn, self._known)
        if block is not None:
            ids = new_ids(self._binary, len(drawn)) if block.event_ids is None else block.ids()
            return Packed(first, drawn, block.topic, block.binds(self._pack, ids))
        rows = enumerate(outgoing.rows(drawn, first), first)
        placed = [self._placed(row, place) for place, row in rows]
        return Packed(first, drawn, None, self._pack(**columns_of(placed)))

    def _placed(self, row: Row, place: int) -> Row:
        if row.dedup_key is not None:
            raise InvalidArgument(
                f"event {place}: publish_bulk does not support dedup keys", hint="use publish_batch"
            )
        placed = self._known.placed(row)
        if placed is None:
            self._stored()  # raises what it refused before the errors of the next call
            try:
                placed = run(self._driver, self._known.asked_for(row))
            except PenstockError as error:
                raise outgoing.at(place, error) from None
        return placed

    def _store(self, packed: Packed) -> int:
        """Send a chunk.  The server counts its events from 0."""
        try:
            return self._sent(packed)
        except UsageError as error:
            if packed.first == 0:
                raise
            counted = f"of the events from {packed.first} on, {error.message}"
            raise type(error)(counted, hint=error.hint) from error

    def _sent(self, packed: Packed) -> int:
        binds = packed.binds
        if packed.topic is not None:
            ((published,),) = database.call(self._driver, "publish_columns", **binds)
            if published is not None:
                return int(published)
            self._known.not_by_columns(packed.topic)
            binds = self._pack(**columns_of(list(outgoing.rows(packed.messages))))
        return int(database.call(self._driver, "publish_batch", **binds, strict=False)[0][0])

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
