"""A consumer for asyncio: its handlers run on the caller's event loop, its database work does not.

    consumer = penstock.AsyncConsumer(url, "billing", handler=bill, concurrency=20)
    await consumer.run(stop)

Threads do the polls, commits and heartbeats.  So an event loop that is blocked for a while delays
handlers, but the consumer loses no lease.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from penstock.consumer.handlers.options import ConsumerOptions, taking
from penstock.consumer.queue.consumer import QueueConsumer
from penstock.consumer.queue.options import QueueOptions
from penstock.consumer.stream.consumer import Consumer
from penstock.errors import InvalidArgument
from penstock.leases.keeper import Keeper
from penstock.leases.loop import LoopStats
from penstock.leases.signals import stopped_by_signals_on_loop

T = TypeVar("T")


class _OnLoop:
    """What is the same for streams and queues."""

    _consumer: Consumer | QueueConsumer

    @property
    def stats(self) -> LoopStats:
        """What this consumer has done since it was made."""
        return self._consumer.stats

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Work until ``stop`` is set, or the task is cancelled.

        Either way the events in hand are finished and committed first.  A second cancellation ends
        the wait for them.  Without ``stop``, SIGINT (Ctrl-C) and SIGTERM end it as well.
        """
        with stopped_by_signals_on_loop(stop) as asked:
            ended = threading.Event()
            stopping = asyncio.ensure_future(asked.wait())
            stopping.add_done_callback(lambda _: ended.set())
            try:
                await self._in_thread(lambda: self._consumer.run(ended), ended.set)
            finally:
                stopping.cancel()

    async def run_until_idle(self) -> int:
        """Handle the events that are there now, as :meth:`penstock.Consumer.run_until_idle`."""
        return await self._in_thread(self._consumer.run_until_idle, lambda: None)

    async def _in_thread(self, work: Callable[[], T], ask_to_end: Callable[[], object]) -> T:
        """Run in a separate thread: the threads of asyncio.to_thread belong to the application."""
        loop = asyncio.get_running_loop()
        self._consumer.executor.use_loop(loop)
        done: asyncio.Future[T] = loop.create_future()

        def answer(method: Callable[[Any], None], value: Any) -> None:
            if not done.done():
                method(value)

        def run() -> None:
            try:
                result = work()
            except BaseException as error:
                loop.call_soon_threadsafe(answer, done.set_exception, error)
            else:
                loop.call_soon_threadsafe(answer, done.set_result, result)

        threading.Thread(target=run, name="penstock-consumer", daemon=True).start()
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            ask_to_end()
            await done
            raise


class AsyncConsumer(_OnLoop):
    """:class:`penstock.Consumer` for ``async def`` handlers; it takes the same options."""

    _consumer: Consumer

    @taking(ConsumerOptions)
    def __init__(self, url: str | None, subscription: str, options: ConsumerOptions) -> None:
        self._consumer = Consumer.of(url, subscription, options)
        _require_async(self._consumer, "penstock.Consumer")

    @property
    def keeper(self) -> Keeper:
        """The keeper of its leases."""
        return self._consumer.keeper


class AsyncQueueConsumer(_OnLoop):
    """:class:`penstock.QueueConsumer` for ``async def`` handlers; it takes the same options."""

    @taking(QueueOptions)
    def __init__(self, url: str | None, subscription: str, options: QueueOptions) -> None:
        self._consumer = QueueConsumer.of(url, subscription, options)
        _require_async(self._consumer, "penstock.QueueConsumer")


def _require_async(consumer: Consumer | QueueConsumer, other: str) -> None:
    if not consumer.is_async:
        raise InvalidArgument(
            "the handler is not a coroutine function",
            hint=f"write it as `async def`, or use {other}",
        )
