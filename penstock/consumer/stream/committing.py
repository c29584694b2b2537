"""Committing: when positions are due, what is written in one statement, and what follows from it.

A commit moves the position of each partition to ``done``.  All events up to there are finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.consumer.handlers.failures import HandlerRolledBack
from penstock.database import sessions
from penstock.errors import BackwardCommit, PenstockError, StaleLease, TooManyParked
from penstock.subscriptions import dead_letters

if TYPE_CHECKING:
    from penstock.consumer.handlers.executors import Outcome
    from penstock.consumer.handlers.options import ConsumerOptions
    from penstock.consumer.stream.assignment import PartitionBuffers
    from penstock.consumer.stream.delivery import Batch
    from penstock.consumer.stream.in_flight import PartitionBuffer, Unit
    from penstock.database import Connection
    from penstock.leases.keeper import Keeper
    from penstock.leases.loop import LoopStats
    from penstock.records import Event, Lease

#: How long a partition pauses when a commit would park more events than are allowed.
STANDS_SECONDS = 10.0

#: How long a commit waits for the next events when there is nothing to do.
IDLE_COMMIT_SECONDS = 0.005


def bringing(connection: Connection, brought: Sequence[Event]) -> AbstractContextManager[Any]:
    """A transaction around several calls, where events of the archive are brought."""
    if not brought:
        return nullcontext()
    return sessions.of_connection(connection).transaction(connection)


class Chosen(NamedTuple):
    """How far to commit a partition, and which events that commit has to park."""

    buffer: PartitionBuffer
    position: int
    parking: list[int]


class Committer:
    """Moves positions forward in the store, and commits partitions before giving them back.

    ``every_seconds`` is the time between two commits: what is done in between shares one.
    """

    def __init__(
        self,
        assignment: PartitionBuffers,
        keeper: Keeper,
        stats: LoopStats,
        options: ConsumerOptions,
        *,
        every_seconds: float,
    ) -> None:
        self.every_seconds = every_seconds
        self._assignment = assignment
        self._keeper = keeper
        self._stats = stats
        self._every_events = options.commit_events
        self._by_key = options.by_key
        self._clock = options.clock

    def commit_due(self, connection: Connection, *, idle: bool) -> None:
        """Commit together all partitions that have waited long enough, or have enough done."""
        self._commit_after(connection, self.idle_seconds if idle else self.every_seconds)

    def commit_done(self, connection: Connection) -> None:
        """Commit together all that is done, however long it has waited."""
        self._commit_after(connection, 0.0)

    @property
    def idle_seconds(self) -> float:
        """How long a commit waits while there is nothing to do: what comes meanwhile shares it.

        Else a consumer that follows publishers makes a commit for every pass of the sequencer.
        """
        return min(self.every_seconds, IDLE_COMMIT_SECONDS)

    def next_due(self) -> Iterable[float]:
        """When commits are due.  One that a unit has to end before is due when it ends."""
        for each in self._assignment.all():
            begun = each.first_done_at
            if begun is not None and not self._has_to_wait(each):
                yield max(begun + self.idle_seconds, each.stands_until)

    def _has_to_wait(self, buffer: PartitionBuffer) -> bool:
        """A unit under way in order may commit by itself."""
        return buffer.under_way > buffer.letter_under_way and not self._by_key

    def _commit_after(self, connection: Connection, seconds: float) -> None:
        now = self._clock()
        due = [each for each in self._assignment.all() if self._is_due(each, now, seconds)]
        if due:
            self.commit(connection, due)

    def _is_due(self, buffer: PartitionBuffer, now: float, seconds: float) -> bool:
        """Whether to commit what is done."""
        if buffer.done <= buffer.committed or now < buffer.stands_until:
            return False
        if self._has_to_wait(buffer):
            return False
        if buffer.first_done_at is None:
            buffer.first_done_at = now
        is_old = now - buffer.first_done_at >= seconds
        return is_old or buffer.handled >= self._every_events

    # -- a commit: what to write, writing it, and what follows -----------------------------------

    def commit(self, connection: Connection, due: Sequence[PartitionBuffer]) -> None:
        """Commit the done events of partitions that are still held: together, or each alone."""
        chosen = self._choose(due)
        if len(chosen) > 1 and any(each.parking for each in chosen):
            is_settled = False
        else:
            is_settled = self._write(connection, chosen)
        if not is_settled:
            for each in chosen:
                self._write(connection, self._choose([each.buffer]))

    def _choose(self, due: Sequence[PartitionBuffer]) -> list[Chosen]:
        held = [each for each in due if self._keeper.holds(each.lease)]
        with self._assignment.lock:  # a reader brings it forward meanwhile
            return [
                Chosen(each, each.done, each.to_park(each.done) if each.parking else [])
                for each in held
            ]

    def _write(self, connection: Connection, chosen: Sequence[Chosen]) -> bool:
        """Run one statement.  Returns False when it was refused for one of several partitions."""
        try:
            if chosen and chosen[0].parking:
                (alone,) = chosen
                self._write_parking(connection, alone)
            elif chosen:
                wanted = [(each.buffer.lease, each.position) for each in chosen]
                after = [each.buffer.committed for each in chosen]
                self._keeper.commit(connection, wanted, after)
        except (TooManyParked, StaleLease, BackwardCommit) as error:
            if len(chosen) > 1:  # commit each alone, so that the others succeed
                return False
            self._refused(connection, chosen[0].buffer, error)
            return True
        for each in chosen:
            self.stands_at(each.buffer, each.position)
            self.count_done(each.buffer)
        return True

    def _write_parking(self, connection: Connection, chosen: Chosen) -> None:
        each, position, parking = chosen
        with self._assignment.lock:
            brought = each.brought(parking)
        self._keeper.record_position(connection, each.lease, each.committed)
        with bringing(connection, brought):
            dead_letters.commit_parking(
                connection,
                self._keeper.member,
                each.lease,
                position,
                after=each.committed,
                sequences=parking,
                brought=brought,
            )
        self._keeper.follow_position(connection, each.lease, position)

    def _refused(
        self, connection: Connection, buffer: PartitionBuffer, error: PenstockError
    ) -> None:
        """Deal with the one partition whose commit was refused."""
        if isinstance(error, StaleLease):
            self.lease_lost(buffer, error)
            return
        self._stats.failed(error)
        if isinstance(error, TooManyParked):
            buffer.stands_until = self._clock() + STANDS_SECONDS
            return
        try:  # the answer to an earlier COMMIT was lost
            self.stands_at(buffer, self._keeper.position(connection, buffer.lease))
        except StaleLease as stale:
            self.lease_lost(buffer, stale)

    # -- where a partition stands ---------------------------------------------------------------

    def stands_at(self, buffer: PartitionBuffer, position: int) -> None:
        """Take over the position from the store.

        Raises StaleLease when it moved back: then events before those in hand are not done.
        """
        if position < buffer.committed:
            raise StaleLease(
                f"partition {buffer.lease.partition} of {buffer.lease.topic} stands at {position}, "
                f"this consumer had committed {buffer.committed}",
                hint="a restore or a crash took commits back: the consumer reads again from there",
            )
        with self._assignment.lock:
            buffer.was_committed(position)
        self._keeper.moved(buffer.lease, position)

    def count_done(self, buffer: PartitionBuffer) -> None:
        """The handled events are committed: count them."""
        self._stats.events += buffer.handled
        self._stats.batches += buffer.handled > 0
        buffer.handled, buffer.first_done_at = 0, None

    def compare(
        self, connection: Connection, outcome: Outcome[Unit, Batch]
    ) -> BaseException | None:
        """A handler may have moved the position, so ask the store for it."""
        unit, error = outcome.unit, outcome.error
        stored = self._keeper.position(connection, unit.work.lease)
        committed = sum(event.sequence <= stored for event in unit.events)
        if stored >= outcome.batch.claimed:
            unit.done = max(unit.done, committed)
        else:
            unit.done = committed
            error = error or HandlerRolledBack("the handler gave the position back by a rollback")
        self.stands_at(unit.work, stored)
        return error

    def look_at_late_commit(self, connection: Connection, outcome: Outcome[Unit, Batch]) -> None:
        """Take over a handler's commit under a lease that had ended here, and may be held again."""
        lease = outcome.unit.work.lease
        if not outcome.batch.handed_over or not self._keeper.knows(lease):
            return
        try:
            self._keeper.moved(lease, self._keeper.position(connection, lease))
        except StaleLease as error:
            self._stale(lease, error)

    # -- leases that go -------------------------------------------------------------------------

    def let_go(self, connection: Connection, asked: Sequence[Lease]) -> list[Lease]:
        """The partitions with nothing under way, after a commit of their last position."""
        buffers = [self._assignment.of(lease) for lease in asked]
        ready = [each for each in buffers if each is not None and self._assignment.has_ended(each)]
        self.part_with(connection, ready)
        gone = {each.lease.partition_id for each in ready}
        busy = self._assignment.busy()
        return [
            lease
            for lease, each in zip(asked, buffers, strict=True)
            if lease.partition_id in gone or (each is None and lease.partition_id not in busy)
        ]

    def part_with(self, connection: Connection, buffers: Sequence[PartitionBuffer]) -> None:
        """Tell the application first: what it does then can still be committed."""
        if buffers:
            self._assignment.tell_revoked(buffers)
            self.commit(connection, [each for each in buffers if each.done > each.committed])
            self._assignment.forget(buffers)

    def lease_lost(self, buffer: PartitionBuffer, error: StaleLease) -> None:
        """The fence refused the lease: nothing done under it counts any more."""
        self._stale(buffer.lease, error)
        self._assignment.forget([buffer])
        self._assignment.tell_revoked([buffer])

    def _stale(self, lease: Lease, error: StaleLease) -> None:
        self._stats.stale(error)
        self._keeper.lost(lease)
