"""Publishes that go together: which ones make a batch."""

from __future__ import annotations

import asyncio
from uuid import UUID

from consumers.gateway import lanes
from consumers.gateway.lanes import Outgoing, PublishLane, Unpublished
from consumers.gateway.pool import Principal
from penstock.publishing.rows import row
from penstock.records import Message
from tests.kit.proof import proves


def unpublished(count: int, *, joined: bool = False, size: int = 1) -> list[Unpublished]:
    made = []
    for number in range(count):
        future: asyncio.Future[UUID] = asyncio.Future()
        message = Message("n/t", b"x" * size)
        outgoing = Outgoing(message, str(number))
        made.append(Unpublished(outgoing, row(message), future, joined and number > 0))
    return made


def groups(lane: PublishLane, most: int) -> list[list[int]]:
    """How many events of each account go together, group after group, one at a time."""
    found = []
    for _ in range(most):
        turns, parts = lane.next_group()
        found.append([len(batch) for _, batch in parts])
        for turn in turns:
            lane.turns.end(turn)
    return found


@proves("a FIFO queue of SQS", guard="what is joined goes in one batch")
def test_what_is_joined_goes_in_one_batch() -> None:
    """Guard: is_joined.  Else a group of a FIFO queue could be published out of order."""

    async def run() -> None:
        lane = PublishLane(1, 1)
        lane.wait(Principal("a", "key"), unpublished(989))
        for _ in range(2):
            lane.wait(Principal("a", "key"), unpublished(10, joined=True))
        assert groups(lane, 3) == [[999], [10], []]

    asyncio.run(run())


def test_accounts_share_a_batch_up_to_its_bounds() -> None:
    """In turn: who has published least is first, and what has no room comes next."""

    async def run() -> None:
        lane = PublishLane(1, 3)
        for name, count in (("a", 700), ("b", 700), ("c", 1), ("d", 1)):
            lane.wait(Principal(name, "key"), unpublished(count))
        assert groups(lane, 3) == [[700, 290], [1, 1, 410], []]
        for number in range(4):
            lane.wait(Principal(f"e{number}", "key"), unpublished(1))
        assert groups(lane, 2) == [[1, 1, 1], [1]]
        long = unpublished(4, size=lanes.MOST_BYTES // 2)
        lane.wait(Principal("f", "key"), long)
        lane.wait(Principal("g", "key"), unpublished(1))
        assert groups(lane, 3) == [[2], [1, 2], []]

    asyncio.run(run())


def test_claims_are_of_one_account_at_a_time() -> None:
    async def run() -> None:
        lane = PublishLane(1, 1)
        for name in "ab":
            lane.wait(Principal(name, "key"), unpublished(2))
        assert groups(lane, 3) == [[2], [2], []]

    asyncio.run(run())
