"""Bytes of answers: one answer has a limit, and all that are made or sent have one together.

A call takes room before it reads from the database, for as much as that may be at most.  Then it
keeps what it has really read, until its caller has taken the answer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from consumers.gateway.answers import Refused

#: One event at most: its payload, its headers, and what else is told of it.
MOST_EVENT_BYTES = 1_114_112
#: One answer at most.  As JSON it may be longer: then it counts with its real length.
MOST_ANSWER_BYTES = 33_554_432
#: Answers are sent in parts of so many bytes.  One that is no longer needs no room of its own.
PART_BYTES = 65_536
#: So long a call waits for room.
PATIENCE_SECONDS = 5.0


def most_events(size: int) -> int:
    """How many events have room in so many bytes, whatever is in them; one at least."""
    return max(1, size // MOST_EVENT_BYTES)


def size_of(events: int) -> int:
    """The room that so many events need at most, but no more than an answer has."""
    return min(events * MOST_EVENT_BYTES, MOST_ANSWER_BYTES)


@dataclass(slots=True, eq=False)
class _Claimed:
    account: str
    size: int
    granted: asyncio.Future[None]


class AnswerRoom:
    """The room of all answers.  An account gets no more than half of it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_account: Counter[str] = Counter()
        self._waiting: list[_Claimed] = []
        self.used = 0
        #: The most that was ever used.
        self.peak = 0

    async def take(self, account: str, size: int) -> int:
        """Wait for room; returns how much there is.  Refused (503) when none comes."""
        one = _Claimed(
            account, min(size, self._most // 2), asyncio.get_running_loop().create_future()
        )
        self._waiting.append(one)
        self._grant()
        is_taken = False
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await one.granted
            is_taken = True
        except TimeoutError:
            busy = "too much is being answered at a time: take what was asked for"
            raise Refused(503, busy, {"Retry-After": "1"}) from None
        finally:
            if one in self._waiting:
                self._waiting.remove(one)
                self._grant()  # a large one may have kept smaller ones waiting
            elif not is_taken:
                self.change(account, -one.size)
        return one.size

    def change(self, account: str, size: int) -> None:
        """So much more is used, or less."""
        self.used += size
        self.peak = max(self.peak, self.used)
        self._by_account[account] += size
        if not self._by_account[account]:
            del self._by_account[account]
        if size < 0:
            self._grant()

    def _grant(self) -> None:
        """In the order in which they came; an account that has its half waits for itself only."""
        for one in list(self._waiting):
            if self._by_account[one.account] + one.size > self._most // 2:
                continue  # first: it would keep the others waiting for what it cannot get
            if self.used + one.size > self._most:
                return
            self._waiting.remove(one)
            self.change(one.account, one.size)
            if not one.granted.done():
                one.granted.set_result(None)


class AnswerShare:
    """What one call uses; ``account`` is set when it is known who calls."""

    def __init__(self, room: AnswerRoom, account: str = "") -> None:
        self.account = account
        self._room = room
        self._size = 0
        self._has_taken = False
        self._is_closed = False

    async def take(self, size: int) -> int:
        """Wait for so much more; returns how much there is."""
        granted = await self._room.take(self.account, size)
        if self._is_closed:
            self._room.change(self.account, -granted)
            raise Refused(503, "the caller has gone")
        self._size += granted
        self._has_taken = True
        return granted

    def keep(self, size: int) -> None:
        """It is so much in all, from now on."""
        if not self._is_closed:
            before, self._size = self._size, size
            self._room.change(self.account, size - before)

    async def hold(self, size: int) -> None:
        """Room for an answer that is made, also of a call that has taken none before."""
        if not self._has_taken and size > PART_BYTES:
            await self.take(size)
        if self._has_taken:
            self.keep(size)

    def close(self) -> None:
        """The answer was sent."""
        self.keep(0)
        self._is_closed = True
