"""Reading events that only the archive has, for a consumer whose position is that far back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock import database, subscriptions
from penstock.archive.hot_or_cold import LowSequences
from penstock.database import sessions
from penstock.errors import BelowLowSequence
from penstock.subscriptions import stream

if TYPE_CHECKING:
    from penstock.archive.targets import Target
    from penstock.database import Connection
    from penstock.records import Event, Lease

    Poll = Callable[[Connection, Sequence[Lease], int, int | None], list[tuple[Lease, list[Event]]]]


class ColdReads:
    """A poll that goes on in the archive where the database no longer has the events.

    It learns from the refusal of a poll which partitions are below their low sequence.  Those are
    read from the targets until they have caught up; the others are polled meanwhile.
    """

    def __init__(self, subscription: str, poll: Poll, targets: Sequence[Target]) -> None:
        self._subscription = subscription
        self._poll = poll
        self._targets = targets
        self._low = LowSequences()
        #: The last event of each partition that came from the archive.
        self._cold_to: dict[int, int] = {}
        #: The lease_epochs under which retention was told that this reads the archive.
        self._told: dict[int, int] = {}

    def cold_to(self, partition_id: int) -> int:
        """Up to here the events of a partition are known not to be in the database."""
        return self._cold_to.get(partition_id, 0)

    def reads_on(self, partition_id: int, read: int) -> bool:
        """Whether there is more of a partition that was read so far, without a look at the log."""
        return read <= self.cold_to(partition_id) or self._low.is_cold(partition_id, read + 1)

    def poll(
        self,
        connection: Connection,
        leases: Sequence[Lease],
        max_events: int,
        max_each: int | None = None,
    ) -> list[tuple[Lease, list[Event]]]:
        """Unread events after the position of each lease, limited in total and for each lease."""
        cold = [lease for lease in leases if self._is_cold(lease)]
        hot = [lease for lease in leases if not self._is_cold(lease)]
        found: list[tuple[Lease, list[Event]]] = []
        if cold and not self._is_paused(connection):
            self._tell(connection, cold)
            share = max(1, max_events // len(leases))
            for lease in cold:
                events = self._read(connection, lease, min(share, max_each or share))
                found.append((lease, events))
                max_events -= len(events)
        if hot and max_events > 0:
            try:
                found += self._poll(connection, hot, max_events, max_each)
            except BelowLowSequence:
                if not self._learn(connection, hot):
                    raise
                if not found:
                    return self.poll(connection, leases, max_events, max_each)
        return [(lease, events) for lease, events in found if events]

    def _is_cold(self, lease: Lease) -> bool:
        return self._low.is_cold(lease.partition_id, lease.position + 1)

    def _is_paused(self, connection: Connection) -> bool:
        """A poll of a paused subscription returns nothing, and so does the archive."""
        described = subscriptions.describe_subscription(connection, self._subscription)
        return described.paused_at is not None

    def _tell(self, connection: Connection, leases: Sequence[Lease]) -> None:
        """Retention need not wait for these: else it does, for who may have no targets."""
        new = [lease for lease in leases if self._told.get(lease.partition_id) != lease.lease_epoch]
        if not new:
            return
        # What is said in a transaction may be rolled back with it: then it is said again.
        driver = database.driver_connection(connection)
        stays = sessions.of_connection(driver).commits_by_itself(driver)
        stream.note_archive_reads(connection, self._subscription, new)
        if stays:
            self._told |= {lease.partition_id: lease.lease_epoch for lease in new}

    def _learn(self, connection: Connection, leases: Sequence[Lease]) -> bool:
        """Ask for the low sequences.  Returns whether one of these is below it."""
        self._low.learn(connection, {lease.topic for lease in leases})
        return any(self._is_cold(lease) for lease in leases)

    def _read(self, connection: Connection, lease: Lease, max_events: int) -> list[Event]:
        # Imported here: only who reads an archive needs Arrow.
        from penstock import archive

        first = lease.position + 1
        cold = self._low.cut(lease.partition_id, range(first, first + max_events)).cold
        with archive.read_on(
            connection, lease.topic, lease.partition, first, len(cold), targets=self._targets
        ) as reader:
            events = list(reader.events())
        if events:
            self._cold_to[lease.partition_id] = events[-1].sequence
        return events
