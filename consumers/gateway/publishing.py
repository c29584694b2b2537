"""Single publishes that wait go together: one batch, one commit, and each is answered after it.

A publish in a transaction of its own costs about seven times as much.  Nobody waits on purpose:
while a connection is free, a publish goes at once, and what comes while all are busy goes together.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

import penstock
from consumers.gateway.answers import Refused
from consumers.gateway.pool import Pool, Principal
from penstock.errors import AccountNotFound, UsageError
from penstock.records import Message

MOST_EVENTS = 1_000
MOST_BYTES = 4_194_304
#: Of an account, so much may wait.
MOST_WAITING_BYTES = 67_108_864
_NAMED = re.compile(r"event (\d+): ")


@dataclass(slots=True, eq=False)
class _Unpublished:
    message: Message
    published: asyncio.Future[UUID]

    @property
    def size(self) -> int:
        return len(self.message.payload) + 256


@dataclass(slots=True)
class _Line:
    """What waits of one account and key."""

    waiting: deque[_Unpublished] = field(default_factory=deque)
    size: int = 0


class Coalescer:
    """Publishes for all callers; accounts take turns, and a turn is limited in bytes."""

    def __init__(self, pool: Pool, at_a_time: int) -> None:
        self._pool = pool
        self._free = at_a_time
        self._lines: OrderedDict[Principal, _Line] = OrderedDict()
        self._running: set[asyncio.Task[None]] = set()
        self.batches = 0
        self.events = 0

    async def publish(self, principal: Principal, message: Message) -> UUID:
        """Publish one event; returns its id once it is committed."""
        one = _Unpublished(message, asyncio.get_running_loop().create_future())
        waiting = self._lines[principal].size if principal in self._lines else 0
        if waiting + one.size > MOST_WAITING_BYTES:
            raise Refused(429, "too much of this account waits", {"Retry-After": "1"})
        line = self._lines.setdefault(principal, _Line())
        line.waiting.append(one)
        line.size += one.size
        self._go_on()
        one.published.add_done_callback(_seen)
        # Shielded: the event may be in a batch already when its caller goes away.
        return await asyncio.shield(one.published)

    def _go_on(self) -> None:
        while self._free and self._lines:
            principal, line = self._lines.popitem(last=False)
            batch = _taken(line)
            if line.waiting:
                self._lines[principal] = line  # at the end: the others come first
            self._free -= 1
            task = asyncio.create_task(self._send(principal, batch))
            self._running.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._free += 1
        self._go_on()

    async def _send(self, principal: Principal, batch: list[_Unpublished]) -> None:
        left = [batch]
        while left:
            some = left.pop()
            messages = [each.message for each in some]
            try:
                event_ids = await self._pool.run(
                    principal, partial(penstock.publish_batch, messages=messages)
                )
            except Exception as error:
                left += _refused(some, error)
                continue
            self.batches += 1
            self.events += len(some)
            for one, event_id in zip(some, event_ids, strict=True):
                if not one.published.done():
                    one.published.set_result(event_id)


def _refused(batch: list[_Unpublished], error: Exception) -> list[list[_Unpublished]]:
    """Answer the one that was at fault.  Returns the rest, to be sent again.

    Only after a refusal that the database, or a check before it, has made: then nothing was
    written.  After anything else it is not known, and nothing is sent again.
    """
    if not isinstance(error, UsageError) or isinstance(error, AccountNotFound):
        _fail(batch, error)
        return []
    named = _NAMED.match(error.message)
    place = int(named[1]) if named is not None else len(batch)
    # As the caller of a single publish expects it, without the number in the batch.
    told = type(error)(_NAMED.sub("", error.message, count=1), hint=error.hint)
    if place < len(batch):
        _fail(batch[place : place + 1], told)
        left = batch[:place] + batch[place + 1 :]
        return [left] if left else []
    if len(batch) == 1:
        _fail(batch, told)
        return []
    half = len(batch) // 2
    return [batch[half:], batch[:half]]  # the first half is sent first


def _fail(batch: list[_Unpublished], error: Exception) -> None:
    for one in batch:
        if not one.published.done():
            one.published.set_exception(error)


def _seen(published: asyncio.Future[UUID]) -> None:
    """Its caller may have gone, and then nobody else looks at the error."""
    if not published.cancelled():
        published.exception()


def _taken(line: _Line) -> list[_Unpublished]:
    batch: list[_Unpublished] = []
    size = 0
    while line.waiting and len(batch) < MOST_EVENTS and (not batch or size < MOST_BYTES):
        one = line.waiting.popleft()
        line.size -= one.size
        if not one.published.cancelled():
            size += one.size
            batch.append(one)
    return batch
