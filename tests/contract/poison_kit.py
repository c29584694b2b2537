"""What the tests of events that cannot be handled share: a consumer, poison, and the letters."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from penstock.consumer.stream.consumer import Batch, Consumer
from penstock.records import Event
from penstock.subscriptions import dead_letters
from tests.contract.databases import ContractDatabase
from tests.kit.stream import SUBSCRIPTION


def new_consumer(db: ContractDatabase, **options: Any) -> Consumer:
    """A consumer that looks often."""
    given: dict[str, Any] = {"consumer_id": "a", "idle_seconds": 0.05} | options
    return Consumer(db.url, SUBSCRIPTION, **given)


def letters_of(connection: Any) -> list[tuple[int, str, int]]:
    """A sequence, a state and a number of attempts for each."""
    found = dead_letters.dead_letters(connection, SUBSCRIPTION)
    return sorted((each.sequence, each.state, each.attempts) for each in found)


class Poisoned:
    """Fails at some sequences; what was handled, by key, and how often each was tried."""

    def __init__(self, *sequences: int) -> None:
        self.sequences = set(sequences)
        self.tried: dict[int, int] = defaultdict(int)
        self.seen: dict[str | None, list[int]] = defaultdict(list)

    def by_event(self, event: Event) -> None:
        self.tried[event.sequence] += 1
        if event.sequence in self.sequences:
            raise ValueError(f"poison {event.sequence}")
        self.seen[event.key].append(event.sequence)

    def by_batch(self, batch: Batch) -> None:
        for event in batch:
            self.tried[event.sequence] += 1
        if self.sequences & {event.sequence for event in batch}:
            raise ValueError("poison")
        for event in batch:
            self.seen[event.key].append(event.sequence)

    async def by_task(self, event: Event) -> None:
        await asyncio.sleep(0)
        self.by_event(event)
