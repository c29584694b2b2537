"""`async with delivery.transaction()` on every engine, on the caller's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

import penstock
from penstock import aio, database, log
from penstock.consumer.queue.delivery import DeliveryWork, QueueDelivery
from penstock.consumer.running.async_consumer import AsyncQueueConsumer
from penstock.database.async_connections import connect_async
from penstock.database.mysql.asynchronous import AsyncMySQLConnection
from penstock.errors import InvalidArgument, StaleReceipt, TopicNotFound
from penstock.subscriptions import queue
from tests.contract.databases import ContractDatabase
from tests.contract.kit import end_sessions
from tests.kit.log import Connection, drain, topic
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, acknowledge, filled, pass_time, receive, rows

SENT = "tests/sent"
PATIENCE = 30.0

Handler = Callable[[QueueDelivery], Awaitable[None]]


def prepared(connection: Connection, events: int, **settings: float) -> None:
    """A queue, a topic for what its handlers publish, and a table of the application."""
    filled(connection, events, 1, **settings)
    topic(connection, 1, SENT)
    database.execute(connection, "CREATE TABLE effects (number INT PRIMARY KEY)")


def written(connection: Connection) -> list[int]:
    return [number for (number,) in rows(connection, "SELECT number FROM effects ORDER BY 1")]


def sent(connection: Connection) -> list[int]:
    """What the handlers have published."""
    drain(connection)
    return sorted(int(each.payload) for each in log.fetch(connection, SENT, 0, 1))


async def until(condition: Callable[[], object]) -> None:
    """Wait without blocking the loop on which the handlers run."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def working(
    db: ContractDatabase, handle: Handler, **options: Any
) -> AsyncIterator[AsyncQueueConsumer]:
    """A consumer that runs while the block lasts."""
    stop = asyncio.Event()
    consumer = AsyncQueueConsumer(db.url, QUEUE, handler=handle, idle_seconds=0.05, **options)
    task = asyncio.create_task(consumer.run(stop))
    try:
        yield consumer
    finally:
        stop.set()
        await asyncio.wait_for(task, PATIENCE)


@asynccontextmanager
async def opened(db: ContractDatabase) -> AsyncIterator[Any]:
    connection = await connect_async(db.url, application_name="test")
    try:
        yield connection
    finally:
        await connection.close()


async def write(connection: Any, number: int) -> None:
    await connection.execute("INSERT INTO effects VALUES (%s)", (number,))


@proves("D6 in async workers")
def test_effect_event_and_end_are_one_transaction(db: ContractDatabase, own: Connection) -> None:
    """Over handlers that fail within and behind the block, and lose their connection."""
    prepared(own, 16, first_backoff_seconds=0)
    attempts: dict[int, int] = {}

    async def handle(delivery: QueueDelivery) -> None:
        number = int(delivery.payload)
        attempt = attempts[number] = attempts.get(number, 0) + 1
        async with delivery.transaction() as connection:
            await write(connection, number)
            message = penstock.Message(SENT, b"%d" % number)
            if number % 2:
                await aio.publish_once(connection, message)
            else:
                await aio.publish_batch(connection, [message])
            if attempt == 1 and number % 4 == 0:
                raise ValueError("after the write")
            if attempt == 1 and number == 5:
                end_sessions(db, own, "penstock mails")
        if number % 4 == 1 and attempt == 1:
            raise ValueError("after the commit")

    async def work() -> None:
        async with working(db, handle, concurrency=4):
            await until(lambda: len(written(own)) == 16 and not queue.statistics(own, QUEUE).size)

    asyncio.run(work())
    assert written(own) == sent(own) == list(range(1, 17))


def late(db: ContractDatabase, own: Connection) -> list[BaseException]:
    """A worker is paused until another one has its event, and then writes.  Its errors."""
    prepared(own, 1, visibility_seconds=30)
    raised: list[BaseException] = []

    async def work() -> None:
        begun, gate = asyncio.Event(), asyncio.Event()

        async def handle(delivery: QueueDelivery) -> None:
            begun.set()
            await gate.wait()
            try:
                async with delivery.transaction() as connection:
                    await write(connection, 1)
            except StaleReceipt as error:
                raised.append(error)
                raise

        async with working(db, handle):
            await asyncio.wait_for(begun.wait(), PATIENCE)
            pass_time(own, 31)
            (other,) = receive(own)
            gate.set()
            await until(lambda: raised or written(own))
        acknowledge(own, [other])

    asyncio.run(work())
    return raised


