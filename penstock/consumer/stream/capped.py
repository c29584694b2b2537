"""A limit to how many events a consumer reads in a second, for replays beside live traffic."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.consumer.stream.cold_reads import Poll
    from penstock.database import Connection
    from penstock.records import Event, Lease


class CappedReads:
    """A poll that brings so many events in a second on average, and at most those of one second.

    Where nothing may be read yet it returns nothing, and the reader looks again after its pause.
    """

    def __init__(self, poll: Poll, rate: float, clock: Callable[[], float]) -> None:
        self._poll = poll
        self._rate = rate
        self._clock = clock
        self._lock = threading.Lock()
        self._room = 0.0
        self._looked_at = clock()

    def poll(
        self,
        connection: Connection,
        leases: Sequence[Lease],
        max_events: int,
        max_each: int | None = None,
    ) -> list[tuple[Lease, list[Event]]]:
        """Unread events after the position of each lease, as far as there is room for them."""
        with self._lock:
            now = self._clock()
            most = max(self._rate, 1.0)
            self._room = min(most, self._room + (now - self._looked_at) * self._rate)
            self._looked_at = now
            most_now = min(max_events, int(self._room))
            if most_now < 1:
                return []
            found = self._poll(connection, leases, most_now, max_each)
            self._room -= sum(len(events) for _, events in found)
            return found
