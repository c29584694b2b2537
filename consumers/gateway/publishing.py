"""Single publishes that wait go together: one batch, one commit, and each is answered after it.

A publish in a transaction of its own costs about seven times as much.  Nobody waits on purpose:
while a connection is free, a publish goes at once, and what comes while all are busy goes together.

Plain publishes of all accounts share a transaction: the database checks each account by itself, and
leaves out what it may not or does not take.  That the account sends again in a transaction of its
own, which says what is wrong.  It takes turns for that in a lane where every batch is of one
account, so no other account waits for it.

A publish that may be repeated brings a claim: a text that no second event has for some minutes.
Claims wait for those of other transactions, so such publishes have lines of their own.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

import penstock
from consumers.gateway.answers import Refused
from consumers.gateway.claims import Claims, calls_of
from consumers.gateway.lanes import MOST_ACCOUNTS, Outgoing, Part, PublishLane, Unpublished
from consumers.gateway.pool import Pool, Principal
from consumers.gateway.turns import Turn
from penstock import database
from penstock.driver_errors import driver_error, errno_of, sqlstate_of
from penstock.errors import AccountNotFound, BackPressure, TopicNotFound, UsageError
from penstock.publishing import recent_sends
from penstock.publishing.for_accounts import AccountTopic, is_plain, publish_for_accounts
from penstock.publishing.refusals import refusals
from penstock.publishing.rows import row
from penstock.records import Message

#: Of an account, so much may wait.
MOST_WAITING_BYTES = 67_108_864
#: Of a batch that was refused, so many parts are tried; what is still mixed then is refused.
MOST_TRIES = 128
#: A text that was claimed is free again after so long: what SQS promises.
CLAIM_SECONDS = 300.0
#: How long a topic is remembered whose events go by themselves, and how many are.
_UNSHARED_SECONDS = 10.0
_MOST_UNSHARED = 1_000
#: After these, nothing was written.
_REFUSALS = (UsageError, BackPressure)
#: Nor when a lock was waited for too long: PostgreSQL's and MySQL's error.  That takes as long as
#: many other tries.
_LOCKED = frozenset({"55P03", 1205})
_TRIES_OF_A_WAIT = 8
_NAMED = re.compile(r"event \d+(?:: | for topic \"[^\"]*\": )")


class Coalescer:
    """Publishes for all callers; accounts take turns by what they publish, in bytes."""

    def __init__(self, pool: Pool, at_a_time: int) -> None:
        self._pool = pool
        self._plain = PublishLane(at_a_time, MOST_ACCOUNTS)
        self._claiming = PublishLane(at_a_time, 1)
        #: Plain ones that could not share a transaction.
        self._alone = PublishLane(at_a_time, 1, by_time=True)
        #: Topics of which events were left out of a transaction that is shared, and were good: so
        #: long they go by themselves.
        self._unshared: dict[str, float] = {}
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
        given: list[asyncio.Future[UUID]] = []
        possible: list[Unpublished] = []
        for each in wanted:
            published = loop.create_future()
            published.add_done_callback(_seen)
            given.append(published)
            try:
                made = row(each.message)
            except UsageError as error:
                published.set_exception(error)
                continue
            possible.append(Unpublished(each, made, published, is_joined=bool(possible)))
        if possible:
            self._wait(principal, possible)
        # Shielded: the event may be in a batch already when its caller goes away.
        return [asyncio.shield(each) for each in given]

    def _wait(self, principal: Principal, given: list[Unpublished]) -> None:
        lanes = (self._plain, self._claiming, self._alone)
        waiting = sum(each.size_of(principal.account_id) for each in lanes)
        if waiting + sum(each.size for each in given) > MOST_WAITING_BYTES:
            raise Refused(429, "too much of this account waits", {"Retry-After": "1"})
        lane = self._plain if given[0].outgoing.claim is None else self._claiming
        lane.wait(principal, given)
        self._go_on(lane)

    def _go_on(self, lane: PublishLane) -> None:
        while True:
            turns, parts = lane.next_group()
            if not turns:
                return
            task = asyncio.create_task(self._send(lane, parts))
            self._running.add(task)
            begun = asyncio.get_running_loop().time()
            task.add_done_callback(partial(self._done, lane, turns, begun))

    def _done(
        self, lane: PublishLane, turns: list[Turn], begun: float, task: asyncio.Task[None]
    ) -> None:
        self._running.discard(task)
        for turn in turns:
            if lane.by_time:
                lane.turns.charge(turn, asyncio.get_running_loop().time() - begun)
            lane.turns.end(turn)
        self._go_on(lane)

    async def _send(self, lane: PublishLane, parts: list[Part]) -> None:
        if lane is self._plain:
            for principal, batch in await self._send_together(parts):
                if batch:
                    self._alone.wait(principal, batch)
            self._go_on(self._alone)
            return
        for principal, batch in parts:
            if batch:
                is_refused = any(each.is_left_out for each in batch)
                ways = [publish_apart] if is_refused else [publish_together, publish_apart]
                self._note_unshared(batch, await self._send_alone(principal, batch, ways))

    async def _send_together(self, parts: list[Part]) -> list[Part]:
        """Publish the plain events of all of them; returns what has to be sent by itself."""
        left = [each for each in parts if not self._may_share(each)]
        lines: dict[AccountTopic, int] = {}
        given: list[tuple[Principal, int, Unpublished]] = []
        for principal, batch in filter(self._may_share, parts):
            for one in batch:
                line = AccountTopic(principal.account_id, principal.key_id, one.row.topic)
                given.append((principal, lines.setdefault(line, len(lines)), one))
        if not given:
            return left
        events = [(number, one.row) for _, number, one in given]
        work = partial(publish_for_accounts, lines=list(lines), events=events)
        accounts = len({each.account_id for each in lines})
        try:
            places = await self._pool.run(None, work, once=True, accounts=accounts)
        except Exception as error:
            if _wrote_nothing(error):
                return parts
            # Whether it is there is not known: nothing is sent again.
            for _, _, one in given:
                _answer(one, error)
            return left
        if places is None:
            return parts
        return left + self._answered(given, set(places))

    def _may_share(self, part: Part) -> bool:
        now = asyncio.get_running_loop().time()
        return all(
            is_plain(each.row) and self._unshared.get(each.row.topic, now) <= now
            for each in part[1]
        )

    def _note_unshared(self, batch: list[Unpublished], made: list[UUID | Exception]) -> None:
        """Topics that take their events in another way, for example below a limit."""
        if len(self._unshared) > _MOST_UNSHARED:
            self._unshared.clear()
        until = asyncio.get_running_loop().time() + _UNSHARED_SECONDS
        for one, result in zip(batch, made, strict=False):
            if one.is_left_out and isinstance(result, UUID):
                self._unshared[one.row.topic] = until

    def _answered(
        self, given: list[tuple[Principal, int, Unpublished]], refused: set[int]
    ) -> list[Part]:
        """Answer what is published; returns the rest."""
        self.batches += 1
        self.events += len(given) - len(refused)
        alone: dict[Principal, list[Unpublished]] = defaultdict(list)
        for place, (principal, _, one) in enumerate(given):
            if place in refused:
                one.is_left_out, one.is_joined = True, False
                alone[principal].append(one)
            else:
                _answer(one, one.row.event_id)
        return list(alone.items())

    async def _send_alone(
        self, principal: Principal, batch: list[Unpublished], ways: Sequence[Callable[..., Any]]
    ) -> list[UUID | Exception]:
        """Publish events in a transaction that acts for their account.

        After a refusal, in the next one of these ways.  Returns what each event got.
        """
        wanted = [each.outgoing for each in batch]
        way, *others = ways if len(batch) > 1 else ways[:1]
        made: list[UUID | Exception]
        try:
            try:
                made = await self._run(principal, way, wanted)
            except Exception as error:
                if not others or not _is_refusal(error):
                    raise
                made = await self._run(principal, others[0], wanted)
        except Exception as error:
            # Whether it is there is not known, or it is the same for all: nothing is sent again.
            made = [_alone(error)] * len(batch)
        else:
            self.batches += 1
            self.events += sum(isinstance(each, UUID) for each in made)
        for one, result in zip(batch, made, strict=True):
            _answer(one, result)
        return made

    async def _run(
        self, principal: Principal, work: Callable[..., Any], wanted: list[Outgoing]
    ) -> list[UUID | Exception]:
        made: list[UUID | Exception] = await self._pool.run(principal, partial(work, wanted=wanted))
        return made


def publish_together(connection: Any, wanted: Sequence[Outgoing]) -> list[UUID | Exception]:
    """Publish events, but for those whose claim an earlier one has, or that are refused."""
    messages = [each.message for each in wanted]
    if wanted[0].claim is None:
        return [*penstock.publish_batch(connection, messages)]
    claims = Claims(wanted)
    originals = recent_sends.claim(connection, claims.sends, CLAIM_SECONDS)
    fresh = [
        replace(messages[place], event_id=event_id) for place, event_id in claims.fresh(originals)
    ]
    try:
        penstock.publish_batch(connection, fresh)
    except Exception as error:
        if _is_refusal(error):
            both = zip(claims.sends, originals, strict=True)
            recent_sends.release(connection, [send for send, original in both if original is None])
        raise
    return claims.results(originals)


def publish_apart(connection: Any, wanted: Sequence[Outgoing]) -> list[UUID | Exception]:
    """Publish what can be published of a batch that was refused, in the transaction that is open.

    Returns for each event its id, or why it was refused.  What only the database can refuse is
    halved, and events of a topic that is missing or has too much waiting fail together.
    """
    refused = refusals(connection, [each.message for each in wanted])
    made = _refused_calls(wanted, refused)
    # Of a call, the others are published: its claim remembers which.
    wanted = [
        each._replace(refused=each.refused or why)
        for each, why in zip(wanted, refused, strict=True)
    ]
    possible = [place for place, each in enumerate(made) if each is None]
    left = [possible] if possible else []
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
                parts = _parts(some, wanted, error)
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


def _wrote_nothing(error: Exception) -> bool:
    """Whether a transaction of many accounts failed for what one of them may have sent."""
    kinds = {each.__name__ for each in type(driver_error(error)).__mro__}
    bad = bool(kinds & {"DataError", "ProgramLimitExceeded"})
    return bad or _is_refusal(error) or database.is_ended_before_commit(error)


def _refused_calls(
    wanted: Sequence[Outgoing], refused: Sequence[UsageError | None]
) -> list[UUID | Exception | None]:
    """Calls of which nothing can be published claim nothing."""
    made: list[UUID | Exception | None] = [None] * len(wanted)
    for call in calls_of(wanted):
        if all(refused[place] for place in call):
            for place in call:
                made[place] = refused[place]
    return made


def _parts(some: list[int], wanted: Sequence[Outgoing], error: Exception) -> list[list[int]]:
    """How to try again what was refused together; nothing: all of it stays refused."""
    by_topic = defaultdict(list)
    for place in some:
        by_topic[wanted[place].message.topic].append(place)
    if len(by_topic) > 1:
        return list(by_topic.values())
    calls = calls_of([wanted[place] for place in some])
    if len(calls) == 1 or isinstance(error, TopicNotFound | BackPressure):
        return []
    half = calls[len(calls) // 2][0]
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


def _answer(one: Unpublished, result: UUID | Exception) -> None:
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
