"""Which consumer takes which partition: three ways, all over the same contract of a registry.

- :class:`WorkStealing` (the default): each consumer decides for itself, without a leader;
- :class:`Coordinated`: one elected leader decides, the others follow;
- :class:`Pinned`: by hand, consumer i of n.

Each object belongs to one consumer, whose loop calls :meth:`Assigner.check_in` at every heartbeat.
Nothing else keeps the consumer alive when that loop hangs.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from penstock.errors import StaleLease, UnknownConsumer
from penstock.leases import shares as fair_share
from penstock.leases.coordination.registry import Holding, LeaseRegistry, Snapshot

#: Called with {partition id: position} after a claim.
Assigned: TypeAlias = Callable[[Mapping[int, int]], object]
#: Called with partition ids, before they are given back: a last commit is still accepted.
Revoked: TypeAlias = Callable[[Sequence[int]], object]

#: What to give back and what to take.
Moves: TypeAlias = tuple[Sequence[int], Sequence[int]]

#: A partition without events keeps its lease for so long.
IDLE_SECONDS = 30.0


def ignore(_: object) -> None:
    """The default callback: it does nothing."""


class Assigner(ABC):
    """One consumer of a registry.  ``held`` are the partitions that it may work on."""

    def __init__(
        self,
        registry: LeaseRegistry,
        consumer: str,
        *,
        weight: float = 1.0,
        on_assigned: Assigned = ignore,
        on_revoked: Revoked = ignore,
    ) -> None:
        self.registry = registry
        self.consumer = consumer
        self.held: dict[int, Holding] = {}
        #: Partition and lease_epoch of what was taken from a consumer that died.
        self.inherited: set[tuple[int, int]] = set()
        #: Of the partitions to give back: returns those that can go now.  Asked at each check-in.
        self.may_go: Callable[[Sequence[int]], Sequence[int]] = list
        self._weight = weight
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked

    def join(self) -> None:
        """Become a live consumer.  Raises DuplicateSession when a run with this id is alive."""
        self.registry.register(self.consumer, self._weight)

    def check_in(self) -> None:
        """Stay alive, give back what others should have, then take this consumer's share.

        A consumer whose registration has ended joins again, and has lost what it held.
        """
        try:
            self.registry.renew(self.consumer)
        except UnknownConsumer:
            self.held.clear()
            self.join()
        snapshot = self.registry.snapshot()
        self._forget_lost(snapshot)
        release, acquire = self._moves(snapshot)
        self._give_back(self.may_go(release))
        self._take(acquire, snapshot)

    def give_back(self, partition_id: int, lease_epoch: int) -> None:
        """Give back one lease, if it is still held under the same lease_epoch."""
        held = self.held.get(partition_id)
        if held is not None and held.lease_epoch == lease_epoch:
            self._give_back([partition_id])

    def commit(self, partition_id: int, position: int) -> None:
        """Move a position forward, under the lease_epoch that came with the lease."""
        try:
            held = self.held[partition_id]
        except KeyError:
            raise StaleLease(f"{self.consumer!r} does not hold partition {partition_id}") from None
        try:
            self.registry.update_position(partition_id, self.consumer, position, held.lease_epoch)
        except StaleLease:
            del self.held[partition_id]
            raise
        self.held[partition_id] = replace(held, position=position)

    def leave(self) -> None:
        """Give everything back, and end the registration."""
        self._give_back(list(self.held))
        self.registry.deregister(self.consumer)

    @abstractmethod
    def _moves(self, snapshot: Snapshot) -> Moves:
        """Which partitions to give back and which to take, now."""

    def _forget_lost(self, snapshot: Snapshot) -> None:
        for partition_id, held in list(self.held.items()):
            present = snapshot.partitions.get(partition_id)
            if present is None or present.lease_epoch != held.lease_epoch or not present.live:
                del self.held[partition_id]

    def _give_back(self, partition_ids: Sequence[int]) -> None:
        mine = [each for each in partition_ids if each in self.held]
        if not mine:
            return
        self._on_revoked(mine)
        for partition_id in mine:
            held = self.held.pop(partition_id, None)
            if held is not None:
                self.registry.release(partition_id, self.consumer, held.lease_epoch)

    def _take(self, partition_ids: Sequence[int], snapshot: Snapshot) -> None:
        taken = {}
        for partition_id in partition_ids:
            seen = snapshot.partitions[partition_id]
            held = self.registry.claim(partition_id, self.consumer, seen.lease_epoch)
            if held is not None:
                self.held[partition_id] = held
                if seen.holder is not None:
                    self.inherited.add((partition_id, held.lease_epoch))
                taken[partition_id] = held.position
        if taken:
            self._on_assigned(taken)

    def _to_hold(self, wanted: Sequence[int], snapshot: Snapshot) -> Moves:
        """The moves towards exactly these partitions.  Those that another holds have to wait."""
        free = [each for each in wanted if not snapshot.partitions[each].live]
        return [each for each in self.held if each not in wanted], free


class WorkStealing(Assigner):
    """Fair shares by weight.  A consumer with too much gives back while another has too little.

    ``backlogs`` returns how many events wait on each partition: partitions without any are not
    leased.  Without ``backlogs``, every partition is leased.
    """

    def __init__(
        self,
        registry: LeaseRegistry,
        consumer: str,
        *,
        weight: float = 1.0,
        on_assigned: Assigned = ignore,
        on_revoked: Revoked = ignore,
        backlogs: Callable[[], Mapping[int, int]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        pivots: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(
            registry, consumer, weight=weight, on_assigned=on_assigned, on_revoked=on_revoked
        )
        self._backlogs = backlogs
        self._clock = clock
        self._pivots = pivots
        self._busy_at: dict[int, float] = {}

    def _moves(self, snapshot: Snapshot) -> Moves:
        backlogs = self._backlogs() if self._backlogs else dict.fromkeys(snapshot.partitions, 1)
        cold = self._cold(backlogs)
        holders = {
            each.partition_id: each.holder if each.live else None
            for each in snapshot.partitions.values()
            # Only the holder knows which idle leases it keeps, so a held partition counts.
            if each.partition_id not in cold and (each.live or backlogs.get(each.partition_id, 0))
        }
        shares = fair_share.quotas(snapshot.consumers, len(holders))
        surplus = fair_share.to_release(self.consumer, holders, shares, backlogs)
        wanted = fair_share.to_acquire(self.consumer, holders, shares, self._pivots())
        return [*cold, *surplus], wanted

    def _cold(self, backlogs: Mapping[int, int]) -> list[int]:
        """The held partitions that had no events for a while."""
        now = self._clock()
        self._busy_at = {
            partition_id: now
            if backlogs.get(partition_id)
            else self._busy_at.get(partition_id, now)
            for partition_id in self.held
        }
        return [each for each, at in self._busy_at.items() if now - at > IDLE_SECONDS]


class Coordinated(Assigner):
    """One leader decides for all and moves as little as it can.  Its term fences what it writes."""

    def _moves(self, snapshot: Snapshot) -> Moves:
        term = self.registry.lead(self.consumer)
        decided = snapshot.assignment.holders
        if term is not None:
            present = {
                each.partition_id: decided.get(
                    each.partition_id, each.holder if each.live else None
                )
                for each in snapshot.partitions.values()
            }
            decided = self._decide(term, snapshot, fair_share.sticky(present, snapshot.consumers))
        mine = [
            p for p, who in decided.items() if who == self.consumer and p in snapshot.partitions
        ]
        return self._to_hold(mine, snapshot)

    def _decide(
        self, term: int, snapshot: Snapshot, better: Mapping[int, str]
    ) -> Mapping[int, str]:
        if better != snapshot.assignment.holders:
            try:
                self.registry.assign(self.consumer, term, better)
            except StaleLease:
                return snapshot.assignment.holders  # another consumer leads by now
        return better


class Pinned(Assigner):
    """Consumer number ``place`` (from 0) of ``places``.  It never takes a partition of another."""

    def __init__(
        self,
        registry: LeaseRegistry,
        consumer: str,
        place: int,
        places: int,
        *,
        on_assigned: Assigned = ignore,
        on_revoked: Revoked = ignore,
    ) -> None:
        super().__init__(registry, consumer, on_assigned=on_assigned, on_revoked=on_revoked)
        self._place, self._places = fair_share.require_place(place, places)

    def _moves(self, snapshot: Snapshot) -> Moves:
        mine = fair_share.pinned(snapshot.partitions, self._place, self._places)
        return self._to_hold(mine, snapshot)
