"""What a consumer has in hand of one partition, and how far it is done.  No input, no output.

Events wait in lanes: one lane for the whole partition, or, where keys are worked on side by side,
one for each key.  Of a lane nothing is begun before what came earlier in it is done, so a key keeps
its order.  Lanes end in any order, and the position may only be committed up to ``done``: the end
of the contiguous prefix, behind which nothing is unfinished.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.records import Event, Lease, payload_bytes

if TYPE_CHECKING:
    from penstock.policies import SubscriptionPolicy

#: What is kept of an event beside its payload, roughly: row, key, headers, objects.
OVERHEAD_BYTES = 700


def whole_partition(event: Event) -> Hashable:
    """One lane."""
    return None


def by_key(event: Event) -> Hashable:
    """A lane for each key; an event without a key waits for nothing."""
    return event.sequence if event.key is None else event.key


@dataclass(slots=True)
class Unit:
    """Events of one lane that are handed over together.

    A commit of its own goes from ``after``, the position when it was begun, to ``through``.
    """

    work: InHand
    lane: Hashable
    events: list[Event]
    after: int
    through: int
    #: How many of them are done; the handler's side counts, the consumer's side reads.
    done: int = 0
    #: When the event that is being handled was begun, by the monotonic clock.
    began: float = 0.0
    #: Set when nobody waits for it any more.
    abandoned: bool = False
    #: What the consumer knew of the subscription when it was begun: one version for all of it.
    policy: SubscriptionPolicy | None = None


class InHand:
    """Events of one partition, read under one lease."""

    def __init__(
        self,
        lease: Lease,
        *,
        lane_of: Callable[[Event], Hashable] = whole_partition,
        limits: dict[Hashable, int] | None = None,
    ) -> None:
        self.lease = lease
        #: The position in the database, as far as this consumer knows.
        self.committed = lease.position
        #: Everything up to here is done.
        self.done = lease.position
        #: Everything up to here was read.
        self.read = lease.position
        #: Nothing of it counts any more: the lease is gone.
        self.closed = False
        #: Handled since the last commit, and the time of the first of them.
        self.handled = 0
        self.first_done_at: float | None = None
        self.rows = 0
        self.bytes = 0
        self.under_way = 0
        self._lane_of = lane_of
        self._is_one_lane = lane_of is whole_partition
        self._lanes: dict[Hashable, deque[Event]] = {}
        self._ready: deque[Hashable] = deque()
        self._paused: dict[Hashable, float] = {}
        #: How many events of a lane are handed out at once, where one of them fails.
        self._limits = {} if limits is None else limits
        #: Done, and something before them is not.
        self._ahead: set[int] = set()

    def take(self, events: Sequence[Event], wanted: Callable[[Event], bool] | None = None) -> int:
        """Events that were read behind ``read``; answers how many of them nobody wants.

        Those are done: the position passes them.
        """
        if not events:
            return 0
        self.read = events[-1].sequence
        passed = 0
        if wanted is not None:
            kept = [event for event in events if wanted(event)]
            passed = len(events) - len(kept)
            if passed:
                unwanted = {event.sequence for event in events}
                unwanted.difference_update(event.sequence for event in kept)
                self._ahead |= unwanted
                self._advance()
            events = kept
        self.rows += len(events)
        self.bytes += _size(events)
        if self._is_one_lane:
            self._put(None, events)
        else:
            for event in events:
                self._put(self._lane_of(event), (event,))
        return passed

    def begin(self, limit: int, now: float) -> Unit | None:
        """At most so many events of a lane of which nothing is under way and that has no pause."""
        if self._paused:
            self._resume(now)
        if not self._ready:
            return None
        lane = self._ready.popleft()
        waiting = self._lanes[lane]
        limit = min(limit, self._limits.get(lane, limit))
        if len(waiting) <= limit:
            events = list(waiting)
            waiting.clear()
        else:
            events = [waiting.popleft() for _ in range(limit)]
        self.under_way += 1
        through = events[-1].sequence
        if self._is_one_lane:
            through = waiting[0].sequence - 1 if waiting else self.read
        return Unit(self, lane, events, self.committed, through)

    def end(self, unit: Unit, done: int, now: float, *, pause_until: float | None = None) -> None:
        """The unit came back with its first ``done`` events done; the others are to be done again.

        Until ``pause_until`` nothing of its lane is begun.
        """
        self.under_way -= 1
        finished, rest = unit.events[:done], unit.events[done:]
        self._finish(finished, now)
        waiting = self._lanes[unit.lane]
        waiting.extendleft(reversed(rest))
        if not waiting:
            del self._lanes[unit.lane]
            self._limits.pop(unit.lane, None)
        elif pause_until is not None and pause_until > now:
            self._paused[unit.lane] = pause_until
        else:
            self._ready.append(unit.lane)

    def narrow(self, unit: Unit) -> None:
        """Hand out half as many events of its lane at once: one of them fails."""
        self._limits[unit.lane] = max(1, (len(unit.events) - unit.done) // 2)

    def widen(self, unit: Unit) -> None:
        """Hand out twice as many again: the unit went well."""
        limit = self._limits.get(unit.lane)
        if limit is not None:
            self._limits[unit.lane] = limit * 2

    @property
    def next_pause_end(self) -> float | None:
        """When the first paused lane goes on."""
        return min(self._paused.values(), default=None)

    def drop_waiting(self) -> None:
        """Forget what was not begun: somebody else will read it."""
        for lane, waiting in list(self._lanes.items()):
            self.rows -= len(waiting)
            self.bytes -= _size(waiting)
            waiting.clear()
            if lane in self._paused or lane in self._ready:
                del self._lanes[lane]
        self._ready.clear()
        self._paused.clear()

    def _put(self, lane: Hashable, events: Sequence[Event]) -> None:
        if not events:
            return
        waiting = self._lanes.get(lane)
        if waiting is not None:  # under way, ready or paused already
            waiting.extend(events)
            return
        self._lanes[lane] = deque(events)
        self._ready.append(lane)

    def _resume(self, now: float) -> None:
        for lane in [lane for lane, until in self._paused.items() if until <= now]:
            del self._paused[lane]
            self._ready.append(lane)

    def _finish(self, events: Sequence[Event], now: float) -> None:
        if not events:
            return
        self.rows -= len(events)
        self.bytes -= _size(events)
        self.handled += len(events)
        if self.first_done_at is None:
            self.first_done_at = now
        first, last = events[0].sequence, events[-1].sequence
        if first == self.done + 1 and last == self.done + len(events):
            self.done = last
        else:
            self._ahead.update(event.sequence for event in events)
        self._advance()

    def _advance(self) -> None:
        """To the end of the contiguous prefix: a hole is an event that is not done."""
        while self.done + 1 in self._ahead:
            self.done += 1
            self._ahead.remove(self.done)


def _size(events: Iterable[Event]) -> int:
    count, size = payload_bytes(events)
    return size + count * OVERHEAD_BYTES
