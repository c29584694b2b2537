"""The guards of listeners of a subscription, step by step and by a clock of the test."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from consumers.gateway import group_members
from consumers.gateway.group_members import GroupMember
from consumers.gateway.groups import ConsumerGroup
from consumers.gateway.pool import Principal
from penstock.records import Event, Lease
from penstock.subscriptions import Lag
from penstock.subscriptions.stream import Membership
from tests.kit.proof import proves

LEASE = Lease("shop/orders", 0, 65_536, 3, "ACTIVE", 10, 1)
MEMBERSHIP = Membership("shop/billing", "one", uuid.uuid4(), 3.0, 10.0)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def event(sequence: int) -> Event:
    now = datetime.now(UTC)
    return Event("shop/orders", 0, sequence, uuid.uuid4(), None, "", "", {}, b"x", now, now, 1)


def lag(position: int, high: int, *, epoch: int = 3, holder: str | None = "one") -> Lag:
    unread = high - position
    return Lag(
        "shop/billing", "shop/orders", 0, position, high, unread, 0, "ACTIVE", holder, epoch
    )  # fmt: skip


async def member(clock: Callable[[], float], most: int = 5) -> GroupMember:
    made = GroupMember("shop/billing", "one", most=most, commit_seconds=60, clock=clock)
    made.install(MEMBERSHIP, [LEASE])
    return made


@proves("a subscription over HTTP", guard="stands_still")
def test_who_commits_nothing_stands_still_and_who_has_nothing_does_not() -> None:
    clock = Clock()

    async def run() -> None:
        one = await member(clock)
        clock.now += 1_000
        assert one.stands_still(clock()) is None  # nothing was sent
        assert one.sending(LEASE, [event(11), event(12)])
        clock.now += 59
        one.compare([lag(11, 20)])  # one of them was committed, anywhere
        clock.now += 59
        assert one.stands_still(clock()) is None
        clock.now += 2
        problem = one.stands_still(clock())
        assert problem is not None and problem.status == 408
        one.committed([(LEASE, 12)])
        assert one.stands_still(clock()) is None

    asyncio.run(run())


def test_who_takes_nothing_of_what_is_sent_stands_still() -> None:
    clock = Clock()

    async def run() -> None:
        one = await member(clock)
        one.sending_since = clock()
        clock.now += group_members.STALL_SECONDS
        assert one.stands_still(clock()) is None
        clock.now += 1
        problem = one.stands_still(clock())
        assert problem is not None and problem.status == 408

    asyncio.run(run())


def test_no_more_is_read_than_may_lack_a_commit() -> None:
    async def run() -> None:
        one = await member(Clock())
        (lease,), room = one.readable()
        assert (lease.position, room) == (10, 5)
        assert one.sending(LEASE, [event(each) for each in range(11, 16)])
        one.compare([lag(10, 20)])
        assert one.readable() == ([], 0)
        one.compare([lag(12, 20)])
        (lease,), room = one.readable()
        assert (lease.position, room) == (15, 2)

    asyncio.run(run())


def test_a_lease_of_another_epoch_or_holder_is_lost_and_nothing_is_sent_under_it() -> None:
    async def run() -> None:
        for present in ([], [lag(10, 20, epoch=4)], [lag(10, 20, holder="other")]):
            one = await member(Clock())
            one.compare(present)
            assert one.lost == [LEASE] and not one.held
            assert not one.sending(LEASE, [event(11)])

    asyncio.run(run())


def test_a_lease_that_is_asked_back_goes_when_nothing_of_it_is_in_hand() -> None:
    async def run() -> None:
        one = await member(Clock())
        assert one.sending(LEASE, [event(11)])
        one.install(MEMBERSHIP, [Lease("shop/orders", 0, 65_536, 3, "RELEASING", 10, 1)])
        assert one.free() == []
        assert one.readable()[0] == []
        one.committed([(LEASE, 11)])
        assert [each.partition_id for each in one.free()] == [65_536]

    asyncio.run(run())


class Blind(GroupMember):
    """A mutant: its check-ins are not counted."""

    version = property(lambda _: 0, lambda *_: None)


@proves("a subscription over HTTP", guard="a look from before a check-in")
@pytest.mark.parametrize(("kind", "holds"), [(GroupMember, True), (Blind, False)])
def test_a_look_from_before_a_check_in_takes_nothing_away(
    kind: type[GroupMember], holds: bool
) -> None:
    async def run() -> None:
        one = kind("shop/billing", "one", most=5, commit_seconds=60)
        one.install(MEMBERSHIP, [])

        class Pool:
            async def run(self, principal: Any, work: Any) -> Any:
                """The look; while it is under way, a check-in takes a lease."""
                one.install(MEMBERSHIP, [LEASE])
                return [], [lag(20, 20, holder=None, epoch=2)]

        pool: Any = Pool()
        group = ConsumerGroup(pool, Principal("id", "key"), "shop/billing", set())
        group.members.append(one)
        group._beat_at = float("inf")
        await group._turn()
        assert bool(one.held) is holds

    asyncio.run(run())
