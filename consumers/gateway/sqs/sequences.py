"""Sequence numbers of FIFO queues, told when a message is sent.

An event gets its sequence a moment after its commit.  So a send waits for it, and all sends of a
process that wait for the same queue share one reader of its newest events.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from typing import Any
from uuid import UUID

from consumers.gateway.room import AnswerRoom, AnswerShare, size_of
from consumers.gateway.tails import fetch_fitting
from penstock.topics import names

logger = logging.getLogger("penstock.gateway")

#: So long a send waits; then its answer is without the number.
LONGEST_SECONDS = 2.0
#: A reader begins so many events before the newest one: a send waits for one of the newest.
_FIRST_BACK = 200
#: Where it falls behind, it leaves out what is older than so many.
_BACK = 2_000
_AT_ONCE = 200
#: Events are read whole: so many of the longest ones have room.
_LONGEST_AT_ONCE = 16
#: Of all queues, so many numbers are remembered, for sends that are repeated.
_MOST_KNOWN = 20_000
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.005, 0.1

#: The account's id, and the address of the queue's topic.
Place = tuple[str, str]
Run = Callable[[Callable[[Any], Any]], Awaitable[Any]]


def number(sequence: int) -> str:
    """A sequence as SQS tells it: of 20 digits, so that texts compare as numbers do."""
    return f"{sequence:020d}"


class SequenceNumbers:
    """Which sequence an event has got."""

    def __init__(self, room: AnswerRoom) -> None:
        self._room = room
        self._known: OrderedDict[UUID, int] = OrderedDict()
        self._ends: OrderedDict[Place, dict[int, int]] = OrderedDict()
        self._wanted: dict[Place, dict[UUID, asyncio.Future[int]]] = {}
        self._readers: dict[Place, asyncio.Task[None]] = {}

    async def of(self, run: Run, place: Place, event_id: UUID) -> str | None:
        """The number of an event that was published just now or a little earlier, if it has one.

        ``run`` gives a connection that acts for the account.
        """
        if event_id not in self._known:
            wanted = self._wanted.setdefault(place, {})
            future = wanted.setdefault(event_id, asyncio.get_running_loop().create_future())
            if place not in self._readers:
                self._readers[place] = asyncio.create_task(self._read(run, place))
            try:
                async with asyncio.timeout(LONGEST_SECONDS):
                    await asyncio.shield(future)
            except TimeoutError:
                wanted.pop(event_id, None)
        found = self._known.get(event_id)
        return None if found is None else number(found)

    async def _read(self, run: Run, place: Place) -> None:
        wanted, pause, back = self._wanted[place], _FIRST_PAUSE_SECONDS, _FIRST_BACK
        try:
            while wanted:
                found = await self._some(run, place, back)
                back = _BACK
                for event_id, sequence in found:
                    self._known[event_id] = sequence
                    if (future := wanted.pop(event_id, None)) is not None and not future.done():
                        future.set_result(sequence)
                self._forget()  # not only at the end: sends that overlap never let it come
                pause = _FIRST_PAUSE_SECONDS if found else min(2 * pause, _LONGEST_PAUSE_SECONDS)
                if not found:
                    await asyncio.sleep(pause)
        except Exception:
            # The message is sent: it is answered without the number.
            logger.warning("sequence numbers of a queue cannot be read", exc_info=True)
        finally:
            for future in wanted.values():
                if not future.done():
                    future.set_result(0)  # nobody reads on for it
            del self._readers[place], self._wanted[place]
            self._forget()

    async def _some(self, run: Run, place: Place, back: int) -> list[tuple[UUID, int]]:
        """What follows.  Only ids are kept, and what is read for them has room like an answer."""
        ends = self._ends.setdefault(place, {})
        with closing(AnswerShare(self._room, place[0])) as share:
            room = await share.take(size_of(_LONGEST_AT_ONCE))
            work = partial(_after, topic=place[1], ends=ends, back=back, room=room)
            found: list[tuple[UUID, int]] = await run(work)
            return found

    def _forget(self) -> None:
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        while len(self._ends) > _MOST_KNOWN:
            self._ends.popitem(last=False)


def _after(
    connection: Any, topic: str, ends: dict[int, int], back: int, room: int
) -> list[tuple[UUID, int]]:
    """Events after the places that are known, each with its sequence; the places move on."""
    found: list[tuple[UUID, int]] = []
    for part in names.partition_ranges(connection, topic):
        last = part.high_watermark
        first = max(ends.get(part.partition, 0) + 1, last - back + 1, part.low_sequence)
        if first <= last:
            some = _ids(connection, topic, part.partition, first, room)
            found += some
            last = some[-1][1] if some else last
        ends[part.partition] = last
    return found


def _ids(
    connection: Any, topic: str, partition: int, first: int, room: int
) -> list[tuple[UUID, int]]:
    """The next events of a partition, each with its sequence; what was read with them is let go."""
    events = fetch_fitting(connection, topic, partition, first, most=_AT_ONCE, room=room)
    return [(each.event_id, each.sequence) for each in events]
