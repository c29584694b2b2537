"""Publishing very many events on PostgreSQL: chunk after chunk, packed while one is stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock import database
from penstock.database.steps import run
from penstock.driver_errors import sqlstate_of
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


CHUNK_EVENTS, CHUNK_BYTES = 5_000, 16 << 20

#: Classes of SQLSTATE: data that cannot be read, and what is too complex.
_UNREADABLE = ("22", "54")

_IDLE = 0  # libpq's PQTRANS_IDLE


def publish_bulk(connection: Any, messages: Iterable[Message]) -> int:
    """Publish any number of events, faster than by COPY.  Returns how many.

    Needs psycopg (directly or below SQLAlchemy) and an open transaction.  It works inside a
    savepoint: when one event is refused, none is published and the caller's transaction can go on.
    It supports neither dedup keys nor strict order.
    """
    with in_chunks(connection, "publish_bulk") as bulk:
        return bulk.publish(_drawn(bulk.driver, messages))


@contextmanager
def in_chunks(connection: Any, call: str) -> Iterator[Bulk]:
    """What publishes chunks, inside a savepoint; ``call`` is the caller's name, for errors."""
    driver = _psycopg_connection(connection, call)
    # On the caller's connection: this begins its transaction, also for SQLAlchemy, whose commit
    # would otherwise not know that there is something to commit.
    require_installed(connection)
    with database.typed_errors(), driver.transaction(), ThreadPoolExecutor(1) as server:
        yield Bulk(driver, known_topics(connection), server)


class Columns(NamedTuple):
    """Events of one topic as publish_columns takes them."""

    topic: str
    binds: dict[str, Any]


class Chunk(Protocol):
    """Events that are sent together."""

    def __len__(self) -> int:
        """How many."""
        ...

    def by_columns(self, known: KnownTopics, *, binary: bool) -> Columns | None:
        """All columns at once.  None when the events are not plain, or something is wrong."""
        ...

    def rows(self, place: int) -> Iterator[Row]:
        """Event by event.  An error names the event's index; the first event has ``place``."""
        ...


class Packed(NamedTuple):
    """A chunk as it is sent: by columns for one topic, else by publish_batch."""

    first: int
    chunk: Chunk
    topic: str | None
    binds: dict[str, Any]


class Bulk:
    """Sends chunk after chunk: while the server stores one, the next is checked and packed."""

    def __init__(self, driver: Connection, known: KnownTopics, server: ThreadPoolExecutor) -> None:
        """``server`` is the thread that waits for the server."""
        self.driver = driver
        self.known = known
        # Asked once: while a chunk is being stored, the connection belongs to the other thread.
        self._binary = takes_binary(driver)
        self._pack = partial(packed_as, self._binary)
        self._server = server
        self._storing: Future[int] | None = None
        self._published = 0

    def publish(self, chunks: Iterable[Chunk]) -> int:
        """Publish all chunks.  Returns how many events they had."""
        place = 0
        packed: Packed | None = None
        for chunk in chunks:
            if packed is not None:
                self._storing = self._server.submit(self._store, packed)
            packed = self._packed(chunk, place)
            place += len(chunk)
            self._stored()
        return self._published + (0 if packed is None else self._store(packed))

    def _packed(self, chunk: Chunk, first: int) -> Packed:
        columns = chunk.by_columns(self.known, binary=self._binary)
        if columns is not None:
            return Packed(first, chunk, *columns)
        placed = [self._placed(row, place) for place, row in enumerate(chunk.rows(first), first)]
        return Packed(first, chunk, None, self._pack(**columns_of(placed)))

    def _placed(self, row: Row, place: int) -> Row:
        if row.dedup_key is not None:
            raise InvalidArgument(
                f"event {place}: publish_bulk does not support dedup keys", hint="use publish_batch"
            )
        placed = self.known.placed(row)
        if placed is None:
            self._stored()  # raises what it refused before the errors of the next call
            try:
                placed = run(self.driver, self.known.asked_for(row))
            except PenstockError as error:
                raise outgoing.at(place, error) from None
        return placed

    def _store(self, packed: Packed) -> int:
        """Send a chunk.  The server counts its events from 0."""
        try:
            return self._sent(packed)
        except UsageError as error:
            _name_the_wrong_one(packed)
            if packed.first == 0:
                raise
            counted = f"of the events from {packed.first} on, {error.message}"
            raise type(error)(counted, hint=error.hint) from error
        except Exception as error:
            if (sqlstate_of(error) or "").startswith(_UNREADABLE):
                _name_the_wrong_one(packed)
            raise

    def _sent(self, packed: Packed) -> int:
        binds = packed.binds
        if packed.topic is not None:
            ((published,),) = database.call(self.driver, "publish_columns", **binds)
            if published is not None:
                return int(published)
            self.known.not_by_columns(packed.topic)
            binds = self._pack(**columns_of(list(packed.chunk.rows(0))))
        return int(database.call(self.driver, "publish_batch", **binds, strict=False)[0][0])

    def _stored(self) -> int:
        """Wait for the chunk that is being stored.  Returns how many events all chunks had."""
        if self._storing is not None:
            self._published += self._storing.result()
            self._storing = None
        return self._published


def _name_the_wrong_one(packed: Packed) -> None:
    """Raise the error of an event that only the server has looked at, with its place."""
    for _ in packed.chunk.rows(packed.first):
        pass


class _Messages:
    """A chunk of messages."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    def by_columns(self, known: KnownTopics, *, binary: bool) -> Columns | None:
        block = block_of(self._messages, known)
        if block is None:
            return None
        ids = new_ids(binary, len(self)) if block.event_ids is None else block.ids()
        return Columns(block.topic, block.binds(partial(packed_as, binary), ids))

    def rows(self, place: int) -> Iterator[Row]:
        return outgoing.rows(self._messages, place)


def _drawn(driver: Connection, messages: Iterable[Message]) -> Iterator[_Messages]:
    """Messages chunk by chunk, drawn while the connection is idle: a generator may use it too.

    A generator could leave a savepoint open and roll back to it later, with the chunks stored
    since.  The savepoint that is set here ends such savepoints.
    """
    source = iter(messages)
    while True:
        with driver.transaction():
            drawn = list(_chunk(source))
        if not drawn:
            return
        yield _Messages(drawn)


def _chunk(source: Iterator[Message]) -> Iterator[Message]:
    size = 0
    for number, message in enumerate(source, 1):
        yield message
        size += _size(getattr(message, "payload", None))
        if number == CHUNK_EVENTS or size >= CHUNK_BYTES:
            return


def _size(payload: Any) -> int:
    """The payload's size; 0 for what is not bytes, which is refused when it is packed."""
    return len(payload) if isinstance(payload, bytes | bytearray | memoryview) else 0


def _psycopg_connection(connection: Any, call: str) -> Connection:
    driver: Any = database.driver_connection(connection)
    if not hasattr(driver, "pgconn"):  # psycopg's own attribute, in subclasses too
        raise InvalidArgument(
            f"{call} needs a psycopg connection, not {type(driver).__name__}",
            hint="use publish_batch with other drivers",
        )
    if driver.autocommit and driver.info.transaction_status == _IDLE:
        raise InvalidArgument(
            f"{call} is called outside a transaction",
            hint="call it inside `with connection.transaction():`",
        )
    return driver  # type: ignore[no-any-return]
