"""Single publishes that wait go together: one batch, one commit, and each is answered after it.

A publish in a transaction of its own costs about seven times as much.  Nobody waits on purpose:
while a connection is free, a publish goes at once, and what comes while all are busy goes together.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

import penstock
from consumers.gateway.answers import Refused
from consumers.gateway.pool import Pool, Principal
from consumers.gateway.turns import Turn, Turns
from penstock import database
from penstock.errors import AccountNotFound, BackPressure, PenstockError, TopicNotFound, UsageError
from penstock.publishing.refusals import refusals, require_possible
from penstock.records import Message

MOST_EVENTS = 1_000
MOST_BYTES = 4_194_304
#: Of an account, so much may wait.
MOST_WAITING_BYTES = 67_108_864
#: Of a batch that was refused, so many parts are tried; what is still mixed then is refused.
MOST_TRIES = 128
#: After these, nothing was written.
_REFUSALS = (UsageError, BackPressure)
_NAMED = re.compile(r"event \d+(?:: | for topic \"[^\"]*\": )")


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
    """Publishes for all callers; accounts take turns by what they publish, in bytes."""

    def __init__(self, pool: Pool, at_a_time: int) -> None:
        self._pool = pool
        self._turns = Turns(at_a_time)
        #: Of each account, what waits by the key that was shown.
        self._lines: dict[str, OrderedDict[Principal, _Line]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self.batches = 0
        self.events = 0

    async def publish(self, principal: Principal, message: Message) -> UUID:
        """Publish one event; returns its id once it is committed."""
        require_possible(message)
        one = _Unpublished(message, asyncio.get_running_loop().create_future())
        if self._size(principal.account_id) + one.size > MOST_WAITING_BYTES:
            raise Refused(429, "too much of this account waits", {"Retry-After": "1"})
        lines = self._lines.setdefault(principal.account_id, OrderedDict())
        if principal not in lines:
            lines[principal] = _Line()
            self._turns.wait(principal.account_id)
        line = lines[principal]
        line.waiting.append(one)
        line.size += one.size
        self._go_on()
        one.published.add_done_callback(_seen)
        # Shielded: the event may be in a batch already when its caller goes away.
        return await asyncio.shield(one.published)

    def _size(self, account_id: str) -> int:
        present = self._lines.get(account_id)
        return sum(each.size for each in present.values()) if present else 0

    def _go_on(self) -> None:
        while (turn := self._turns.begin()) is not None:
            lines = self._lines[turn.account]
            principal, line = lines.popitem(last=False)
            batch = _taken(line)
            if line.waiting:
                lines[principal] = line  # at the end: the other keys of the account come first
                self._turns.wait(turn.account)
            elif not lines:
                del self._lines[turn.account]
            self._turns.charge(turn, sum(each.size for each in batch))
            task = asyncio.create_task(self._send(principal, batch))
            self._running.add(task)
            task.add_done_callback(partial(self._done, turn))

    def _done(self, turn: Turn, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._turns.end(turn)
        self._go_on()

    async def _send(self, principal: Principal, batch: list[_Unpublished]) -> None:
        messages = [each.message for each in batch]
        try:
            try:
                made = await self._run(principal, penstock.publish_batch, messages)
            except _REFUSALS as error:
                if isinstance(error, AccountNotFound) or len(batch) == 1:
                    raise
                made = await self._run(principal, publish_apart, messages)
        except Exception as error:
            # Whether it is there is not known, or it is the same for all: nothing is sent again.
            for one in batch:
                _answer(one, _alone(error))
            return
        self.batches += 1
        self.events += sum(isinstance(each, UUID) for each in made)
        for one, result in zip(batch, made, strict=True):
            _answer(one, result)

    async def _run(
        self, principal: Principal, work: Callable[..., Any], messages: list[Message]
    ) -> list[UUID | Exception]:
        made: list[UUID | Exception] = await self._pool.run(
            principal, partial(work, messages=messages)
        )
        return made


def publish_apart(connection: Any, messages: Sequence[Message]) -> list[UUID | Exception]:
    """Publish what can be published of a batch that was refused, in the transaction that is open.

    Returns for each event its id, or why it was refused.  What only the database can refuse is
    halved, and events of a topic that is missing or has too much waiting fail together.
    """
    made: list[UUID | Exception | None] = [*refusals(connection, messages)]
    left = [[place for place, each in enumerate(made) if each is None]]
    tries = 0
    while left:
        some = left.pop()
        results: list[Any]
        if tries < MOST_TRIES:
            tries += 1
            given = [messages[place] for place in some]
            try:
                with _undone(connection):
                    results = list(penstock.publish_batch(connection, given))
            except _REFUSALS as error:
                if isinstance(error, AccountNotFound):
                    raise
                parts = _parts(some, messages, error)
                left += parts
                results = [] if parts else [_alone(error)] * len(some)
        else:
            busy = "too many events that came together with this one were refused"
            results = [Refused(503, busy, {"Retry-After": "1"})] * len(some)
        for place, result in zip(some, results, strict=False):
            made[place] = result
    return [each for each in made if each is not None]


def _parts(some: list[int], messages: Sequence[Message], error: PenstockError) -> list[list[int]]:
    """How to try again what was refused together; nothing: all of it stays refused."""
    by_topic = defaultdict(list)
    for place in some:
        by_topic[messages[place].topic].append(place)
    if len(by_topic) > 1:
        return list(by_topic.values())
    if len(some) == 1 or isinstance(error, TopicNotFound | BackPressure):
        return []
    half = len(some) // 2
    return [some[half:], some[:half]]  # the first half is tried first


def _undone(connection: Any) -> AbstractContextManager[Any]:
    """What is refused in this block is undone, and the transaction goes on.

    A procedure of MySQL undoes itself.
    """
    if database.dialect_of(connection) == "mysql":
        return nullcontext()
    block: AbstractContextManager[Any] = connection.transaction()
    return block


def _alone(error: Exception) -> Exception:
    """As the caller of a single publish expects it, without the number in the batch."""
    if not isinstance(error, _REFUSALS):
        return error
    return type(error)(_NAMED.sub("", error.message, count=1), hint=error.hint)


def _answer(one: _Unpublished, result: UUID | Exception) -> None:
    if one.published.done():
        return
    if isinstance(result, Exception):
        one.published.set_exception(result)
    else:
        one.published.set_result(result)


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
