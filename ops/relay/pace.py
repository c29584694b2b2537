"""How fast a relay may send, and when it leaves a sink alone that does not take anything.

Both are rules of the sink's address (``rate``, ``rate_bytes``, ``breaker``, ``breaker_seconds``),
so they hold wherever the address goes, and for each process by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ops.sinks.pacing import Pacing
from penstock.records import Event

#: What was not used may be used later, up to so many seconds of it.
_CREDIT_SECONDS = 1.0
_LONGEST_OPEN = 300.0

CLOSED, OPEN, HALF_OPEN = "closed", "open", "half-open"


class RelayPace:
    """Says when the next block may be sent: at most so many events and bytes a second."""

    def __init__(self, pacing: Pacing, clock: Callable[[], float] = time.monotonic) -> None:
        self._pacing = pacing
        self._clock = clock
        self._due = clock()

    def wait_seconds(self) -> float:
        """How long to wait before the next block."""
        return max(0.0, self._due - self._clock())

    def spend(self, events: Sequence[Event]) -> None:
        """These are sent now."""
        pacing, costs = self._pacing, []
        if pacing.events_per_second:
            costs.append(len(events) / pacing.events_per_second)
        if pacing.bytes_per_second:
            costs.append(sum(len(each.payload) for each in events) / pacing.bytes_per_second)
        if not costs:
            return
        self._due = max(self._due, self._clock() - _CREDIT_SECONDS) + max(costs)


class Breaker:
    """Opens after so many failures in a row, then lets one block through to see.

    While it is open nothing is sent, so no attempt is spent on a sink that is away, whatever
    partition it would be of. Then it is half open: one block at a time, until one was stored. Each
    time that it opens again it stays open for twice as long.
    """

    def __init__(self, pacing: Pacing, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = pacing.breaker
        self._seconds = pacing.breaker_seconds
        self._clock = clock
        self._failures = 0
        self._openings = 0
        self._until = 0.0

    @property
    def state(self) -> str:
        """``closed``, ``open`` or ``half-open``."""
        if not self._openings:
            return CLOSED
        return OPEN if self._clock() < self._until else HALF_OPEN

    def lets_through(self, under_way: int) -> bool:
        """Whether another block may be begun while so many are under way."""
        state = self.state
        return state == CLOSED or (state == HALF_OPEN and under_way == 0)

    def failed(self) -> None:
        """The sink did not take a block."""
        self._failures += 1
        if not self._most or self.state == OPEN:
            return
        if self._openings or self._failures >= self._most:
            longest = min(self._seconds * 2**self._openings, _LONGEST_OPEN)
            self._openings += 1
            self._until = self._clock() + max(longest, self._seconds)

    def succeeded(self) -> None:
        """The sink has stored a block."""
        self._failures = self._openings = 0
