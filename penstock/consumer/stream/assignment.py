"""The partitions that a consumer holds, and the events in hand of each.

The assignment begins each new lease, forgets each lost one, and tells the application of both.  It
commits nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.consumer.handlers.options import TopicPartition
from penstock.consumer.stream.in_flight import PartitionBuffer, Unit, by_key, whole_partition
from penstock.errors import is_interruption
from penstock.records import Lease

if TYPE_CHECKING:
    from penstock.consumer.handlers.executors import Executor
    from penstock.consumer.handlers.options import ConsumerOptions
    from penstock.consumer.stream.delivery import Batch
    from penstock.leases.keeper import Keeper
    from penstock.leases.loop import LoopStats

log = logging.getLogger(__name__)

#: Events of one key that are handed over together.
KEY_RUN = 16


class PartitionBuffers:
    """What is in hand, by partition.

    ``lock`` guards the data that the loop's thread shares with the thread that reads ahead.
    """

    def __init__(
        self,
        keeper: Keeper,
        stats: LoopStats,
        executor: Executor[Unit, Batch],
        options: ConsumerOptions,
    ) -> None:
        self.lock = threading.Lock()
        self._keeper = keeper
        self._stats = stats
        self._executor = executor
        self._on_assigned = options.on_assigned
        self._on_revoked = options.on_revoked
        self._by_key = options.by_key
        self._batch_size = options.batch_size
        self._most_uncommitted = options.most_uncommitted
        self._clock = options.clock
        self._buffers: dict[int, PartitionBuffer] = {}
        self._limits: dict[int, dict[Hashable, int]] = {}

    def all(self) -> list[PartitionBuffer]:
        """What is in hand of each partition."""
        return list(self._buffers.values())

    def of(self, lease: Lease) -> PartitionBuffer | None:
        """What is in hand of a partition."""
        return self._buffers.get(lease.partition_id)

    def ready(self) -> list[tuple[Lease, PartitionBuffer]]:
        """The partitions to work on.  Each call begins with another one."""
        found = [(lease, self._buffers.get(lease.partition_id)) for lease in self._keeper.active()]
        return [(lease, each) for lease, each in found if each is not None]

    def rows(self) -> int:
        """How many events are in memory: they were read and are not done."""
        with self.lock:
            return sum(each.rows for each in self._buffers.values())

    def busy(self) -> set[int]:
        """Partitions with a handler that began before the lease was lost, or before an outage.

        That handler has to end first.  Otherwise a key could lose its order.  The handler may also
        still commit.
        """
        under_way = self._executor.under_way
        return {each.work.lease.partition_id for each in under_way if each.work.closed}

    # -- leases that come and go ----------------------------------------------------------------

    def look_at_leases(self) -> list[PartitionBuffer]:
        """Forget partitions that are no longer held, and begin new ones.  Returns the new ones.

        A partition whose position has moved back counts as new: it is read again.
        """
        held = {lease.partition_id: lease for lease in self._keeper.leases()}
        lost = [each for each in self._buffers.values() if not _is_still(each, held)]
        if lost:
            self.forget(lost)
            self.tell_revoked(lost)
        new = [
            lease
            for partition_id, lease in held.items()
            if partition_id not in self._buffers and lease.state == "ACTIVE"
        ]
        return self._begin_new(new) if new else []

    def _begin_new(self, leases: Sequence[Lease]) -> list[PartitionBuffer]:
        busy = self.busy()
        new = [lease for lease in leases if lease.partition_id not in busy]
        begun = [self._taken_in_hand(lease) for lease in new]
        if new:
            positions = {_place(lease): lease.position for lease in new}
            self._tell(self._on_assigned, positions)
            with self.lock:
                self._buffers |= {each.lease.partition_id: each for each in begun}
        return begun

    def forget(self, gone: Sequence[PartitionBuffer]) -> None:
        """Drop the events that were read.  Units that are under way change nothing any more."""
        with self.lock:
            for each in gone:
                each.closed = True
                if self._buffers.get(each.lease.partition_id) is each:
                    del self._buffers[each.lease.partition_id]

    def tell_revoked(self, buffers: Sequence[PartitionBuffer]) -> None:
        """Tell the application that these partitions are about to go, or are lost."""
        self._tell(self._on_revoked, [_place(each.lease) for each in buffers])

    def _taken_in_hand(self, lease: Lease) -> PartitionBuffer:
        return PartitionBuffer(
            lease,
            lane_of=by_key if self._by_key else whole_partition,
            limits=self._limits.setdefault(lease.partition_id, {}),
        )

    def _tell(self, callback: Callable[[Any], Any] | None, said: Any) -> None:
        if callback is None:
            return
        try:
            self._executor.tell(callback, said)
        except BaseException as error:
            if is_interruption(error):
                raise
            self._stats.failed(error)
            log.exception("%s of the consumer failed", getattr(callback, "__name__", callback))

    # -- units ----------------------------------------------------------------------------------

    def begin(self, buffer: PartitionBuffer) -> Unit | None:
        """The next unit of a partition: events that are handed over together, or a dead letter."""
        left = self._most_uncommitted - buffer.handled
        limit = KEY_RUN if self._by_key else max(1, min(self._batch_size, left))
        with self.lock:
            letter = buffer.begin_letter() if buffer.letters else None
            return letter or buffer.begin(limit, self._clock())

    def end(self, unit: Unit, done: int, *, pause_until: float | None = None) -> None:
        """So many events of a unit are done.  The rest comes again after the pause."""
        with self.lock:
            unit.work.end(unit, done, self._clock(), pause_until=pause_until)

    def take(
        self, buffer: PartitionBuffer, events: Sequence[Any], wanted: Callable[[Any], bool] | None
    ) -> None:
        """Take events that were read.  Those of a lease that was lost meanwhile are dropped."""
        with self.lock:
            if not buffer.closed:
                self._stats.filtered += buffer.take(events, wanted)

    def has_ended(self, buffer: PartitionBuffer) -> bool:
        """Whether nothing is under way.  Events that were not begun are dropped."""
        with self.lock:
            buffer.drop_waiting()
        return not buffer.under_way

    def next_due(self) -> Iterable[float]:
        """When pauses end."""
        with self.lock:
            pauses = [each.next_pause_end for each in self._buffers.values()]
        return (pause for pause in pauses if pause is not None)


def _is_still(buffer: PartitionBuffer, held: dict[int, Lease]) -> bool:
    """Whether it is held under the same lease, and its position has not moved back."""
    lease = held.get(buffer.lease.partition_id)
    return (
        lease is not None
        and lease.lease_epoch == buffer.lease.lease_epoch
        and lease.position >= buffer.committed
    )


def _place(lease: Lease) -> TopicPartition:
    return TopicPartition(lease.topic, lease.partition)
