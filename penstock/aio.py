"""Publishing and fetching on asynchronous connections.

On a psycopg.AsyncConnection, an asyncpg connection, or SQLAlchemy's AsyncConnection and
AsyncSession: always in the caller's transaction, which is never begun, committed or rolled back
here.  The rules are those of :mod:`penstock.publish`; the steps are the same lines.

    async with connection.transaction():
        ...
        await penstock.aio.publish(connection, "bank/accounts", b"...", key="account 7")
"""

from __future__ import annotations

import inspect
import re
import uuid
from collections.abc import Iterable, Sequence
from functools import cache, partial
from typing import Any, TypeVar

from penstock import catalog, config, database, dialects, outgoing, validation
from penstock.dead_letters import Redriven, finish_binds, parking_binds
from penstock.errors import InvalidArgument
from penstock.packed_arrays import packed_for_driver
from penstock.publish_steps import batch_steps, publish_steps, rows_of
from penstock.records import Event, Lease, Message, Published
from penstock.steps import Rows, Steps, asked
from penstock.stream import Membership, commit_binds
from penstock.topic_cache import KnownTopics, known_to_connection, remembered

T = TypeVar("T")

_DIALECT = "postgres"
_BIND = re.compile(r"%\((\w+)\)s")


async def publish(
    connection: Any,
    topic: str,
    payload: bytes | bytearray | memoryview,
    *,
    strict: bool = False,
    **options: Any,
) -> uuid.UUID:
    """Publish one event; the options are the fields of :class:`penstock.Message`."""
    message = Message(topic, payload, **options)
    return (await publish_once(connection, message, strict=strict)).event_id


async def publish_once(connection: Any, message: Message, *, strict: bool = False) -> Published:
    """Publish one event; answers its id and whether it was a duplicate of an earlier one."""
    door = await _door(connection)
    steps = publish_steps(door.known, outgoing.row(message), strict=strict)
    return await _run(door, steps)


async def publish_batch(
    connection: Any, messages: Iterable[Message], *, strict: bool = False
) -> list[uuid.UUID]:
    """Publish many events in one round trip, in order; answers their ids."""
    rows = rows_of(messages)
    if not rows:
        return []
    door = await _door(connection)
    pack = partial(packed_for_driver, door.driver)
    steps = batch_steps(pack, door.known, rows, strict=strict)
    return await _run(door, steps)


async def fetch(
    connection: Any, topic: str, partition: int, from_sequence: int, max_events: int = 500
) -> list[Event]:
    """Events of one partition from a sequence on, as :func:`penstock.fetch` answers them."""
    validation.topic(topic)
    validation.fetched(partition, from_sequence, max_events)
    binds = {"partition": partition, "from_sequence": from_sequence, "max_events": max_events}
    rows = await _run(await _door(connection), asked("fetch", topic=topic, **binds))
    return Event.from_rows(topic, partition, rows[0][-1], rows) if rows else []


async def commit(
    connection: Any,
    member: Membership,
    positions: Iterable[tuple[Lease, int]],
    *,
    after: Sequence[int] | None = None,
) -> None:
    """Move positions forward in the caller's transaction, as :func:`penstock.stream.commit`."""
    binds = commit_binds(member, list(positions), after)
    await _run(await _door(connection), asked("commit", **binds))


async def commit_parking(
    connection: Any,
    member: Membership,
    lease: Lease,
    position: int,
    *,
    after: int,
    sequences: Iterable[int],
) -> None:
    """A commit in the caller's transaction, as :func:`penstock.dead_letters.commit_parking`."""
    binds = parking_binds(member, lease, position, after, sequences)
    await _run(await _door(connection), asked("commit_parking", **binds))


async def finish_redriven(connection: Any, member: Membership, letter: Redriven) -> None:
    """Remove a redriven letter, as :func:`penstock.dead_letters.finish_redriven`."""
    binds = finish_binds(member, letter)
    await _run(await _door(connection), asked("finish_redriven", **binds))


class _Door:
    """How statements reach one kind of connection."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        #: The driver's own connection; it says how columns are written.
        self.driver = self.driver_connection()
        self.known = _known(self.driver)

    def driver_connection(self) -> Any:
        return self.connection

    async def execute(self, sql: str, binds: dict[str, Any]) -> Rows:
        raise NotImplementedError


class _Psycopg(_Door):
    async def execute(self, sql: str, binds: dict[str, Any]) -> Rows:
        import psycopg

        kind = self.connection.cursor_factory
        if issubclass(kind, psycopg.AsyncRawCursor):  # knows no named parameters
            kind = psycopg.AsyncCursor
        async with kind(self.connection, row_factory=psycopg.rows.tuple_row) as cursor:
            await cursor.execute(sql, binds or None)
            return [] if cursor.description is None else list(await cursor.fetchall())


class _Asyncpg(_Door):
    async def execute(self, sql: str, binds: dict[str, Any]) -> Rows:
        numbered, names = _numbered(sql)
        found = await self.connection.fetch(numbered, *(binds[name] for name in names))
        return [tuple(row) for row in found]


class _Sqlalchemy(_Door):
    """SQLAlchemy's AsyncConnection: it has to know that a transaction begins."""

    def driver_connection(self) -> Any:
        return self.connection.sync_connection.connection.driver_connection

    async def execute(self, sql: str, binds: dict[str, Any]) -> Rows:
        given: Any = binds or None
        if self.connection.dialect.driver == "asyncpg":
            sql, names = _numbered(sql)
            given = tuple(binds[name] for name in names)
        result = await self.connection.exec_driver_sql(sql, given)
        return [tuple(row) for row in result] if result.returns_rows else []


async def _door(connection: Any) -> _Door:
    if hasattr(connection, "sync_session"):  # AsyncSession
        connection = await connection.connection()
    if hasattr(connection, "sync_connection") and connection.sync_connection is not None:
        if connection.dialect.name != "postgresql":
            raise InvalidArgument(f"penstock.aio knows no {connection.dialect.name} yet")
        return _Sqlalchemy(connection)
    if hasattr(connection, "pgconn") and inspect.iscoroutinefunction(connection.commit):
        return _Psycopg(connection)
    if type(connection).__module__.partition(".")[0] == "asyncpg":
        return _Asyncpg(connection)
    raise InvalidArgument(
        f"{type(connection).__name__} is not an asynchronous connection",
        hint="give a psycopg.AsyncConnection, an asyncpg connection, or SQLAlchemy's "
        "AsyncConnection or AsyncSession; for others there is penstock.publish",
    )


def _known(driver: Any) -> KnownTopics:
    key = dialects.POSTGRES.key(driver)
    return known_to_connection(driver) if key is None else KnownTopics(remembered(key))


async def _run(door: _Door, steps: Steps[T]) -> T:
    try:
        call = next(steps)
        while True:
            try:
                rows = await _call(door, call.name, call.binds)
            except Exception as error:
                call = steps.throw(error)
            else:
                call = steps.send(rows)
    except StopIteration as done:
        result: T = done.value
        return result


async def _call(door: _Door, name: str, binds: dict[str, Any]) -> Rows:
    statement = catalog.statement(_DIALECT, name, config.schema_name())
    with database.typed_errors():
        return await door.execute(statement.text, binds)


@cache
def _numbered(sql: str) -> tuple[str, tuple[str, ...]]:
    """The statement with $1, $2, ... for its binds, and their names in that order."""
    names = tuple(dict.fromkeys(_BIND.findall(sql)))
    places = {name: f"${place}" for place, name in enumerate(names, 1)}
    return _BIND.sub(lambda found: places[found[1]], sql), names
