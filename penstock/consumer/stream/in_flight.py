"""What a consumer has in hand of one partition, and how far it is done.  No input, no output.

Events wait in lanes: one lane for the whole partition, or one for each key where several keys are
worked on at once.  In a lane, no event begins before the earlier ones are done, so a key keeps its
order.  Lanes end in any order.  The position may only be committed up to ``done``, the end of the
contiguous prefix: all events up to there are finished.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from penstock.records import Event, Lease, payload_bytes

if TYPE_CHECKING:
    from penstock.subscriptions.dead_letters import Redriven
    from penstock.subscriptions.policies import SubscriptionPolicy

_NONE = object()
#: What is kept of an event beside its payload, roughly: row, key, headers, objects.
OVERHEAD_BYTES = 700
#: How many suspects are handed out together.  Counted in sequences, as the next consumer counts
#: them after a crash.
SUSPECT_GROUP = 50


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

    work: PartitionBuffer
    lane: Hashable
    events: list[Event]
    after: int
    through: int
    #: The sequence of the first event.
    first: int
    #: How many of them are done.  The handler's side counts, the consumer's side reads.
    done: int = 0
    #: When the event that is being handled was begun, by the monotonic clock.
    began: float = 0.0
    #: When the handler was done with the unit.
    ended: float | None = None
    #: Set when the consumer waits for it no longer.
    abandoned: bool = False
    #: Sequences up to ``through`` whose keys are parked: a commit parks them as well.
    parked: tuple[int, ...] = ()
    #: Those of them that only the archive has.
    brought: tuple[Event, ...] = ()
    #: A redriven dead letter; the unit has it instead of events after the position.
    letter: Redriven | None = None
    #: Whether it may hold an event that crashed an earlier consumer.
    careful: bool = False
    #: Whether fewer events were handed out than there were, because one of the lane fails.
    narrowed: bool = False
    #: The subscription's settings when the unit began: one version for the whole unit.
    policy: SubscriptionPolicy | None = None


class PartitionBuffer:
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
        #: The lease is lost: nothing done under it counts any more.
        self.closed = False
        #: Events handled since the last commit, and the time of the first of them.
        self.handled = 0
        self.first_done_at: float | None = None
        self.rows = 0
        self.bytes = 0
        self.under_way = 0
        #: Events up to here may crash their consumer: handed out one group at a time, in order.
        self.careful_to = 0
        #: Events up to here are handed out each alone.
        self.alone_to = 0
        #: Events that have failed: each is handed out alone.
        self.alone: set[int] = set()
        #: Until then nothing begins or is committed, because the limit of parked events is reached.
        self.stands_until = 0.0
        self.letters: deque[Redriven] = deque()
        self.letter_under_way = False
        self._parked_keys: frozenset[str] = frozenset()
        #: Events that were passed over because their keys are parked, and wait for a commit.
        self.parking: set[int] = set()
        #: Events up to here came from the archive: the database cannot copy them.
        self.cold_to = 0
        #: Those of them that wait for a commit that parks them.
        self._cold_to_park: dict[int, Event] = {}
        self._lane_of = lane_of
        self._is_one_lane = lane_of is whole_partition
        self._lanes: dict[Hashable, deque[Event]] = {}
        self._ready: deque[Hashable] = deque()
        self._paused: dict[Hashable, float] = {}
        #: How many events of a lane are handed out at once, where one of them fails.
        self._limits = {} if limits is None else limits
        #: Done events that come after one that is not done.
        self._ahead: set[int] = set()

    def take(self, events: Sequence[Event], wanted: Callable[[Event], bool] | None = None) -> int:
        """Take events that were read after ``read``.  Returns how many of them the filter drops.

        Those count as done: the position passes them.
        """
        if not events:
            return 0
        self.read = events[-1].sequence
        passed = 0
        if self._parked_keys:
            waiting = [event for event in events if event.key not in self._parked_keys]
            self._keep_cold(event for event in events if event.key in self._parked_keys)
            self.parking |= self._pass_over(events, waiting)
            events = waiting
        if wanted is not None:
            kept = [event for event in events if wanted(event)]
            passed = len(self._pass_over(events, kept))
            events = kept
        count, size = payload_bytes(events)
        self.rows += count
        self.bytes += size + count * OVERHEAD_BYTES
        if self._is_one_lane:
            self._put(None, events)
        else:
            for event in events:
                self._put(self._lane_of(event), (event,))
        return passed

    def begin(self, limit: int, now: float) -> Unit | None:
        """At most so many events of one lane that has nothing under way and no pause."""
        if self._paused:
            self._resume(now)
        lane = self._next_lane(now)
        if lane is _NONE:
            return None
        waiting = self._lanes[lane]
        narrowed = self._limits.get(lane)
        limit = limit if narrowed is None else min(limit, narrowed)
        if self.careful_to or self.alone_to or self.alone:
            limit = min(limit, self._together(waiting, limit))
        if len(waiting) <= limit:
            events = list(waiting)
            waiting.clear()
        else:
            events = [waiting.popleft() for _ in range(limit)]
        self.under_way += 1
        if self._is_one_lane:
            through = waiting[0].sequence - 1 if waiting else self.read
        else:
            through = events[-1].sequence
        unit = Unit(self, lane, events, self.committed, through, events[0].sequence)
        unit.narrowed = narrowed is not None
        if self.parking:
            unit.parked = tuple(self.to_park(through))
            unit.brought = tuple(self.brought(unit.parked))
        return unit

    def begin_letter(self) -> Unit | None:
        """The next redriven dead letter; one at a time."""
        if self.letter_under_way or not self.letters:
            return None
        letter = self.letters.popleft()
        self.letter_under_way = True
        self.under_way += 1
        unit = Unit(
            self, _NONE, [letter.event], self.committed, self.committed, letter.event.sequence
        )
        unit.letter = letter
        return unit

    def end_letter(self) -> None:
        """The redriven dead letter came back."""
        self.letter_under_way = False
        self.under_way -= 1

    def end(self, unit: Unit, done: int, now: float, *, pause_until: float | None = None) -> None:
        """The unit came back with its first ``done`` events done.  The others come again.

        Nothing of its lane begins before ``pause_until``.
        """
        self.under_way -= 1
        finished, rest = unit.events[:done], unit.events[done:]
        self._finish(finished, unit.first, now)
        waiting = self._lanes[unit.lane]
        waiting.extendleft(reversed(rest))
        if not waiting:
            del self._lanes[unit.lane]
            self._limits.pop(unit.lane, None)
        elif pause_until is not None and pause_until > now:
            self._paused[unit.lane] = pause_until
        else:
            self._ready.append(unit.lane)

    def was_committed(self, position: int) -> None:
        """The database has this position now."""
        self.committed = position
        if not self.parking:
            return
        self.parking = {each for each in self.parking if each > position}
        for each in [each for each in self._cold_to_park if each <= position]:
            del self._cold_to_park[each]

    def to_park(self, position: int) -> list[int]:
        """Sequences that a commit up to a position has to park."""
        return sorted(each for each in self.parking if each <= position)

    def brought(self, sequences: Iterable[int]) -> list[Event]:
        """Those of these events to park that only the archive has."""
        return [self._cold_to_park[each] for each in sequences if each in self._cold_to_park]

    def _keep_cold(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.sequence <= self.cold_to:
                self._cold_to_park[event.sequence] = event

    def park(self, keys: frozenset[str]) -> None:
        """These keys are parked: their events in hand are passed over and parked."""
        self._parked_keys = keys
        for lane, waiting in list(self._lanes.items()):
            kept = [event for event in waiting if event.key not in keys]
            if len(kept) == len(waiting):
                continue
            gone = [event for event in waiting if event.key in keys]
            self.rows -= len(gone)
            self.bytes -= _size(gone)
            self._keep_cold(gone)
            self.parking |= self._pass_over(waiting, kept)
            waiting.clear()
            waiting.extend(kept)
            if not kept and (lane in self._ready or lane in self._paused):
                del self._lanes[lane]
                self._paused.pop(lane, None)
                if lane in self._ready:
                    self._ready.remove(lane)

    def narrow(self, unit: Unit) -> None:
        """Hand out half as many events of its lane at once, because one of them fails."""
        self._limits[unit.lane] = max(1, (len(unit.events) - unit.done) // 2)

    def widen(self, unit: Unit) -> None:
        """Hand out twice as many again, because the unit succeeded."""
        limit = self._limits.get(unit.lane)
        if limit is not None:
            self._limits[unit.lane] = limit * 2

    @property
    def next_pause_end(self) -> float | None:
        """When the first paused lane goes on."""
        return min(self._paused.values(), default=None)

    def drop_waiting(self) -> None:
        """Forget events that were not begun: another consumer will read them."""
        for lane, waiting in list(self._lanes.items()):
            self.rows -= len(waiting)
            self.bytes -= _size(waiting)
            waiting.clear()
            if lane in self._paused or lane in self._ready:
                del self._lanes[lane]
        self._ready.clear()
        self._paused.clear()

    def _next_lane(self, now: float) -> Hashable:
        """A lane that is ready.  With suspects, the lane of the first event after the position."""
        if now < self.stands_until:
            return _NONE
        if self.done < self.careful_to:
            careful = [
                lane for lane in self._ready if self._lanes[lane][0].sequence == self.done + 1
            ]
            if self.under_way > self.letter_under_way or not careful:
                return _NONE
            self._ready.remove(careful[0])
            return careful[0]
        return self._ready.popleft() if self._ready else _NONE

    def _together(self, waiting: deque[Event], most: int) -> int:
        """How many of a lane may be handed out at once, judged by its first event."""
        first = waiting[0].sequence
        if first in self.alone or first <= self.alone_to:
            return 1
        if first > self.careful_to:
            return most
        end = first + SUSPECT_GROUP
        return sum(event.sequence < end for event in islice(waiting, SUSPECT_GROUP))

    def _pass_over(self, events: Iterable[Event], kept: Iterable[Event]) -> set[int]:
        """Mark the events that are not kept as done.  Returns those events."""
        passed = {event.sequence for event in events}
        passed.difference_update(event.sequence for event in kept)
        self._ahead |= passed
        self._advance()
        return passed

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

    def _finish(self, events: Sequence[Event], first: int, now: float) -> None:
        if not events:
            return
        self.rows -= len(events)
        self.bytes = self.bytes - _size(events) if self.rows else 0
        self.handled += len(events)
        if self.first_done_at is None:
            self.first_done_at = now
        last = first if len(events) == 1 else events[-1].sequence
        if first == self.done + 1 and last == self.done + len(events):
            self.done = last
        else:
            self._ahead.update(event.sequence for event in events)
        if self._ahead:
            self._advance()

    def _advance(self) -> None:
        """Move ``done`` to the end of the contiguous prefix: a gap is an event that is not done."""
        while self.done + 1 in self._ahead:
            self.done += 1
            self._ahead.remove(self.done)


def _size(events: Iterable[Event]) -> int:
    count, size = payload_bytes(events)
    return size + count * OVERHEAD_BYTES
