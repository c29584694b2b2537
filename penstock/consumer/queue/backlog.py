"""Events that a consumer of a queue has received and that no handler has begun.

A handler that becomes free takes its next event here, in its own thread.  So it waits neither for
the consumer's thread nor for the acknowledgement of the event before.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable

from penstock.consumer.handlers.executors import Outcome
from penstock.consumer.queue.delivery import DeliveryWork, HeldDelivery
from penstock.consumer.queue.settling import is_done


class Backlog:
    """Hands out the oldest first; not what is near its end, and not too much ahead of the database.

    ``together`` is how many finished events are acknowledged in one call.  A suspect is handled
    alone: only the consumer takes it, when it has nothing else in hand.
    """

    def __init__(self, clock: Callable[[], float], *, together: int) -> None:
        self._clock = clock
        self._together = together
        self._units: deque[HeldDelivery] = deque()
        self._lock = threading.Lock()
        #: How many events have ended of which the database was not told yet.
        self._untold = 0
        #: A claim with less time left than this is not begun.
        self.spare_seconds = 0.0
        #: The consumer receives more when only so many are left.
        self.low = 0

    def __len__(self) -> int:
        return len(self._units)

    def extend(self, units: Iterable[HeldDelivery]) -> None:
        """Add what was received."""
        with self._lock:
            self._units.extend(units)

    def take(self, *, alone: bool = False) -> HeldDelivery | None:
        """The next event to begin; None when there is none, or none may be begun now.

        ``alone``: nothing else is in hand.
        """
        with self._lock:
            return self._take() if alone or self._suspect() is None else None

    def after_one(
        self, outcome: Outcome[HeldDelivery, DeliveryWork], *, is_last: bool
    ) -> tuple[HeldDelivery | None, bool]:
        """As :class:`penstock.consumer.handlers.executors.Supply` says."""
        with self._lock:
            self._untold += 1
            following = None if is_last or self._suspect() is not None else self._take()
            is_enough = self._untold in (1, self._together) or len(self._units) == self.low
            return following, following is None or is_enough or not is_done(outcome)

    def count(self, events: int) -> None:
        """So many more events have ended, or, where it is negative, the database was told."""
        with self._lock:
            self._untold += events

    def take_late(self) -> list[HeldDelivery]:
        """Those that nobody may begin any more, because their claims are near their end.

        A suspect waits on: others would give it back too, and it would never come to its turn.
        """
        late: list[HeldDelivery] = []
        with self._lock:
            while self._units and self._is_late(self._units[0]):
                if self._suspect() is not None:
                    break
                late.append(self._units.popleft())
        return late

    def suspect(self) -> HeldDelivery | None:
        """What comes next, if that is handled alone."""
        with self._lock:
            return self._suspect()

    def drop_lost(self) -> None:
        """Forget a suspect that another worker has got while it waited here."""
        with self._lock:
            if self._units and self._units[0].lost:
                self._units.popleft()

    def has_suspect(self) -> bool:
        """Whether one waits.  It came last, because the consumer then receives no more."""
        with self._lock:
            return bool(self._units) and self._units[-1].is_suspect

    def take_all(self) -> list[HeldDelivery]:
        """All of them."""
        with self._lock:
            left = list(self._units)
            self._units.clear()
            return left

    def late_at(self) -> float:
        """When the first of them is near its end."""
        with self._lock:
            return self._units[0].until - self.spare_seconds if self._units else math.inf

    def _take(self) -> HeldDelivery | None:
        # While one call tells the database of some, handlers go on with as many again.
        if not self._units or self._untold >= 2 * self._together - 1:
            return None
        return None if self._is_late(self._units[0]) else self._units.popleft()

    def _suspect(self) -> HeldDelivery | None:
        return self._units[0] if self._units and self._units[0].is_suspect else None

    def _is_late(self, unit: HeldDelivery) -> bool:
        return unit.until - self.spare_seconds <= self._clock()
