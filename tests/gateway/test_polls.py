"""Who of those that wait for a queue looks."""

from __future__ import annotations

import asyncio

import pytest

from consumers.gateway import polls
from consumers.gateway.polls import Polls
from tests.kit.proof import proves


async def _given_back(_: list[int]) -> None:
    raise AssertionError("nobody has gone")


async def _looks(count: int, *, is_busy: bool) -> int:
    """How many of so many polls look before the first of those looks has ended."""
    waiting, end = Polls(), asyncio.Event()
    begun = 0

    async def found() -> list[int]:
        return [1]

    async def look() -> list[int]:
        nonlocal begun
        begun += 1
        await end.wait()
        return [2]

    async with asyncio.TaskGroup() as group:
        # It waits all the time, so the queue is not forgotten.
        idle = group.create_task(waiting.wait("queue", 30, look, _given_back))
        await asyncio.sleep(0)
        if is_busy:
            line = waiting._lines["queue"]
            await waiting._look_beside(line, found, _given_back)
        others = [
            group.create_task(waiting.wait("queue", 30, look, _given_back)) for _ in range(count)
        ]
        for _ in range(20):
            await asyncio.sleep(0)
        seen = begun
        end.set()
        assert await asyncio.gather(idle, *others) == [[2]] * (count + 1)
    assert waiting.waiting == 0
    return seen


@proves("long polls")
def test_of_those_that_wait_for_an_idle_queue_one_looks() -> None:
    assert asyncio.run(_looks(10, is_busy=False)) == 1


@proves("long polls")
def test_while_looks_find_something_a_few_look_side_by_side() -> None:
    assert asyncio.run(_looks(10, is_busy=True)) == 1 + polls.MOST_LOOKING


@proves("long polls", guard="their bound")
def test_without_a_bound_all_would_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polls, "MOST_LOOKING", 100)
    assert asyncio.run(_looks(10, is_busy=True)) == 11
