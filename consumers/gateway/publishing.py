"""Single publishes that wait go together: one batch, one commit, and each is answered after it.

A publish in a transaction of its own costs about seven times as much.  Nobody waits on purpose:
while a connection is free, a publish goes at once, and what comes while all are busy goes together.

A publish that may be repeated brings a claim: a text that no second event has for some minutes.
Claims wait for those of other transactions, so such publishes have lines of their own.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import penstock
from consumers.gateway.answers import Refused
from consumers.gateway.pool import Pool, Principal
from consumers.gateway.turns import Turn, Turns
from penstock import database
from penstock.driver_errors import errno_of, sqlstate_of
from penstock.errors import AccountNotFound, BackPressure, TopicNotFound, UsageError
from penstock.publishing import recent_sends
from penstock.publishing.event_ids import uuid7s
from penstock.publishing.recent_sends import Send
from penstock.publishing.refusals import refusals, require_possible
from penstock.records import Message

MOST_EVENTS = 1_000
#: So many are joined at most: a batch of SQS.
_MOST_JOINED = 10
MOST_BYTES = 4_194_304
#: Of an account, so much may wait.
MOST_WAITING_BYTES = 67_108_864
#: Of a batch that was refused, so many parts are tried; what is still mixed then is refused.
MOST_TRIES = 128
#: A text that was claimed is free again after so long: what SQS promises.
CLAIM_SECONDS = 300.0
#: After these, nothing was written.
_REFUSALS = (UsageError, BackPressure)
#: Nor when a lock was waited for too long: PostgreSQL's and MySQL's error.  That takes as long as
#: many other tries.
_LOCKED = frozenset({"55P03", 1205})
_TRIES_OF_A_WAIT = 8
_NAMED = re.compile(r"event \d+(?:: | for topic \"[^\"]*\": )")


class Outgoing(NamedTuple):
    """An event to publish, and the text that makes a repetition of it known as one."""

    message: Message
    claim: str | None = None


@dataclass(slots=True, eq=False)
class _Unpublished:
    outgoing: Outgoing
    published: asyncio.Future[UUID]
    #: It goes in the batch of the one before.
    is_joined: bool = False

    @property
    def size(self) -> int:
        return len(self.outgoing.message.payload) + 256


@dataclass(slots=True)
class _Line:
    """What waits of one account and key."""

    waiting: deque[_Unpublished] = field(default_factory=deque)
    size: int = 0


#: By which key, and whether the publishes bring claims.
_Place = tuple[Principal, bool]


class Coalescer:
    """Publishes for all callers; accounts take turns by what they publish, in bytes."""

    def __init__(self, pool: Pool, at_a_time: int) -> None:
        self._pool = pool
        self._turns = Turns(at_a_time)
        #: Of each account, what waits by the key that was shown.
        self._lines: dict[str, OrderedDict[_Place, _Line]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self.batches = 0
        self.events = 0

    async def publish(self, principal: Principal, message: Message) -> UUID:
        """Publish one event; returns its id once it is committed."""
        (published,) = self.enqueue(principal, [Outgoing(message)])
        return await published

    def enqueue(
        self, principal: Principal, wanted: Iterable[Outgoing]
    ) -> list[asyncio.Future[UUID]]:
        """Publish events in one batch, in their order.  Each has a result of its own.

        Either all bring a claim or none does.  The result is the id of the event that has the
        claim: an earlier one for a repetition.
        """
        loop = asyncio.get_running_loop()
        given = [_Unpublished(each, loop.create_future()) for each in wanted]
        possible: list[_Unpublished] = []
        for each in given:
            each.published.add_done_callback(_seen)
            try:
                require_possible(each.outgoing.message)
            except UsageError as error:
                each.published.set_exception(error)
                continue
            each.is_joined = bool(possible)
            possible.append(each)
        if possible:
            self._wait(principal, possible)
        # Shielded: the event may be in a batch already when its caller goes away.
        return [asyncio.shield(each.published) for each in given]

    def _wait(self, principal: Principal, given: list[_Unpublished]) -> None:
        size = sum(each.size for each in given)
        if self._size(principal.account_id) + size > MOST_WAITING_BYTES:
            raise Refused(429, "too much of this account waits", {"Retry-After": "1"})
        place = (principal, given[0].outgoing.claim is not None)
        lines = self._lines.setdefault(principal.account_id, OrderedDict())
        if place not in lines:
            lines[place] = _Line()
            self._turns.wait(principal.account_id)
        line = lines[place]
        line.waiting.extend(given)
        line.size += size
        self._go_on()

    def _size(self, account_id: str) -> int:
        present = self._lines.get(account_id)
        return sum(each.size for each in present.values()) if present else 0

    def _go_on(self) -> None:
        while (turn := self._turns.begin()) is not None:
            lines = self._lines[turn.account]
            place, line = lines.popitem(last=False)
            batch = _taken(line)
            if line.waiting:
                lines[place] = line  # at the end: the other keys of the account come first
                self._turns.wait(turn.account)
            elif not lines:
                del self._lines[turn.account]
            self._turns.charge(turn, sum(each.size for each in batch))
            task = asyncio.create_task(self._send(place[0], batch))
            self._running.add(task)
            task.add_done_callback(partial(self._done, turn))

    def _done(self, turn: Turn, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._turns.end(turn)
        self._go_on()

    async def _send(self, principal: Principal, batch: list[_Unpublished]) -> None:
        wanted = [each.outgoing for each in batch]
        try:
            try:
                made = await self._run(principal, publish_together, wanted)
            except Exception as error:
                if not _is_refusal(error) or len(batch) == 1:
                    raise
                made = await self._run(principal, publish_apart, wanted)
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
        self, principal: Principal, work: Callable[..., Any], wanted: list[Outgoing]
    ) -> list[UUID | Exception]:
        made: list[UUID | Exception] = await self._pool.run(principal, partial(work, wanted=wanted))
        return made


def publish_together(connection: Any, wanted: Sequence[Outgoing]) -> list[UUID]:
    """Publish events, but for those whose claim an earlier one has.  Returns the ids of all."""
    messages = [each.message for each in wanted]
    if wanted[0].claim is None:
        return penstock.publish_batch(connection, messages)
    ids = uuid7s(len(wanted))
    sends = [
        Send(each.message.topic, each.claim or "", event_id)
        for each, event_id in zip(wanted, ids, strict=True)
    ]
    originals = recent_sends.claim(connection, sends, CLAIM_SECONDS)
    fresh = [place for place, original in enumerate(originals) if original is None]
    try:
        penstock.publish_batch(
            connection, [replace(messages[place], event_id=ids[place]) for place in fresh]
        )
    except Exception as error:
        if _is_refusal(error):
            recent_sends.release(connection, [sends[place] for place in fresh])
        raise
    return [original or mine for original, mine in zip(originals, ids, strict=True)]


def publish_apart(connection: Any, wanted: Sequence[Outgoing]) -> list[UUID | Exception]:
    """Publish what can be published of a batch that was refused, in the transaction that is open.

    Returns for each event its id, or why it was refused.  What only the database can refuse is
    halved, and events of a topic that is missing or has too much waiting fail together.
    """
    messages = [each.message for each in wanted]
    made: list[UUID | Exception | None] = [*refusals(connection, messages)]
    left = [[place for place, each in enumerate(made) if each is None]]
    tries = 0
    while left:
        some = left.pop()
        results: list[Any]
        if tries < MOST_TRIES:
            tries += 1
            try:
                with _undone(connection):
                    results = list(publish_together(connection, [wanted[place] for place in some]))
            except Exception as error:
                if not _is_refusal(error):
                    raise
                tries += 0 if isinstance(error, _REFUSALS) else _TRIES_OF_A_WAIT
                parts = _parts(some, messages, error)
                left += parts
                results = [] if parts else [_alone(error)] * len(some)
        else:
            busy = "too many events that came together with this one were refused"
            results = [Refused(503, busy, {"Retry-After": "1"})] * len(some)
        for place, result in zip(some, results, strict=False):
            made[place] = result
    return [each for each in made if each is not None]


def _is_refusal(error: Exception) -> bool:
    """Whether nothing was written, and what is meant may be one event of many."""
    if isinstance(error, AccountNotFound):
        return False
    return isinstance(error, _REFUSALS) or (errno_of(error) or sqlstate_of(error)) in _LOCKED


def _parts(some: list[int], messages: Sequence[Message], error: Exception) -> list[list[int]]:
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
    while line.waiting and (
        not batch
        or line.waiting[0].is_joined
        or (len(batch) < MOST_EVENTS - _MOST_JOINED and size < MOST_BYTES)
    ):
        one = line.waiting.popleft()
        line.size -= one.size
        if not one.published.cancelled():
            size += one.size
            batch.append(one)
    return batch
