"""Accounts take turns at connections: who goes away while waiting, or while its call runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from consumers.gateway.answers import Refused
from consumers.gateway.pool import Pool, Principal


class _Pool(Pool):
    """A pool whose calls need no database."""

    def _on_own(
        self, principal: Principal | None, work: Callable[[Any], Any], *, once: bool = False
    ) -> Any:
        return work(principal)


def _account(name: str) -> Principal:
    return Principal(name, "key")


@pytest.fixture
def pool() -> Iterator[Pool]:
    """One connection."""
    made = _Pool("", 1, 4)
    yield made
    made.close()


async def _begun(pool: Pool, account: str, gate: threading.Event) -> asyncio.Task[bool]:
    """A call that runs until the gate is open."""
    runs = threading.Event()

    def work(_: Any) -> bool:
        runs.set()
        return gate.wait(30)

    task = asyncio.create_task(pool.run(_account(account), work))
    assert await asyncio.to_thread(runs.wait, 30)
    return task


def test_who_goes_away_while_it_waits_takes_no_turn(pool: Pool) -> None:
    async def run() -> list[str]:
        gate, done = threading.Event(), list[str]()
        first = await _begun(pool, "a", gate)
        left = asyncio.create_task(pool.run(_account("a"), lambda _: done.append("left")))
        stays = asyncio.create_task(pool.run(_account("b"), lambda _: done.append("stays")))
        await asyncio.sleep(0)
        assert pool._turns.waiting == 2
        left.cancel()
        await asyncio.wait({left})
        assert pool._turns.waiting == 1
        gate.set()
        assert await first
        await stays
        return done

    assert asyncio.run(run()) == ["stays"]


def test_who_gets_its_turn_and_goes_away_at_once_gives_it_back(pool: Pool) -> None:
    """Both happen before it can begin."""

    async def run() -> list[str]:
        gate, done = threading.Event(), list[str]()
        first = await _begun(pool, "a", gate)
        left = asyncio.create_task(pool.run(_account("b"), lambda _: done.append("left")))
        stays = asyncio.create_task(pool.run(_account("c"), lambda _: done.append("stays")))
        await asyncio.sleep(0)
        first.add_done_callback(lambda _: left.cancel())
        gate.set()
        assert await first
        await asyncio.wait({left, stays})
        return done

    assert asyncio.run(run())[-1] == "stays"
    assert pool._turns.waiting == 0


def test_a_connection_is_free_when_its_call_has_ended(pool: Pool) -> None:
    """Not when its caller has gone: the call runs on."""

    async def run() -> None:
        gate = threading.Event()
        gone = await _begun(pool, "a", gate)
        gone.cancel()
        await asyncio.wait({gone})
        waits = asyncio.create_task(pool.run(_account("b"), lambda _: True))
        await asyncio.sleep(0)
        assert pool._turns.waiting == 1
        gate.set()
        assert await waits

    asyncio.run(run())


def test_beyond_what_may_wait_an_account_is_refused(pool: Pool) -> None:
    """But another one is not."""

    async def run() -> None:
        gate = threading.Event()
        first = await _begun(pool, "a", gate)
        calls = [asyncio.create_task(pool.run(_account("a"), lambda _: True)) for _ in range(3)]
        await asyncio.sleep(0)
        calls.append(asyncio.create_task(pool.run(_account("b"), lambda _: True)))
        await asyncio.sleep(0)
        gate.set()
        assert await first
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(each, Refused) for each in results] == [False, False, True, False]

    asyncio.run(run())


def test_a_turn_for_several_accounts_costs_the_share_of_one(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all tenants together would have as much as one of them."""
    charged: list[float] = []
    monkeypatch.setattr(pool._turns, "charge", lambda _, cost: charged.append(cost))

    async def run() -> None:
        times = iter((0.0, 8.0, 0.0, 8.0))
        with monkeypatch.context() as patch:
            patch.setattr("consumers.gateway.pool.now", lambda: next(times))
            await pool.run(None, lambda _: None)
            await pool.run(None, lambda _: None, accounts=4)

    asyncio.run(run())
    assert charged == [8.0, 2.0]
