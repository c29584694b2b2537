"""Partitions that a relay leaves alone for a while after a failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from penstock.records import Lease

#: How often it has failed, until when it is left alone, and under which lease.
_NEVER = (0, 0.0, 0)


class Pauses:
    """How often each partition has failed in a row, and until when it is left alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[int, tuple[int, float, int]] = {}

    def __bool__(self) -> bool:
        """Whether a partition waits for its next attempt."""
        return bool(self._failures)

    def is_over(self, lease: Lease) -> bool:
        """Whether the partition can be worked on."""
        return self._failures.get(lease.partition_id, _NEVER)[1] <= self._clock()

    def attempts(self, lease: Lease) -> int:
        """How often the partition has failed in a row."""
        return self._failures.get(lease.partition_id, _NEVER)[0]

    def keep(self, held: Iterable[Lease]) -> None:
        """Forget those whose leases are not held any more: others try them now."""
        epochs = {each.partition_id: each.lease_epoch for each in held}
        self._failures = {
            partition: failure
            for partition, failure in self._failures.items()
            if epochs.get(partition) == failure[2]
        }

    def begin(self, lease: Lease, seconds: float) -> None:
        """After a failure: leave the partition alone for a while."""
        until = self._clock() + seconds
        failures = self.attempts(lease) + 1
        self._failures[lease.partition_id] = failures, until, lease.lease_epoch

    def end(self, lease: Lease) -> None:
        """After success: the next failure of the partition counts as the first."""
        self._failures.pop(lease.partition_id, None)
