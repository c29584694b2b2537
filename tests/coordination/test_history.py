"""Random consumers on every registry.  A separate checker judges what was accepted (S9 to S11)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from penstock.errors import BackwardCommit, DuplicateSession, StaleLease, UnknownConsumer
from penstock.leases.coordination import LeaseRegistry
from tests.coordination.bench import Bench, InMemory
from tests.kit.proof import proves

STEPS = 100
NAMES = ("a", "b", "c")


@dataclass
class Judge:
    """What was accepted, in order; ``faults`` is what no registry may do."""

    epochs: dict[int, int] = field(default_factory=dict)
    holders: dict[int, tuple[str, int] | None] = field(default_factory=dict)
    positions: dict[int, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def claimed(self, partition_id: int, consumer: str, epoch: int) -> None:
        if self.holders.get(partition_id) is not None:
            self.faults.append(f"{consumer} took {partition_id} from the living")
        if epoch <= self.epochs.get(partition_id, 0):
            self.faults.append(f"lease_epoch {epoch} of {partition_id} was given out before")
        self.epochs[partition_id] = epoch
        self.holders[partition_id] = (consumer, epoch)

    def committed(self, partition_id: int, consumer: str, position: int, epoch: int) -> None:
        if self.holders.get(partition_id) != (consumer, epoch):
            self.faults.append(f"a stale commit of {consumer} on {partition_id}")
        if position <= self.positions.get(partition_id, 0):
            self.faults.append(f"{partition_id} went back to {position}")
        self.positions[partition_id] = position

    def gone(self, consumer: str) -> None:
        for partition_id, holder in self.holders.items():
            if holder is not None and holder[0] == consumer:
                self.holders[partition_id] = None


class Play:
    """Three consumers on registries of their own, with every lease that they ever had in mind."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self.random = random.Random(seed)
        self.judge = Judge()
        self.registries: dict[str, LeaseRegistry] = {name: bench.open() for name in NAMES}
        self.had: list[tuple[int, str, int]] = []
        self.alive: set[str] = set()

    def run(self, steps: int) -> Judge:
        moves = [
            self.join,
            self.die,
            self.claim,
            self.claim,
            self.commit,
            self.commit,
            self.release,
        ]
        for _ in range(steps):
            self.random.choice(moves)(self.random.choice(NAMES))
        return self.judge

    def join(self, name: str) -> None:
        try:
            self.registries[name].register(name)
        except DuplicateSession:
            assert name in self.alive
            return
        assert name not in self.alive
        self.alive.add(name)

    def die(self, name: str) -> None:
        if name in self.alive and self.random.random() < 0.3:
            self.bench.expire(name)
            self.alive.remove(name)
            self.judge.gone(name)

    def claim(self, name: str) -> None:
        partition_id = self.random.choice(self.bench.partition_ids[:2])
        seen = self.judge.epochs.get(partition_id, 0) - self.random.choice((0, 0, 0, 1))
        try:
            held = self.registries[name].claim(partition_id, name, max(seen, 0))
        except UnknownConsumer:
            assert name not in self.alive
            return
        if held is not None:
            self.judge.claimed(partition_id, name, held.lease_epoch)
            self.had.append((partition_id, name, held.lease_epoch))

    def commit(self, _: str) -> None:
        if not self.had:
            return
        partition_id, name, epoch = self.random.choice(self.had[-6:])
        ahead = self.judge.positions.get(partition_id, 0) + self.random.randint(-1, 2)
        position = min(max(ahead, 1), self.bench.last_event)
        try:
            self.registries[name].update_position(partition_id, name, position, epoch)
        except (StaleLease, BackwardCommit):
            return
        self.judge.committed(partition_id, name, position, epoch)

    def release(self, _: str) -> None:
        if self.had and self.random.random() < 0.4:
            partition_id, name, epoch = self.random.choice(self.had[-4:])
            given_back = self.registries[name].release(partition_id, name, epoch)
            if given_back and self.judge.holders.get(partition_id) == (name, epoch):
                self.judge.holders[partition_id] = None


@proves("S9, S10, S11 on every registry")
def test_random_consumers(bench: Bench) -> None:
    judge = Play(bench, seed=1).run(STEPS)
    assert judge.faults == []
    assert len(judge.epochs) == 2  # it did something
    assert judge.positions


def test_many_seeds_in_memory() -> None:
    for seed in range(40):
        assert Play(InMemory(), seed).run(STEPS).faults == [], f"seed {seed}"


@proves("S9, S10, S11 on every registry", guard="the checker")
@pytest.mark.parametrize(
    ("guard", "fault"),
    [
        ("a live lease is not taken", "from the living"),
        ("the epoch grows", "was given out before"),
        ("the epoch of a commit", "a stale commit"),
        ("the dead do not commit", "a stale commit"),
        ("positions move forward", "went back"),
    ],
)
def test_the_judge_sees_mutants(guard: str, fault: str) -> None:
    seen = 0
    for seed in range(20):
        bench = InMemory()
        bench.without(guard)
        seen += any(fault in each for each in Play(bench, seed).run(STEPS).faults)
    assert seen >= 5, f"only {seen} of 20 seeds show that {guard!r} is gone"
