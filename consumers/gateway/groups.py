"""Subscriptions that are listened to over HTTP: who is a member, what each holds, what is done.

All listeners of a process that read one subscription with one key are a group.  The group keeps
them alive by one statement, and looks for all of them where the subscription stands: what is new,
what was committed (by a POST to any process), and which leases are lost.  So a listener for which
there is nothing costs nothing of its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from consumers.gateway.answers import Refused, as_refused
from consumers.gateway.group_members import GroupMember
from consumers.gateway.pool import Pool, Principal
from penstock import subscriptions
from penstock.errors import UnknownConsumer
from penstock.records import Lease
from penstock.subscriptions import Lag, stream
from penstock.subscriptions.stream import Beat, Membership

logger = logging.getLogger("penstock.gateway")

#: The right to read is asked for at least so often: a beat asks for it.
RIGHT_SECONDS = 10.0
FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5
#: Between two check-ins that nobody has asked for, while there is something to take.
EARLY_SECONDS = 0.2
#: One after the other, between two looks: beats must not wait for them for long.
MOST_CHECK_INS = 20
#: A member whose row was locked beats again after so long.
_LOCKED_SECONDS = 0.2
#: Joining again after a lease has ended: so often in one check-in.
_MOST_JOINS = 3


class ConsumerGroup:
    """The listeners of one subscription that show one key to this process."""

    def __init__(
        self,
        pool: Pool,
        principal: Principal,
        subscription: str,
        leaving: set[asyncio.Task[None]],
    ) -> None:
        self.members: list[GroupMember] = []
        self.task: asyncio.Task[None] | None = None
        self._pool = pool
        self._principal = principal
        self._subscription = subscription
        self._beat_at = self._early_at = 0.0
        self._pace = 0.0
        self._present: list[Lag] = []
        self._leaving = leaving
        self._entering = 0

    @property
    def is_empty(self) -> bool:
        """Whether nobody listens, or is about to."""
        return not self.members and not self._entering

    async def enter(self, member: GroupMember) -> None:
        """Join the subscription, and take what there is to take."""
        self._entering += 1
        try:
            await self._check_in(member)
        finally:
            self._entering -= 1
        self.members.append(member)
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._run())

    def end(self, member: GroupMember, problem: Exception) -> None:
        """Keep this one alive no longer, and give back what it holds."""
        if member in self.members:
            self.members.remove(member)
            member.end(problem)
            leaving = asyncio.create_task(self._leave(member))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while self.members:
            before = self._present
            try:
                await self._turn()
            except Exception as error:
                self._failed(error)
            pause = FIRST_PAUSE_SECONDS if self._present != before else 2 * pause
            pause = min(pause, LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(min(pause, max(FIRST_PAUSE_SECONDS, self._due() - _clock())))

    def _failed(self, error: Exception) -> None:
        """What has failed for all of them: a right that is gone ends them, an outage does not."""
        problem = error if isinstance(error, Refused) else as_refused(error)
        if problem is None:
            logger.exception("a subscription cannot be read for its listeners")
        elif problem.status < 429:  # noqa: PLR2004 - none of them may, or no longer
            for member in list(self.members):
                self.end(member, problem)

    async def _turn(self) -> None:
        """One look for all members, and the check-ins that are due."""
        now = _clock()
        for member in list(self.members):
            problem = member.stands_still(now)
            if problem is not None:
                self.end(member, problem)
        beating = [one for one in self.members if one.membership is not None]
        if now < self._beat_at:
            beating = []
        known = [one.membership for one in beating if one.membership is not None]
        versions = [(one, one.version) for one in self.members]
        look = partial(_look, subscription=self._subscription, members=known)
        beats, self._present = await self._pool.run(self._principal, look)
        if beating:
            self._beaten(beating, beats)
        for member, version in versions:
            # Who has checked in meanwhile knows more than this look.
            if member.version == version and member.problem is None:
                member.compare(self._present)
        await self._give_back()
        await self._check_ins()

    def _beaten(self, beating: list[GroupMember], beats: list[Beat]) -> None:
        now = _clock()
        seconds = [RIGHT_SECONDS]
        for member, beat in zip(beating, beats, strict=True):
            seconds.append(member.heartbeat_seconds)
            if beat.standing == "member":
                member.check_in_at = now + beat.check_in_seconds
                self._pace = beat.pace_seconds
            elif beat.standing == "gone":
                member.forget()
                member.check_in_at = now
            else:
                seconds.append(_LOCKED_SECONDS)
        self._beat_at = now + min(seconds)

    async def _give_back(self) -> None:
        """Give back what is asked back, as soon as nothing of it is in hand."""
        for member in list(self.members):
            leases = member.free()
            if leases and member.membership is not None:
                released = partial(stream.release, member=member.membership, leases=leases)
                await self._pool.run(self._principal, released)
                member.gave_back(leases)

    async def _check_ins(self) -> None:
        now = _clock()
        due = [one for one in self.members if one.check_in_at <= now]
        if self.is_quiet():
            # There is nothing to take, to give or to take back from anybody.
            due = [one for one in due if one.membership is None]
        elif not due and now >= self._early_at and self._is_something_free():
            due = [min(self.members, key=lambda one: len(one.held))]
        for member in due[:MOST_CHECK_INS]:
            if member in self.members:
                await self._checked_in(member)
        if due:
            # Who was called by these check-ins learns of it by the next beat.
            self._beat_at = 0.0
            self._early_at = _clock() + max(EARLY_SECONDS, self._pace)

    async def _checked_in(self, member: GroupMember) -> None:
        """A check-in; what is wrong with one member ends it alone."""
        try:
            await self._check_in(member)
        except Exception as error:
            problem = as_refused(error)
            if problem is None or problem.status >= 429:  # noqa: PLR2004 - it passes
                member.check_in_at = _clock() + 1.0
                raise
            self.end(member, problem)

    def is_quiet(self) -> bool:
        """Whether nothing is unread and nobody holds anything, in any process."""
        return all(each.lag_events == 0 and each.holder is None for each in self._present)

    def _is_something_free(self) -> bool:
        return any(each.lag_events > 0 and each.holder is None for each in self._present)

    def _due(self) -> float:
        """When something has to be done."""
        times = [one.check_in_at for one in self.members] if not self.is_quiet() else []
        return min([self._beat_at, *times])

    async def _check_in(self, member: GroupMember) -> None:
        async with member.lock:
            if member.problem is not None:
                return
            work = partial(_check_in, member=member)
            membership, leases = await self._pool.run(self._principal, work)
            member.install(membership, leases)
            member.check_in_at = _clock() + membership.heartbeat_seconds

    async def _leave(self, member: GroupMember) -> None:
        async with member.lock:
            if member.membership is None:
                return
            work = partial(stream.leave, member=member.membership)
            try:
                await self._pool.run(self._principal, work)
            except Exception as error:
                # Its leases end by themselves. Also so: a revoked key may not even leave.
                if as_refused(error) is None and not isinstance(error, Refused):
                    logger.exception("a listener could not leave")


class ConsumerGroups:
    """The groups of a process."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._groups: dict[tuple[Principal, str], ConsumerGroup] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def members(self) -> int:
        """How many listeners there are."""
        return sum(len(group.members) for group in self._groups.values())

    async def enter(self, principal: Principal, member: GroupMember) -> ConsumerGroup:
        """One more listener of a subscription; `end` it in the group that this returns."""
        key = (principal, member.subscription)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = ConsumerGroup(self._pool, *key, self._leaving)
        try:
            await group.enter(member)
        finally:
            self.forget_empty()
        return group

    async def left(self) -> None:
        """Wait until those that have ended have given back what they held."""
        while self._leaving:
            await asyncio.wait(self._leaving)

    def forget_empty(self) -> None:
        """Drop groups without listeners."""
        for key in [key for key, group in self._groups.items() if group.is_empty]:
            del self._groups[key]

    def committed(
        self, account_id: str, subscription: str, consumer: str, done: Iterable[tuple[Lease, int]]
    ) -> None:
        """These positions were committed through this process: their listener need not look."""
        for (principal, name), group in self._groups.items():
            if (principal.account_id, name) == (account_id, subscription):
                for member in group.members:
                    if member.consumer == consumer:
                        member.committed(done)


def _clock() -> float:
    return time.monotonic()


def _look(
    connection: Any, subscription: str, members: list[Membership]
) -> tuple[list[Beat], list[Lag]]:
    beats = stream.heartbeats(connection, members) if members else []
    return beats, subscriptions.lag(connection, subscription)


def _check_in(connection: Any, member: GroupMember) -> tuple[Membership, list[Lease]]:
    """Check in; who is no member, or no longer, joins."""
    membership = member.membership
    for _ in range(_MOST_JOINS):
        if membership is None:
            membership = stream.join(connection, member.subscription, member.consumer)
        try:
            return membership, stream.check_in(connection, membership)
        except UnknownConsumer:
            membership = None
    raise Refused(503, "the subscription cannot be joined now", {"Retry-After": "1"})
