"""Publishing and fetching on asynchronous connections.

These functions take a psycopg.AsyncConnection, an asyncpg connection, SQLAlchemy's AsyncConnection
and AsyncSession, or the connection that a consumer gives its async handler.  They run in the
caller's transaction and never begin, commit or roll back one.  The rules are those of
:mod:`penstock.publish`, and both run the same code.

    async with connection.transaction():
        ...
        await penstock.aio.publish(connection, "bank/accounts", b"...", key="account 7")
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Unpack

from penstock.database.async_connections import AsyncDriver, async_driver_of, run, run_on
from penstock.database.steps import asked
from penstock.publishing import rows as outgoing
from penstock.publishing.columns import packed, packed_for_driver
from penstock.publishing.known_topics import KnownTopics, known_to_connection, remembered
from penstock.publishing.steps import batch_steps, publish_steps
from penstock.records import Event, Lease, Message, MessageOptions, Published
from penstock.subscriptions.dead_letters import Redriven, finish_steps, parking_steps
from penstock.subscriptions.stream import Membership, commit_steps
from penstock.topics import validation


async def publish(
    connection: Any,
    topic: str,
    payload: bytes | bytearray | memoryview,
    *,
    strict: bool = False,
    **options: Unpack[MessageOptions],
) -> uuid.UUID:
    """Publish one event; the options are the fields of :class:`penstock.Message`."""
    message = Message(topic, payload, **options)
    return (await publish_once(connection, message, strict=strict)).event_id


async def publish_once(connection: Any, message: Message, *, strict: bool = False) -> Published:
    """Publish one event.  Returns its id and whether it was a duplicate of an earlier one."""
    async_driver = await async_driver_of(connection)
    steps = publish_steps(_known(async_driver), outgoing.row(message), strict=strict)
    return await run(async_driver, steps)


async def publish_batch(
    connection: Any, messages: Iterable[Message], *, strict: bool = False
) -> list[uuid.UUID]:
    """Publish many events in one round trip, in order.  Returns their ids."""
    async_driver = await async_driver_of(connection)
    is_postgres = async_driver.dialect.name == "postgres"
    pack = partial(packed_for_driver if is_postgres else packed, async_driver.driver)
    steps = batch_steps(pack, _known(async_driver), messages, strict=strict, by_columns=is_postgres)
    return await run(async_driver, steps)


async def fetch(
    connection: Any, topic: str, partition: int, from_sequence: int, max_events: int = 500
) -> list[Event]:
    """Events of one partition from a sequence on, as :func:`penstock.fetch` returns them."""
    validation.topic(topic)
    validation.fetched(partition, from_sequence, max_events)
    binds = {"partition": partition, "from_sequence": from_sequence, "max_events": max_events}
    rows = await run_on(connection, asked("fetch", topic=topic, **binds))
    return Event.from_rows(topic, partition, rows[0][-1], rows) if rows else []


async def commit(
    connection: Any,
    member: Membership,
    positions: Iterable[tuple[Lease, int]],
    *,
    after: Sequence[int] | None = None,
) -> None:
    """Move positions forward in the caller's transaction, as :func:`penstock.stream.commit`."""
    await run_on(connection, commit_steps(member, list(positions), after))


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
    await run_on(connection, parking_steps(member, lease, position, after, sequences))


async def finish_redriven(connection: Any, member: Membership, letter: Redriven) -> None:
    """Remove a redriven letter, as :func:`penstock.dead_letters.finish_redriven`."""
    await run_on(connection, finish_steps(member, letter))


def _known(async_driver: AsyncDriver) -> KnownTopics:
    key = async_driver.dialect.key(async_driver.driver)
    return known_to_connection(async_driver.driver) if key is None else KnownTopics(remembered(key))
