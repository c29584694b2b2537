"""What follows when an event fails: again after a pause, or it is given up."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.database.backoff import doubled
from penstock.records import Event
from penstock.subscriptions.policies import SubscriptionPolicy


@dataclass(slots=True)
class Failing:
    """An event that failed: how often in a row, when it is due again, and why it failed last."""

    attempts: int = 0
    due: float = 0.0
    reason: str = ""
    #: The database counts it too, for whoever holds the partition next.
    on_record: bool = False
    #: The attempt that is on record was none: the next one is counted in its place.
    spared: bool = False


class Retries:
    """What has failed here, under the policy of the subscription, by partition and sequence."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._failing: dict[tuple[int, int], Failing] = {}

    def __bool__(self) -> bool:
        """Whether an event waits for its next attempt."""
        return bool(self._failing)

    def of(self, partition_id: int, sequence: int) -> Failing | None:
        """What is known of an event, if it has failed."""
        return self._failing.get((partition_id, sequence))

    def failed(
        self,
        partition_id: int,
        sequence: int,
        error: BaseException,
        policy: SubscriptionPolicy,
        now: float,
    ) -> Failing:
        """Count an attempt that failed; an exhausted event is due at once, to be given up."""
        found = self._failing.setdefault((partition_id, sequence), Failing())
        found.attempts += 1
        found.reason = f"{type(error).__name__}: {error}"
        exhausted = found.attempts >= policy.max_attempts
        found.due = now if exhausted else now + backoff(found.attempts, policy, self._rng)
        return found

    def counted(self, partition_id: int, sequence: int, attempts: int) -> None:
        """The database has counted so many attempts before the one that begins."""
        found = self._failing.setdefault((partition_id, sequence), Failing())
        found.attempts, found.on_record, found.spared = attempts, True, False

    def spare(self, partition_id: int, sequence: int) -> None:
        """What was handed out came back by no fault of its own."""
        found = self._failing.get((partition_id, sequence))
        if found is not None:
            found.spared = found.on_record

    def forget_record(self, partition_id: int) -> None:
        """The lease was lost: what was counted in the database may have been counted on."""
        for (place, _), found in self._failing.items():
            if place == partition_id:
                found.on_record = False

    def succeeded(self, partition_id: int, events: Iterable[Event]) -> None:
        """Events that are done, or given up, have no attempts any more."""
        if self._failing:
            for event in events:
                self._failing.pop((partition_id, event.sequence), None)


def backoff(attempt: int, policy: SubscriptionPolicy, rng: random.Random) -> float:
    """Doubles from the first pause to the longest; ``jitter`` is the share that is drawn."""
    first, longest = policy.first_backoff_seconds, policy.longest_backoff_seconds
    return doubled(attempt, first, longest) * (1.0 - policy.jitter * rng.random())
