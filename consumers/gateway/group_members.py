"""One listener of a subscription: what it holds, what was sent to it and what is done."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from consumers.gateway.answers import Refused
from penstock.records import Event, Lease
from penstock.subscriptions import Lag
from penstock.subscriptions.stream import Membership

#: Who takes nothing of what is sent for so long is kept alive no longer.
STALL_SECONDS = 15.0


@dataclass(slots=True)
class HeldPartition:
    """A partition that a listener holds.  ``lease.position`` is what is committed."""

    lease: Lease
    #: The last sequence that was sent.
    sent: int
    high_watermark: int

    @property
    def uncommitted(self) -> int:
        """How many events were sent and are not committed."""
        return max(0, self.sent - self.lease.position)


class GroupMember:
    """A listener, as its group sees it."""

    def __init__(
        self,
        subscription: str,
        consumer: str,
        *,
        most: int,
        commit_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.subscription = subscription
        self.consumer = consumer
        self.membership: Membership | None = None
        self.held: dict[int, HeldPartition] = {}
        self.lost: list[Lease] = []
        self.problem: Exception | None = None
        self.check_in_at = 0.0
        self.lock = asyncio.Lock()
        #: Since when something is being sent; infinite: nothing is.
        self.sending_since = math.inf
        self._most = most
        self._commit_seconds = commit_seconds
        #: How often it has checked in.
        self.version = 0
        self._clock = clock
        self._moved_at = clock()
        self._changed = asyncio.Event()

    @property
    def heartbeat_seconds(self) -> float:
        """Between two heartbeats."""
        return self.membership.heartbeat_seconds if self.membership is not None else 0.0

    @property
    def uncommitted(self) -> int:
        """How many events were sent and are not committed."""
        return sum(each.uncommitted for each in self.held.values())

    def stands_still(self, now: float) -> Refused | None:
        """Why it may hold what it holds no longer: nothing is taken, or nothing committed."""
        if now - self.sending_since > STALL_SECONDS:
            return Refused(408, "what is sent is not taken")
        if self.uncommitted and now - self._moved_at > self._commit_seconds:
            return Refused(408, f"nothing was committed for {self._commit_seconds:g} seconds")
        return None

    def readable(self) -> tuple[list[Lease], int]:
        """The leases to read on, each at what was sent, and how many events may be sent."""
        room = self._most - self.uncommitted
        found = [
            replace(each.lease, position=each.sent)
            for each in self.held.values()
            if each.lease.state == "ACTIVE" and each.high_watermark > each.sent
        ]
        return (found, room) if room > 0 else ([], 0)

    def sending(self, lease: Lease, events: list[Event]) -> bool:
        """These events are sent now, under this lease; False when it is lost."""
        held = self.held.get(lease.partition_id)
        if held is None or held.lease.lease_epoch != lease.lease_epoch:
            return False
        if not self.uncommitted:
            self._moved_at = self._clock()
        held.sent = max(held.sent, events[-1].sequence)
        return True

    def found_nothing(self, leases: Iterable[Lease]) -> None:
        """Nothing could be read there: it is looked at again when the log has grown."""
        for lease in leases:
            if lease.partition_id in self.held:
                self.held[lease.partition_id].high_watermark = 0

    def committed(self, done: Iterable[tuple[Lease, int]]) -> None:
        """These positions are committed."""
        for lease, position in done:
            held = self.held.get(lease.partition_id)
            if held is not None and held.lease.lease_epoch == lease.lease_epoch:
                self._move(held, position)
        self.wake()

    def install(self, membership: Membership, leases: list[Lease]) -> None:
        """What a check-in has returned: these are the leases that it holds now."""
        self.membership = membership
        self.version += 1
        present = {lease.partition_id: lease for lease in leases}
        for partition_id in list(self.held):
            lease = present.get(partition_id)
            if lease is None or lease.lease_epoch != self.held[partition_id].lease.lease_epoch:
                self._lose(partition_id)
        for lease in leases:
            held = self.held.get(lease.partition_id)
            if held is None:
                # That there is more than nothing is found out by the first poll.
                held = HeldPartition(lease, lease.position, lease.position + 1)
                self.held[lease.partition_id] = held
            held.lease = replace(lease, position=held.lease.position)
            self._move(held, lease.position)
        self.wake()

    def compare(self, present: list[Lag]) -> None:
        """What the subscription's state says of what it holds."""
        places = {(each.topic, each.partition): each for each in present}
        for partition_id, held in list(self.held.items()):
            each = places.get((held.lease.topic, held.lease.partition))
            epoch = None if each is None else each.lease_epoch
            if each is None or each.holder != self.consumer or epoch != held.lease.lease_epoch:
                self._lose(partition_id)
                self.check_in_at = 0.0
                continue
            held.lease = replace(held.lease, state=each.state)
            self._move(held, each.position)
            if each.high_watermark != held.high_watermark:
                held.high_watermark = each.high_watermark
                self.wake()

    def free(self) -> list[Lease]:
        """The leases that are asked back, and of which nothing is in hand."""
        return [
            each.lease
            for each in self.held.values()
            if each.lease.state == "RELEASING" and not each.uncommitted
        ]

    def gave_back(self, leases: Iterable[Lease]) -> None:
        """These are not held any more."""
        for lease in leases:
            self.held.pop(lease.partition_id, None)

    def forget(self) -> None:
        """It was taken for dead: it holds nothing, and joins again."""
        self.membership = None
        for partition_id in list(self.held):
            self._lose(partition_id)

    def end(self, problem: Exception) -> None:
        """It is over."""
        self.problem = problem
        self.wake()

    def wake(self) -> None:
        """Something has changed for the listener."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self, seconds: float) -> None:
        """Wait until something changes, but no longer than this."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    def _move(self, held: HeldPartition, position: int) -> None:
        if position > held.lease.position:
            held.lease = replace(held.lease, position=position)
            held.sent = max(held.sent, position)
            self._moved_at = self._clock()
            self.wake()

    def _lose(self, partition_id: int) -> None:
        self.lost.append(self.held.pop(partition_id).lease)
        self.wake()
