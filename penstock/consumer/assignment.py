"""The partitions that a consumer holds: taken in hand, committed, given back."""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.consumer.in_flight import InHand, by_key, whole_partition
from penstock.errors import BackwardCommit, StaleLease, TooManyParked
from penstock.leases.loop import LeaseLoop
from penstock.records import Lease
from penstock.subscriptions import dead_letters
from penstock.subscriptions.stream import Membership

if TYPE_CHECKING:
    from penstock.database import Connection

log = logging.getLogger(__name__)

#: How long a partition stands still that would park more events than may be parked.
STANDS_SECONDS = 10.0


class TopicPartition(NamedTuple):
    """A partition, as on_assigned and on_revoked name it."""

    topic: str
    partition: int


class Holding(LeaseLoop):
    """A loop that knows what it has in hand of each partition, and when that is committed."""

    def __init__(
        self,
        *given: Any,
        by_key: bool,
        clock: Callable[[], float],
        commit_every_events: float,
        commit_every_seconds: float,
        on_assigned: Callable[[dict[TopicPartition, int]], Any] | None,
        on_revoked: Callable[[list[TopicPartition]], Any] | None,
        **options: Any,
    ) -> None:
        super().__init__(*given, **options)
        self._by_key = by_key
        self._clock = clock
        self._commit_events = commit_every_events
        self._commit_seconds = commit_every_seconds
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        #: Guards what a reader's thread and the loop's both touch.
        self._lock = threading.Lock()
        self._hand: dict[int, InHand] = {}
        self._limits: dict[int, dict[Hashable, int]] = {}

    @abstractmethod
    def tell(self, callback: Callable[[Any], Any], said: Any) -> None:
        """Call a function of the application, and wait for it."""

    @abstractmethod
    def busy(self) -> Collection[int]:
        """Partitions of which something that was forgotten is under way.

        It has to end first, or a key would lose its order; and it may commit.
        """

    def reader_may_go_on(self) -> None:
        """There is more room, or another partition."""

    @property
    def member(self) -> Membership:
        """The present membership."""
        return self.keeper.member

    @property
    def commits_in_database(self) -> bool:
        """Whether a position can be committed with what a handler writes."""
        return self.keeper.in_database

    @property
    def commits_in_order(self) -> bool:
        """Whether what came before a delivery is done when it is handed over."""
        return not self._by_key

    def holds(self, lease: Lease) -> bool:
        """Whether the lease is held, by the local clock too."""
        return self.keeper.holds(lease)

    def in_hand_rows(self) -> int:
        """How many events are in memory: read, and not done."""
        with self._lock:
            return sum(each.rows for each in self._hand.values())

    def let_go(self, connection: Connection, asked: list[Lease]) -> list[Lease]:
        """Those of which nothing is under way any more; their last position is committed."""
        hands = [self._hand.get(lease.partition_id) for lease in asked]
        ready = [each for each in hands if each is not None and self._has_ended(each)]
        self.part_with(connection, ready)
        gone = {each.lease.partition_id for each in ready}
        busy = self.busy()
        return [
            lease
            for lease, each in zip(asked, hands, strict=True)
            if lease.partition_id in gone or (each is None and lease.partition_id not in busy)
        ]

    # -- leases ---------------------------------------------------------------------------------

    def look_at_leases(self) -> list[InHand]:
        """Forget what is no longer held, and begin what is new; answers that.

        New is also what is held from further back: it is read again.
        """
        held = {lease.partition_id: lease for lease in self.keeper.leases()}
        lost = [
            each
            for partition_id, each in self._hand.items()
            if partition_id not in held
            or held[partition_id].lease_epoch != each.lease.lease_epoch
            or held[partition_id].position < each.committed
        ]
        if lost:
            self.forget(lost)
            self.tell_revoked(lost)
        busy = self.busy()
        new = [
            lease
            for partition_id, lease in held.items()
            if partition_id not in self._hand
            and partition_id not in busy
            and lease.state == "ACTIVE"
        ]
        begun = [self._taken_in_hand(lease) for lease in new]
        if new:
            self._tell(self._on_assigned, {_place(lease): lease.position for lease in new})
            with self._lock:
                self._hand |= {each.lease.partition_id: each for each in begun}
        return begun

    def _taken_in_hand(self, lease: Lease) -> InHand:
        return InHand(
            lease,
            lane_of=by_key if self._by_key else whole_partition,
            limits=self._limits.setdefault(lease.partition_id, {}),
        )

    def forget(self, gone: Sequence[InHand]) -> None:
        """Drop what was read; what is under way changes nothing any more."""
        with self._lock:
            for each in gone:
                each.closed = True
                if self._hand.get(each.lease.partition_id) is each:
                    del self._hand[each.lease.partition_id]

    def _has_ended(self, each: InHand) -> bool:
        with self._lock:
            each.drop_waiting()
        return not each.under_way

    def part_with(self, connection: Connection, hands: Sequence[InHand]) -> None:
        """The application first: what it does there can still be committed."""
        if hands:
            self.tell_revoked(hands)
            self.commit(connection, [each for each in hands if each.done > each.committed])
            self.forget(hands)

    def tell_revoked(self, hands: Sequence[InHand]) -> None:
        self._tell(self._on_revoked, [_place(each.lease) for each in hands])

    def _tell(self, callback: Callable[[Any], Any] | None, said: Any) -> None:
        if callback is None:
            return
        try:
            self.tell(callback, said)
        except Exception as error:
            self.failed(error)
            log.exception("%s of the consumer failed", getattr(callback, "__name__", callback))

    # -- committing -----------------------------------------------------------------------------

    def commit_due(self, connection: Connection, *, idle: bool) -> None:
        """One commit for all partitions whose slice of time or count is over."""
        now = self._clock()
        due: list[InHand] = []
        for each in self._hand.values():
            # What is under way in order may commit by itself, from where it was begun.
            commits_itself = each.under_way > each.letter_under_way and not self._by_key
            if each.done <= each.committed or commits_itself or now < each.stands_until:
                continue
            if each.first_done_at is None:
                each.first_done_at = now
            if (
                idle
                or each.handled >= self._commit_events
                or now - each.first_done_at >= self._commit_seconds
            ):
                due.append(each)
        self.commit(connection, due)

    def commit(self, connection: Connection, due: Sequence[InHand]) -> None:
        """Commit what is done of partitions that are still held."""
        held = [each for each in due if self.holds(each.lease)]
        if not held:
            return
        with self._lock:  # a reader brings it forward meanwhile
            positions = [(each, each.done) for each in held]
            parking = {each: each.to_park(each.done) for each in held}
        if len(held) > 1 and any(parking.values()):
            for each in held:
                self.commit(connection, [each])
            return
        try:
            self._write(connection, positions, parking[held[0]])
        except TooManyParked as error:
            self.failed(error)
            held[0].stands_until = self._clock() + STANDS_SECONDS
            return
        except (StaleLease, BackwardCommit) as error:
            if len(held) > 1:  # the others are not to suffer
                for each in held:
                    self.commit(connection, [each])
            elif isinstance(error, StaleLease):
                self.lease_lost(held[0], error)
            else:  # the answer to an earlier COMMIT was lost
                self.failed(error)
                self._look_where_it_stands(connection, held[0])
            return
        for each, position in positions:
            self.stands_at(each, position)
            self.count_done(each)

    def _look_where_it_stands(self, connection: Connection, each: InHand) -> None:
        try:
            self.stands_at(each, self.keeper.position(connection, each.lease))
        except StaleLease as error:
            self.lease_lost(each, error)

    def _write(
        self,
        connection: Connection,
        positions: Sequence[tuple[InHand, int]],
        parking: Sequence[int],
    ) -> None:
        if not parking:
            wanted = [(each.lease, position) for each, position in positions]
            after = [each.committed for each, _ in positions]
            self.keeper.commit(connection, wanted, after)
            return
        ((each, position),) = positions
        dead_letters.commit_parking(
            connection,
            self.member,
            each.lease,
            position,
            after=each.committed,
            sequences=parking,
        )

    def stands_at(self, each: InHand, position: int) -> None:
        """The position in the database is known.

        StaleLease when it went back: what was read lies behind events that are not done.
        """
        if position < each.committed:
            raise StaleLease(
                f"partition {each.lease.partition} of {each.lease.topic} stands at {position} and "
                f"stood at {each.committed}",
                hint="a restore or a crash took commits back: it is read again from there",
            )
        with self._lock:
            each.was_committed(position)
        self.keeper.moved(each.lease, position)

    def count_done(self, each: InHand) -> None:
        self.done(each.lease, each.committed, each.handled)
        each.handled, each.first_done_at = 0, None

    def lease_lost(self, each: InHand, error: StaleLease) -> None:
        self.stale(each.lease, error)
        self.forget([each])
        self.tell_revoked([each])


def _place(lease: Lease) -> TopicPartition:
    return TopicPartition(lease.topic, lease.partition)