@proves("D6 in async workers")
def test_who_lost_the_event_changes_nothing(db: ContractDatabase, own: Connection) -> None:
    """Guard: the receipt is taken first, in the transaction of the writes."""
    assert len(late(db, own)) == 1
    assert written(own) == []


@proves("D6 in async workers", guard="the receipt is first")
@pytest.mark.long_on("mariadb")
def test_without_the_fence_a_paused_worker_writes(
    db: ContractDatabase, own: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the transaction does not begin with the acknowledgement."""

    def nothing(claim: DeliveryWork, position: int) -> Iterator[None]:
        yield from ()

    monkeypatch.setattr(DeliveryWork, "finish_steps", nothing)
    assert late(db, own) == []
    assert written(own) == [1]


async def waits_after_cancel(db: ContractDatabase) -> bool:
    """A coroutine is cancelled while its statement waits for a lock: whether it goes on waiting."""
    async with opened(db) as holder, opened(db) as other:

        async def insert() -> None:
            async with other.transaction():
                await write(other, 1)
                await write(other, 7)

        async with holder.transaction():
            await write(holder, 7)
            task = asyncio.create_task(insert())
            await asyncio.to_thread(db.wait_until_blocked, getattr(other, "driver", other))
            task.cancel()
            await asyncio.wait([task], timeout=1)
            is_waiting = not task.done()
        with suppress(asyncio.CancelledError):
            await task
        assert is_waiting or other.broken == (db.engine != "postgres")
    return is_waiting


@proves("D6 in async workers")
def test_a_cancelled_coroutine_does_not_wait_for_its_statement(
    db: ContractDatabase, own: Connection
) -> None:
    """Guard: the connection is cut, and then the server rolls back."""
    prepared(own, 0)
    assert not asyncio.run(waits_after_cancel(db))
    assert written(own) == [7]


@proves("D6 in async workers", guard="the cut")
@pytest.mark.long_on("mariadb")
def test_without_the_cut_it_waits(
    db: ContractDatabase, own: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: nobody wakes the thread.  psycopg has its own way to do that."""
    if db.engine == "postgres":
        pytest.skip("psycopg cancels the statement")
    monkeypatch.setattr(AsyncMySQLConnection, "_cut", lambda connection: None)
    prepared(own, 0)
    assert asyncio.run(waits_after_cancel(db))
    assert written(own) == [7]


@proves("D6 in async workers")
def test_an_error_that_is_passed_over_commits_nothing(
    db: ContractDatabase, own: Connection
) -> None:
    """A block that has lost its transaction and goes on: nothing of it stays, the event neither."""
    prepared(own, 1, first_backoff_seconds=0, max_failures=1)
    end = "SELECT 1 / 0" if db.engine == "postgres" else "/*! ROLLBACK */"

    async def handle(delivery: QueueDelivery) -> None:
        async with delivery.transaction() as connection:
            await write(connection, 1)
            with suppress(Exception):
                await connection.execute(end)
            with suppress(Exception):
                await write(connection, 2)

    async def work() -> None:
        async with working(db, handle):
            await until(lambda: queue.statistics(own, QUEUE).dead)

    asyncio.run(work())
    assert written(own) == []


def test_the_connection_of_a_handler(db: ContractDatabase, own: Connection) -> None:
    """It has the part of psycopg's that handlers need, and takes what penstock.aio offers."""
    prepared(own, 0)

    async def use() -> None:
        async with opened(db) as connection:
            for number in (1, 2, 3):
                await write(connection, number)
            found = await connection.execute("SELECT number FROM effects ORDER BY number")
            assert (await found.fetchone(), await found.fetchall()) == ((1,), [(2,), (3,)])
            assert (await found.fetchone(), found.rowcount) == (None, 3)
            sql = "UPDATE effects SET number = number + 10 WHERE number > %(above)s"
            assert (await connection.execute(sql, {"above": 1})).rowcount == 2
            with pytest.raises(TopicNotFound):
                await aio.publish(connection, "tests/none", b"1")
            async with connection.transaction():
                await aio.publish(connection, SENT, b"1")
            with pytest.raises(InvalidArgument, match="is asynchronous"):
                penstock.publish(connection, SENT, b"2")
        assert connection.closed

    asyncio.run(use())
    assert (written(own), sent(own)) == ([1, 12, 13], [1])
