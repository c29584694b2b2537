"""The room of all answers, and what reads by it besides answers: no database is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from consumers.gateway.room import MOST_EVENT_BYTES, AnswerRoom
from consumers.gateway.sqs import sequences
from consumers.gateway.sqs.sequences import SequenceNumbers
from penstock import log
from penstock.records import PartitionRange
from penstock.topics import names

PLACE = ("1", "shop/mails.fifo")


def test_who_waits_for_its_own_half_keeps_nobody_else_waiting() -> None:
    """Guard: the half of an account is looked at before the whole room."""

    async def run() -> None:
        room = AnswerRoom(256)
        await room.take("a", 128)
        await room.take("b", 100)
        waits = asyncio.create_task(room.take("a", 33))
        await asyncio.sleep(0)
        async with asyncio.timeout(1):
            assert await room.take("c", 1) == 1
        room.change("a", -128)
        assert await waits == 33

    asyncio.run(run())


class _Queue:
    """A FIFO queue, of which so many events have their sequences."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.room = AnswerRoom(64 * MOST_EVENT_BYTES)
        self.read: list[tuple[int, int, int]] = []

    def ranges(self, *_: object) -> list[PartitionRange]:
        return [PartitionRange(0, 1, self.last, 1, 1)]

    def fetch(self, _: Any, __: str, ___: int, first: int, most: int) -> list[Any]:
        self.read.append((first, most, self.room.used))
        until = min(self.last + 1, first + most)
        return [
            SimpleNamespace(event_id=UUID(int=each), sequence=each, payload=b"x")
            for each in range(first, until)
        ]


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> _Queue:
    made = _Queue(1)
    monkeypatch.setattr(names, "partition_ranges", made.ranges)
    monkeypatch.setattr(log, "fetch", made.fetch)
    return made


def test_sends_that_overlap_do_not_fill_the_memory(
    queue: _Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reader serves them all, and never ends.  Guard: it forgets after each read."""
    monkeypatch.setattr(sequences, "_MOST_KNOWN", 10)
    sends: list[asyncio.Task[str | None]] = []

    async def run() -> None:
        numbers = SequenceNumbers(queue.room)

        async def connected(work: Callable[[Any], Any]) -> Any:
            assert len(numbers._known) <= 10
            if queue.last < 50:  # the next send comes before this one is answered
                following = UUID(int=queue.last + 2)
                sends.append(asyncio.create_task(numbers.of(connected, PLACE, following)))
                await asyncio.sleep(0)
            queue.last += 1
            return work(None)

        assert await numbers.of(connected, PLACE, UUID(int=2)) == f"{2:020}"
        while not all(each.done() for each in sends):
            await asyncio.gather(*sends)
        assert [each.result() for each in sends] == [f"{each:020}" for each in range(3, 52)]

    asyncio.run(run())


def test_a_number_is_looked_for_among_the_newest_within_the_room(queue: _Queue) -> None:
    """Guards: _FIRST_BACK, and the share that a reader takes."""
    queue.last = 5_000

    async def run() -> None:
        async def connected(work: Callable[[Any], Any]) -> Any:
            return work(None)

        found = await SequenceNumbers(queue.room).of(connected, PLACE, UUID(int=4_990))
        assert found == f"{4_990:020}"

    asyncio.run(run())
    assert min(first for first, _, _ in queue.read) >= 4_800
    assert all(0 < most * MOST_EVENT_BYTES <= used for _, most, used in queue.read)
    assert queue.room.used == 0
