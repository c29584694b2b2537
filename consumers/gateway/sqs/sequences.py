"""Sequence numbers of FIFO queues, told when a message is sent.

An event gets its sequence a moment after its commit.  So a send waits for it, and all sends of a
process that wait for the same queue share one reader of its newest events.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from uuid import UUID

from penstock import log
from penstock.topics import names

logger = logging.getLogger("penstock.gateway")

#: So long a send waits; then its answer is without the number.
LONGEST_SECONDS = 2.0
#: A reader begins so many events before the newest one, where it does not know the place.
_BACK = 2_000
_AT_ONCE = 200
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

    def __init__(self) -> None:
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
        wanted, pause = self._wanted[place], _FIRST_PAUSE_SECONDS
        try:
            while wanted:
                ends = self._ends.setdefault(place, {})
                found = await run(partial(_after, topic=place[1], ends=ends))
                for event_id, sequence in found:
                    self._known[event_id] = sequence
                    if (future := wanted.pop(event_id, None)) is not None and not future.done():
                        future.set_result(sequence)
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

    def _forget(self) -> None:
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        while len(self._ends) > _MOST_KNOWN:
            self._ends.popitem(last=False)


def _after(connection: Any, topic: str, ends: dict[int, int]) -> list[tuple[UUID, int]]:
    """Events after the places that are known, each with its sequence; the places move on."""
    found = []
    for part in names.partition_ranges(connection, topic):
        last = part.high_watermark
        first = max(ends.get(part.partition, 0) + 1, last - _BACK + 1, part.low_sequence)
        if first <= last:
            events = log.fetch(connection, topic, part.partition, first, _AT_ONCE)
            found += [(each.event_id, each.sequence) for each in events]
            last = events[-1].sequence if events else last
        ends[part.partition] = last
    return found
