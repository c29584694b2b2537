"""What follows when an event fails: again after a pause, or it is given up."""

from __future__ import annotations

import random
from dataclasses import dataclass

from penstock.policies import SubscriptionPolicy

#: A pause that doubles so often is longer than any policy allows.
_MOST_DOUBLINGS = 40


@dataclass(frozen=True, slots=True)
class Verdict:
    """The attempt that failed, the pause before the next one, and whether there is to be none."""

    attempt: int
    pause: float
    exhausted: bool


class Retries:
    """Counts how often events failed in a row, under the policy of the subscription."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        #: By partition id and sequence: attempts, and when the next one is due.
        self._failing: dict[tuple[int, int], tuple[int, float]] = {}

    def __bool__(self) -> bool:
        """Whether an event waits for its next attempt."""
        return bool(self._failing)

    def failed(
        self, partition_id: int, sequence: int, policy: SubscriptionPolicy, now: float
    ) -> Verdict:
        """Count an attempt that failed."""
        attempts, _ = self._failing.get((partition_id, sequence), (0, 0.0))
        attempts += 1
        pause = backoff(attempts, policy, self._rng)
        self._failing[partition_id, sequence] = (attempts, now + pause)
        return Verdict(attempts, pause, attempts >= policy.max_attempts)

    def due(self, partition_id: int, sequence: int) -> float:
        """When the next attempt is due, also after the lease was away in between."""
        return self._failing.get((partition_id, sequence), (0, 0.0))[1]

    def succeeded(self, partition_id: int, first: int, last: int) -> None:
        """Events that are done have no attempts any more."""
        if not self._failing:
            return
        for place in list(self._failing):
            if place[0] == partition_id and first <= place[1] <= last:
                del self._failing[place]


def backoff(attempt: int, policy: SubscriptionPolicy, rng: random.Random) -> float:
    """Doubles from the first pause to the longest; ``jitter`` is the share that is drawn."""
    doubled = policy.first_backoff_seconds * 2.0 ** min(attempt - 1, _MOST_DOUBLINGS)
    longest = min(policy.longest_backoff_seconds, doubled)
    return longest * (1.0 - policy.jitter * rng.random())
