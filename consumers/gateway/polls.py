"""Long polls: many wait for a queue, and one of them looks for all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

logger = logging.getLogger("penstock.gateway")

T = TypeVar("T")

LONGEST_SECONDS = 30.0
FIRST_PAUSE_SECONDS = 0.005
#: Between two looks of an idle queue.
LONGEST_PAUSE_SECONDS = 0.5

#: While there is something, so many look at a time.
MOST_LOOKING = 4

Look = Callable[[], Coroutine[Any, Any, list[T]]]
GiveBack = Callable[[list[T]], Awaitable[object]]


@dataclass(slots=True)
class _PollLine:
    """Those that wait for one queue."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    looking: int = 0
    #: The last look has found something.
    is_busy: bool = False


class Polls:
    """Whose turn it is to look, for each queue."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, _PollLine] = {}
        self._background: set[asyncio.Task[Any]] = set()

    @property
    def waiting(self) -> int:
        """How many polls there are now."""
        return sum(line.users for line in self._lines.values())

    async def wait(
        self, queue: Hashable, seconds: float, look: Look[T], give_back: GiveBack[T]
    ) -> list[T]:
        """What a look has found, or nothing after so many seconds.

        Only one of those that wait for a queue looks, and rests between two looks.  So an idle
        queue costs the same for one caller and for a thousand.  While looks find something, a few
        are made side by side.  Cancel it when the caller has hung up: no further look is made, and
        what the present one finds is given back.
        """
        if seconds <= 0:
            return await self._look(look, give_back)
        line = self._lines.setdefault(queue, _PollLine())
        line.users += 1
        try:
            if line.is_busy and line.looking < MOST_LOOKING:
                found = await self._look_beside(line, look, give_back)
                if found:
                    return found
            return await self._in_turn(line, seconds, look, give_back)
        finally:
            line.users -= 1
            if not line.users:
                del self._lines[queue]

    async def _look_beside(self, line: _PollLine, look: Look[T], give_back: GiveBack[T]) -> list[T]:
        line.looking += 1
        try:
            found = await self._look(look, give_back)
        finally:
            line.looking -= 1
        line.is_busy = bool(found)
        return found

    async def _in_turn(
        self, line: _PollLine, seconds: float, look: Look[T], give_back: GiveBack[T]
    ) -> list[T]:
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        try:
            async with asyncio.timeout_at(until):
                await line.turn.acquire()
        except TimeoutError:
            return []
        try:
            pause = FIRST_PAUSE_SECONDS
            while (
                not (found := await self._look(look, give_back)) and (left := until - clock()) > 0
            ):
                await asyncio.sleep(min(pause, left))
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            line.is_busy = bool(found)
            return found
        finally:
            line.turn.release()

    async def _look(self, look: Look[T], give_back: GiveBack[T]) -> list[T]:
        task = asyncio.create_task(look())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._keep(asyncio.create_task(_back(task, give_back)))
            raise

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._background.add(task)
        task.add_done_callback(self._background.discard)


async def _back(task: asyncio.Task[list[T]], give_back: GiveBack[T]) -> None:
    try:
        found = await task
        if found:
            await give_back(found)
    except Exception:
        # They come back by themselves when their time is over.
        logger.warning("messages for a caller that has gone could not be put back", exc_info=True)
