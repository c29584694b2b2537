"""The asynchronous client of the gateway, on asyncio's own connections."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, TypeVar
from uuid import UUID

from penstock.http import calls
from penstock.http.address import GatewayAddress
from penstock.http.async_connection import AsyncConnection
from penstock.http.calls import NewMessage
from penstock.http.heard import HeardEvent, LineReader, ServerSentEvent, event_of, heard
from penstock.http.streams import SILENCE_SECONDS, Resumed, StreamRefused
from penstock.http.verbs import AnswerLost, Attempts, HttpReply, HttpVerb
from penstock.records import Event, PartitionRange, Published
from penstock.subscriptions.dead_letters import DeadLetter
from penstock.subscriptions.queue import Delivery, QueueStatistics, Receipt

T = TypeVar("T")

_IDLE_SECONDS = 60.0
_MOST_IDLE = 8


class AsyncGatewayClient:
    """The calls of :class:`penstock.http.GatewayClient` for asyncio, in one event loop."""

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        timeout: float = 30.0,
        attempts: int = 5,
    ) -> None:
        self.address = GatewayAddress.of(url, key)
        self._timeout = timeout
        self._attempts = max(1, attempts)
        self._tls = ssl.create_default_context() if self.address.is_secure else None
        self._idle: list[tuple[float, AsyncConnection]] = []

    def __repr__(self) -> str:
        return f"AsyncGatewayClient({self.address.name}, account {self.address.account})"

    async def __aenter__(self) -> AsyncGatewayClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections that are not in use."""
        idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    async def publish(
        self, topic: str, payload: bytes, *, resend: bool = True, **options: Any
    ) -> Published:
        """Publish one event; ``options`` are the other fields of a :class:`NewMessage`.

        It carries a dedup key, so that it is sent again when its answer was lost, and is there
        once.  Without ``resend`` it has none: it is faster, because the gateway commits it together
        with others, and after a lost answer it may be there or not (GatewayUnavailable).

        With ``headers`` it goes as a batch, which does not tell duplicates: then ``duplicate`` is
        False also for an event that was there by its ``dedup_key``; its id is the first one's.
        """
        return await self.call(calls.publish(topic, NewMessage(payload, **options), resend=resend))

    async def publish_batch(
        self, topic: str, messages: Iterable[NewMessage], *, resend: bool = True
    ) -> list[UUID]:
        """Publish many events of one topic: all or none."""
        return await self.call(calls.publish_batch(topic, messages, resend=resend))

    async def fetch(
        self, topic: str, partition: int = 0, sequence: int = 1, max_events: int = 100
    ) -> list[Event]:
        """Events of a partition from a sequence on."""
        return await self.call(calls.fetch(topic, partition, sequence, max_events))

    async def partitions(self, topic: str) -> list[PartitionRange]:
        """Which sequences of each partition can be fetched."""
        return await self.call(calls.partitions(topic))

    async def topics(self) -> list[str]:
        """The addresses of the account's topics."""
        found, after = await self.call(calls.topics())
        while after is not None:
            more, after = await self.call(calls.topics(after))
            found += more
        return found

    async def create_topic(self, topic: str, partitions: int = 1) -> bool:
        """Make a topic; False when it is there already."""
        return await self.call(calls.create_topic(topic, partitions))

    async def create_queue(self, queue: str) -> bool:
        """Make a queue; False when it is there already."""
        return await self.call(calls.create_queue(queue))

    async def create_subscription(
        self, subscription: str, topics: Sequence[str], start: str = "earliest"
    ) -> bool:
        """Make a subscription, or add topics to it; False when it has all of them."""
        return await self.call(calls.create_subscription(subscription, topics, start))

    async def receive(
        self,
        queue: str,
        max_events: int = 1,
        *,
        visibility_seconds: float | None = None,
        wait_seconds: float = 0.0,
    ) -> list[Delivery]:
        """Receive messages; with ``wait_seconds`` (at most 30) wait for the first one."""
        return await self.call(calls.receive(queue, max_events, visibility_seconds, wait_seconds))

    async def acknowledge(
        self, queue: str, receipts: Iterable[Receipt | str], *, partly: bool = False
    ) -> list[bool]:
        """Finish messages: all or none, or with ``partly`` those whose receipt is good."""
        return await self.call(calls.settle("acknowledge", queue, receipts, partly))

    async def release(
        self, queue: str, receipts: Iterable[Receipt | str], *, partly: bool = False
    ) -> list[bool]:
        """Put messages back that nobody began."""
        return await self.call(calls.settle("release", queue, receipts, partly))

    async def reject(
        self,
        queue: str,
        receipts: Iterable[Receipt | str],
        reason: str = "",
        *,
        delay_seconds: float | None = None,
        partly: bool = False,
    ) -> list[bool]:
        """Record that messages have failed."""
        more = {"reason": reason, "delay_seconds": delay_seconds}
        return await self.call(calls.settle("reject", queue, receipts, partly, **more))

    async def extend(
        self, queue: str, receipts: Iterable[Receipt | str], visibility_seconds: float
    ) -> list[Receipt]:
        """Hide messages for longer, from now on.  Returns the new receipts."""
        return await self.call(calls.extend(queue, receipts, visibility_seconds))

    async def counts(self, queue: str) -> QueueStatistics:
        """How many messages a queue has, by state."""
        return await self.call(calls.counts(queue))

    async def dead_letters(self, queue: str, **filters: Any) -> list[DeadLetter]:
        """The dead letters of a queue, newest first.

        Filters: ``max_rows``, ``before_id``, ``key``, ``type``, ``state``.
        """
        return await self.call(calls.dead_letters(queue, filters))

    async def redrive(self, queue: str, letters: Iterable[int] | None = None) -> int:
        """Make dead letters deliverable again, all without ``letters``.  Returns how many."""
        return await self.call(calls.redrive(queue, letters))

    async def commit(self, subscription: str, events: Iterable[HeardEvent]) -> None:
        """These events are done, and all before them in their partitions."""
        await self.call(calls.commit(subscription, events))

    async def tail(
        self, topic: str, *, start: str = "latest", partition: int | None = None, after: str = ""
    ) -> AsyncIterator[Event]:
        """Events of a topic as they come, each once and in order; it connects again by itself.

        ``after`` is a place, ``history.partition.sequence``, with more pairs of partition and
        sequence behind a ``-``.
        """
        resumed = Resumed(
            lambda last: calls.tail(topic, start, partition, last or after),
            self._attempts,
            self.address,
        )
        async for each in self._resumed(resumed):
            yield event_of(each.data)

    async def listen(
        self,
        subscription: str,
        *,
        max_uncommitted: int | None = None,
        commit_seconds: float | None = None,
    ) -> AsyncIterator[HeardEvent]:
        """Events of a subscription as they come: `commit` each when it is done.

        What is not committed when the connection ends comes again.
        """
        resumed = Resumed(
            lambda _: calls.listen(subscription, max_uncommitted, commit_seconds),
            self._attempts,
            self.address,
        )
        async for each in self._resumed(resumed):
            yield heard(each.data)

    async def call(self, verb: HttpVerb[T]) -> T:
        """Make a call, again where that is safe."""
        attempts = Attempts(verb, self._attempts, self.address.name)
        while True:
            try:
                reply = await self._exchange(verb)
            except AnswerLost as error:
                await asyncio.sleep(attempts.lost(error))
                continue
            wait = attempts.answered(reply)
            if wait is None:
                return verb.read(reply)
            await asyncio.sleep(wait)

    async def _exchange(self, verb: HttpVerb[Any]) -> HttpReply:
        connection = self._taken()
        try:
            path, headers = self.address.base + verb.path, self.address.headers(verb.headers)
            seconds = self._timeout + verb.wait_seconds
            reply = await connection.call(verb.method, path, verb.body, headers, seconds)
        except BaseException:
            connection.close()
            raise
        if connection.is_open and len(self._idle) < _MOST_IDLE:
            self._idle.append((time.monotonic(), connection))
        else:
            connection.close()
        return reply

    def _taken(self) -> AsyncConnection:
        while self._idle:
            since, connection = self._idle.pop()
            if connection.is_open and time.monotonic() - since < _IDLE_SECONDS:
                return connection
            connection.close()
        return AsyncConnection(self.address, self._tls)

    async def _resumed(self, resumed: Resumed) -> AsyncIterator[ServerSentEvent]:
        while True:
            try:
                async with aclosing(self._stream(resumed.verb())) as stream:
                    async for each in stream:
                        if resumed.took(each):
                            yield each
            except AnswerLost as error:
                await asyncio.sleep(resumed.lost(error))
            except StreamRefused as error:
                await asyncio.sleep(resumed.refused(error))
            else:
                await asyncio.sleep(resumed.ended())

    async def _stream(self, verb: HttpVerb[Any]) -> AsyncGenerator[ServerSentEvent, None]:
        """One stream, until it ends."""
        connection = AsyncConnection(self.address, self._tls)
        try:
            path, headers = self.address.base + verb.path, self.address.headers(verb.headers)
            head = await connection.begin(verb.method, path, verb.body, headers, self._timeout)
            if head.status != 200:  # noqa: PLR2004
                reply = HttpReply(head.status, head.headers, await connection.rest(head))
                raise StreamRefused(reply)
            lines = LineReader()
            async for line in connection.lines(SILENCE_SECONDS):
                each = lines.feed(line)
                if each is not None:
                    yield each
        finally:
            connection.close()
