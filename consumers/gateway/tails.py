"""Topics as streams of server-sent events: one reader a topic for all who listen.

The reader keeps the newest events in a ring.  A listener knows the last sequence that it has sent,
of each partition.  It takes an event from the ring only if it is the next one; what is missing
between them, it fetches.  So a slow listener falls back to fetching and misses nothing, and what
the ring drops is dropped for nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from consumers.gateway.answers import Refused, as_refused
from consumers.gateway.pool import Pool, Principal
from ops.sinks.cloudevents import to_json
from penstock import log
from penstock.records import Event, PartitionRange
from penstock.topics import names

logger = logging.getLogger("penstock.gateway")

MOST_KEPT = 2_048
MOST_KEPT_BYTES = 8_388_608
#: Events of one fetch.
_AT_ONCE = 200
FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Kept:
    """An event of the ring: its place in the log, and what is sent of it."""

    partition: int
    sequence: int
    history: int
    data: bytes

    @classmethod
    def of(cls, event: Event) -> Kept:
        """An event as it is sent."""
        return cls(event.partition, event.sequence, event.history, to_json(event))


@dataclass(slots=True)
class Ring:
    """The newest events; each has a number that never comes again."""

    kept: deque[Kept] = field(default_factory=deque)
    next_number: int = 0
    size: int = 0

    def add(self, event: Kept) -> None:
        """Add one, and drop the oldest while there are too many."""
        self.kept.append(event)
        self.next_number += 1
        self.size += len(event.data)
        while len(self.kept) > MOST_KEPT or (self.size > MOST_KEPT_BYTES and len(self.kept) > 1):
            self.size -= len(self.kept.popleft().data)

    def since(self, number: int) -> list[Kept] | None:
        """Those from a number on; None when one of them was dropped already."""
        first = self.next_number - len(self.kept)
        if number < first:
            return None
        return [self.kept[place] for place in range(number - first, len(self.kept))]


class Tail:
    """The reader of one topic, which works while somebody listens."""

    def __init__(self, pool: Pool, topic: str) -> None:
        self.ring = Ring()
        self.listeners: dict[object, Principal] = {}
        self._pool = pool
        self._topic = topic
        self._known: dict[int, int] | None = None
        self._changed = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def changed(self, seconds: float) -> None:
        """Wait until the ring has more, but no longer than this."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    async def read(self) -> None:
        """Read on until nobody listens."""
        pause = FIRST_PAUSE_SECONDS
        while self.listeners:
            # It reads for any of them; each asks for its own right by itself.
            listener, principal = next(iter(self.listeners.items()))
            try:
                events = await self._pool.run(principal, self._look)
            except Exception as error:
                problem = error if isinstance(error, Refused) else as_refused(error)
                if problem is None:
                    logger.exception("a topic cannot be read for its listeners")
                elif problem.status < 429:  # noqa: PLR2004 - this listener may not, or no longer
                    self.listeners.pop(listener, None)
                events = []
            for event in events:
                self.ring.add(event)
            if events:
                self._changed.set()
                self._changed = asyncio.Event()
                pause = FIRST_PAUSE_SECONDS
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _look(self, connection: Any) -> list[Kept]:
        ranges = names.partition_ranges(connection, self._topic)
        known = self._known
        if known is None:
            known = {each.partition: each.high_watermark for each in ranges}
        found = read_on(connection, self._topic, ranges, known)
        self._known = known | {each.partition: each.sequence for each in found}
        return found


class Tails:
    """The tails of a process."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._tails: dict[tuple[str, str], Tail] = {}

    def join(self, principal: Principal, topic: str) -> tuple[Tail, Callable[[], None]]:
        """The tail of a topic for one more listener, and what to call when it leaves."""
        key = (principal.account_id, topic)
        tail = self._tails.setdefault(key, Tail(self._pool, topic))
        listener = object()
        tail.listeners[listener] = principal
        if tail.task is None or tail.task.done():
            tail.task = asyncio.create_task(tail.read())

        def leave() -> None:
            tail.listeners.pop(listener, None)
            if not tail.listeners and self._tails.get(key) is tail:
                del self._tails[key]

        return tail, leave


def read_on(
    connection: Any, topic: str, ranges: Iterable[PartitionRange], known: Mapping[int, int]
) -> list[Kept]:
    """The next events after these sequences, a few of each partition."""
    found: list[Kept] = []
    for each in ranges:
        after = known.get(each.partition, 0)
        if each.high_watermark > after:
            most = min(_AT_ONCE, each.high_watermark - after)
            events = log.fetch(connection, topic, each.partition, after + 1, most)
            found += map(Kept.of, events)
    return found
