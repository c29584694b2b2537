"""Partitions that a relay leaves alone for a while after a failure."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.records import Lease


class Pauses:
    """How often each partition has failed in a row, and until when it is left alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[int, tuple[int, float]] = {}

    def __bool__(self) -> bool:
        """Whether a partition waits for its next attempt."""
        return bool(self._failures)

    def is_over(self, lease: Lease) -> bool:
        """Whether the partition can be worked on."""
        _, until = self._failures.get(lease.partition_id, (0, 0.0))
        return until <= self._clock()

    def attempts(self, lease: Lease) -> int:
        """How often the partition has failed in a row."""
        return self._failures.get(lease.partition_id, (0, 0.0))[0]

    def begin(self, lease: Lease, seconds: float) -> None:
        """After a failure: leave the partition alone for a while."""
        until = self._clock() + seconds
        self._failures[lease.partition_id] = (self.attempts(lease) + 1, until)

    def end(self, lease: Lease) -> None:
        """After success: the next failure of the partition counts as the first."""
        self._failures.pop(lease.partition_id, None)
