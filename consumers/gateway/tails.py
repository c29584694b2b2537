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
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from consumers.gateway.answers import Refused, as_refused
from consumers.gateway.pool import Pool, Principal
from consumers.gateway.room import (
    MOST_EVENT_BYTES,
    AnswerRoom,
    AnswerShare,
    most_events,
    size_of,
)
from ops.sinks.cloudevents import to_json
from penstock import log
from penstock.records import Event, PartitionRange
from penstock.topics import names

logger = logging.getLogger("penstock.gateway")

MOST_KEPT = 2_048
MOST_KEPT_BYTES = 8_388_608
#: Of all rings together; each topic that is listened to has an equal part.
ALL_KEPT_BYTES = 67_108_864
#: Events of a partition in one read.
_AT_ONCE = 100
#: The reader of a topic has room for so many, whatever is in them, and so for many short ones.
_READ_EVENTS = 8
#: What a listener takes out of the ring at a time: so long its caller may keep it.
MOST_TAKEN_BYTES = 65_536
FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class KeptEvent:
    """An event of the ring: its place in the log, and what is sent of it."""

    partition: int
    sequence: int
    history: int
    data: bytes

    @classmethod
    def of(cls, event: Event) -> KeptEvent:
        """An event as it is sent."""
        return cls(event.partition, event.sequence, event.history, to_json(event))


@dataclass(slots=True)
class Ring:
    """The newest events; each has a number that never comes again."""

    kept: deque[KeptEvent] = field(default_factory=deque)
    next_number: int = 0
    size: int = 0

    def add(self, event: KeptEvent, most_bytes: int = MOST_KEPT_BYTES) -> None:
        """Add one, and drop the oldest while there are too many; one that is too long, too."""
        self.kept.append(event)
        self.next_number += 1
        self.size += len(event.data)
        while len(self.kept) > MOST_KEPT or self.size > most_bytes:
            self.size -= len(self.kept.popleft().data)

    def skip(self) -> None:
        """Something may have come that is not kept here."""
        self.kept.clear()
        self.size = 0
        self.next_number += 1

    def since(self, number: int) -> list[KeptEvent] | None:
        """Some from a number on, or the only next one; None when it was dropped already."""
        first = self.next_number - len(self.kept)
        if number < first:
            return None
        found: list[KeptEvent] = []
        size = 0
        for event in islice(self.kept, number - first, None):
            size += len(event.data)
            if found and size > MOST_TAKEN_BYTES:
                break
            found.append(event)
        return found


class TopicTail:
    """The reader of one topic, which works while somebody listens."""

    def __init__(self, pool: Pool, room: AnswerRoom, topic: str, tails: Sized) -> None:
        self.ring = Ring()
        self.seats: list[Seat] = []
        self._pool = pool
        self._room = room
        self._tails = tails
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
        while self.seats:
            # It reads for any of them; each asks for its own right by itself.
            seat = self.seats[0]
            is_first = self._known is None
            try:
                events = await self._read_for(seat)
                if is_first:
                    # Who has fetched before this look may have missed what came between.
                    self.ring.skip()
                    self._wake()
            except Exception as error:
                problem = error if isinstance(error, Refused) else as_refused(error)
                if problem is None:
                    logger.exception("a topic cannot be read for its listeners")
                elif problem.status < 429:  # noqa: PLR2004 - this listener may not, or no longer
                    self.lose(seat)
                    self._known = None  # the topic may be another one of this name
                events = []
            most_bytes = min(MOST_KEPT_BYTES, ALL_KEPT_BYTES // max(1, len(self._tails)))
            for event in events:
                self.ring.add(event, most_bytes)
            if events:
                self._wake()
                pause = FIRST_PAUSE_SECONDS
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def lose(self, seat: Seat) -> None:
        """Read no longer for this one, and let it know."""
        seat.is_lost = True
        if seat in self.seats:
            self.seats.remove(seat)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _read_for(self, seat: Seat) -> list[KeptEvent]:
        with closing(AnswerShare(self._room, seat.principal.account_id)) as share:
            size = await share.take(size_of(_READ_EVENTS))
            return await self._pool.run(seat.principal, partial(self._look, size=size))

    def _look(self, connection: Any, size: int) -> list[KeptEvent]:
        ranges = names.partition_ranges(connection, self._topic)
        known = self._known
        if known is None:
            known = {each.partition: each.high_watermark for each in ranges}
        found = read_on(connection, self._topic, ranges, known, size)
        self._known = known | {each.partition: each.sequence for each in found}
        return found


class Tails:
    """The tails of a process."""

    def __init__(self, pool: Pool, room: AnswerRoom) -> None:
        self._pool = pool
        self._room = room
        self._tails: dict[tuple[str, str], TopicTail] = {}

    @contextmanager
    def joined(self, principal: Principal, topic: str) -> Iterator[Seat]:
        """One more listener of a topic, until it leaves."""
        key = (principal.account_id, topic)
        tail = self._tails.setdefault(key, TopicTail(self._pool, self._room, topic, self._tails))
        seat = Seat(tail, principal)
        tail.seats.append(seat)
        if tail.task is None or tail.task.done():
            tail.task = asyncio.create_task(tail.read())
        try:
            yield seat
        finally:
            tail.lose(seat)
            if not tail.seats and self._tails.get(key) is tail:
                del self._tails[key]


@dataclass(slots=True, eq=False)
class Seat:
    """A listener of a tail; lost: the tail could not read for it."""

    tail: TopicTail
    principal: Principal
    is_lost: bool = False


def read_on(
    connection: Any,
    topic: str,
    ranges: Iterable[PartitionRange],
    known: Mapping[int, int],
    room: int,
) -> list[KeptEvent]:
    """The next events after these sequences, a few of each partition, in so many bytes."""
    found: list[KeptEvent] = []
    for each in ranges:
        after = known.get(each.partition, 0)
        if each.high_watermark > after and room >= MOST_EVENT_BYTES:
            most = min(_AT_ONCE, each.high_watermark - after)
            events = fetch_fitting(
                connection, topic, each.partition, after + 1, most=most, room=room
            )
            room -= sum(len(event.payload) for event in events)
            found += map(KeptEvent.of, events)
    return found


def fetch_fitting(
    connection: Any, topic: str, partition: int, begin: int, *, most: int, room: int
) -> list[Event]:
    """So many events, or fewer when they are long: the caller goes on after the last one.

    Nobody knows how long events are before they are read.  So it reads no more at a time than have
    room if each is as long as one may be.
    """
    found: list[Event] = []
    while len(found) < most and (room >= MOST_EVENT_BYTES or not found):
        wanted = min(most - len(found), most_events(room))
        some = log.fetch(connection, topic, partition, begin + len(found), wanted)
        found += some
        room -= sum(len(event.payload) for event in some)
        if len(some) < wanted:
            break
    return found
