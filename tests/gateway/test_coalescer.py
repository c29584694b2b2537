"""Publishes that go together: which ones make a batch."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from uuid import UUID

from consumers.gateway import lanes
from consumers.gateway.lanes import Outgoing, PublishLane, Unpublished
from consumers.gateway.pool import Pool, Principal
from consumers.gateway.publishing import Coalescer
from penstock.errors import TopicNotFound
from penstock.publishing.packing import packed
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
        assert groups(lane, 3) == [[700, 300], [1, 1, 400], []]
        for number in range(4):
            lane.wait(Principal(f"e{number}", "key"), unpublished(1))
        assert groups(lane, 2) == [[1, 1, 1], [1]]

    asyncio.run(run())


def test_claims_are_of_one_account_at_a_time() -> None:
    async def run() -> None:
        lane = PublishLane(1, 1)
        for name in "ab":
            lane.wait(Principal(name, "key"), unpublished(2))
        assert groups(lane, 3) == [[2], [2], []]

    asyncio.run(run())


@proves("a publish over HTTP")
def test_a_batch_stops_before_it_is_too_long() -> None:
    """Else no statement of MySQL takes it, and each account of it goes by itself."""

    async def run() -> None:
        lane = PublishLane(1, 8)
        half = unpublished(3, size=lanes.MOST_BYTES // 2 - 256)
        lane.wait(Principal("a", "key"), half[:1])
        headers = {"h": "x" * 60_000}
        made = row(Message("n/t", b"x" * (half[0].size - 1_000), key="k" * 200, headers=headers))
        future: asyncio.Future[UUID] = asyncio.Future()
        lane.wait(Principal("b", "key"), [Unpublished(half[0].outgoing, made, future)])
        lane.wait(Principal("c", "key"), unpublished(1))
        found = []
        while (group := lane.next_group())[0]:
            assert packed([each.row for _, batch in group[1] for each in batch]) is not None
            found.append([principal.account_id for principal, _ in group[1]])
            for turn in group[0]:
                lane.turns.end(turn)
        assert found == [["a"], ["b", "c"]]
        for name in "de":
            lane.wait(Principal(name, "key"), unpublished(1, size=lanes.MOST_BYTES))
        assert groups(lane, 3) == [[1], [1], []]

    asyncio.run(run())


@proves("a publish over HTTP")
def test_a_batch_has_so_many_topics_at_most() -> None:
    """Each is looked up.  Their names have a bound too."""

    async def run() -> None:
        for most, then, name in ((128, 127, "n/t"), (15, 15, f"n/{'t' * 4_000}")):
            lane = PublishLane(1, 8)
            given = unpublished(300)
            for number, each in enumerate(given):
                each.row = each.row._replace(topic=f"{name}{number:03}")
            lane.wait(Principal("a", "key"), given)
            lane.wait(Principal("b", "key"), unpublished(1))
            assert groups(lane, 2) == [[most], [1, then]]

    asyncio.run(run())


class _Scripted:
    """A pool whose transactions last until they are told to end."""

    def __init__(self) -> None:
        self.shares: list[int] = []
        self.alone: list[str] = []
        self.gate = asyncio.Event()

    async def run(self, principal: Principal | None, work: Any, **how: Any) -> list[Any]:
        given = work.keywords
        if principal is None:
            await asyncio.sleep(0)
            self.shares.append(how.get("accounts", 0))
            return [n for n, (_, one) in enumerate(given["events"]) if one.topic == "n/none"]
        self.alone.append(principal.account_id)
        await self.gate.wait()
        return [TopicNotFound("there is none", hint="")] * len(given["wanted"])


async def _pause() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@proves("fair turns of the gateway", guard="refused publishes")
def test_who_is_refused_is_waited_for_by_nobody() -> None:
    """Of a group, what is refused goes by itself, and the places of the group are free again."""

    async def run() -> None:
        pool = _Scripted()
        coalescer = Coalescer(cast("Pool", pool), 2)

        def publish(name: str, topic: str) -> asyncio.Task[UUID]:
            call = coalescer.publish(Principal(name, "key"), Message(topic, b"x"))
            return asyncio.create_task(call)

        bad = []
        for _ in range(4):
            bad += [publish("noisy", "n/none") for _ in range(3)]
            await _pause()
        good = [publish(name, "n/t") for name in ("quiet", "third", "fourth", "fifth")]
        bad.append(publish("third", "n/none"))
        await _pause()
        assert [each.done() for each in good] == [True] * 4
        assert pool.alone == ["noisy", "third"]  # the last place is not for the noisy one
        pool.gate.set()
        results = await asyncio.gather(*bad, return_exceptions=True)
        assert {type(each) for each in results} == {TopicNotFound}
        assert max(pool.shares) == 2

    asyncio.run(run())
