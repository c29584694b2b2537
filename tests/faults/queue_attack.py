"""The history of queues alone: many jobs, servers that are killed, and a queue that begins late.

The topic is cleaned meanwhile, without an archive.  ``late`` cannot begin below what is left; it
begins there, gets all from there on, and retention waits for it as for the others.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest

from ops.seal import seal
from penstock import database
from penstock.errors import BelowLowSequence
from penstock.subscriptions import queue, stream
from tests.faults.queue_hooks import FIRST_PARTITION
from tests.faults.queues import LATE, TOPIC, WORKERS, MixedQueues, QueueWorld
from tests.faults.world import log_of
from tests.kit.cleaning import clean_unread

#: The queues that are worked off.
QUEUES = ("jobs", "keyed", LATE)


@dataclass
class CleanedWorld(QueueWorld):
    """Remembers what of the log is dropped."""

    subscriptions: tuple[str, ...] = ()
    dropped: defaultdict[int, list[list[Any]]] = field(default_factory=lambda: defaultdict(list))
    epoch_events: int = 20
    #: Where the late queue began, by partition.
    begins: dict[int, int] = field(default_factory=dict)

    def jobs_of(self, connection: Any, partition: int) -> Iterable[list[Any]]:
        """Also those that are dropped."""
        known = self.dropped[partition]
        known += log_of(connection, TOPIC, partition, len(known) + 1)
        return known

    def low(self, connection: Any) -> dict[int, int]:
        """The low sequences."""
        return dict(database.call(connection, "low_sequences", topic=TOPIC))

    def clean(self) -> None:
        """Seal and drop what all queues have passed; what is sealed is written down first."""
        with closing(self.connect()) as own:
            seal(own, TOPIC, max_events=self.epoch_events)
            for partition in range(self.partitions):
                self.jobs_of(own, partition)
            clean_unread(own, TOPIC)

    def _described(self, connection: Any, name: str) -> dict[str, Any]:
        begins = self.begins if name == LATE else {}
        return {
            **super()._described(connection, name),
            "begins": {str(each + FIRST_PARTITION): low for each, low in begins.items()},
        }


class QueueAttack(MixedQueues):
    """Publishers and workers of queues, and faults drawn by a seed until so much is done."""

    world: CleanedWorld

    def begin_attack(self, pause: float) -> None:
        """Start everybody, and wait until all are at work."""
        world = self.world
        world.set_up()
        world.tend = world.revive
        with closing(world.connect()) as own:
            stream.unsubscribe(own, "shell")
            kept = {"minimum_age_seconds": 0, "copies": 0, "origin": "hand", "targets": []}
            database.call(own, "set_retention", max_bytes=None, topic=TOPIC, **kept)
        world.start("sequencer", "s1")
        words = ["--poison=raise", "--poison=dead", "--poisons=0.01"]
        for number in range(2):
            seed = f"--seed={self.chance.randrange(10**6)}"
            world.start(
                "publisher", f"q{number}", f"--topic={TOPIC}", f"--pause={pause}", seed, *words
            )
        for name in ("jobs", "keyed"):
            self._workers(name)
        self._at_work()

    def _workers(self, name: str) -> None:
        for number in range(self.workers):
            self.consumer(name, f"{name}{number}")

    def _at_work(self) -> None:
        names = self._names(WORKERS)
        self.world.until(lambda: all(map(self._has_received, names)), "each worker has an event")

    def begin_late(self) -> None:
        """A queue that would begin below the low sequence is refused; then it begins at it."""
        world = self.world
        with closing(world.connect()) as own:
            world.until(lambda: self._cleaned(own), "something is dropped")
            with pytest.raises(BelowLowSequence):
                database.call(own, "subscribe_queue", subscription=LATE, topics=[TOPIC], start="1")
            world.make(own, LATE)
            for partition in range(world.partitions):
                position = stream.position(own, LATE, TOPIC)[partition]
                world.begins[partition] = position + 1
        self._workers(LATE)
        self._at_work()

    def _cleaned(self, own: Any) -> bool:
        with contextlib.suppress(Exception):  # somebody was killed meanwhile
            self.world.clean()
        return all(low > 1 for low in self.world.low(own).values())

    def moves(self) -> int:
        """How many events are at their end."""
        return len(self.world.records("finish"))

    def attack(self, faults: list[str], jobs: int) -> None:
        """These faults, again and again, until so many jobs are done; it is cleaned between."""
        self.play(faults)
        while self.done() < jobs:
            self.play(self.chance.sample(faults, max(len(faults) // 4, 1)))
            with contextlib.suppress(Exception):
                self.world.clean()
            self.progress(min(500, jobs // 10))

    def done(self) -> int:
        """How many jobs have their effect."""
        with closing(self.world.connect()) as own:
            return int(database.execute(own, "SELECT COUNT(*) FROM done")[0][0])

    def numbers(self) -> dict[str, Any]:
        """What happened."""
        with closing(self.world.connect()) as own:
            dead = {name: queue.statistics(own, name).dead for name in QUEUES}
        stale = self.world.records("finish", "fail", error="StaleReceipt")
        return {
            "jobs done": self.done(), "dead": dead, "faults": dict(self.world.done),
            "late began at": self.world.begins, "stale receipts refused": len(stale),
        }  # fmt: skip
