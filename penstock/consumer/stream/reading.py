"""Reading: the loop reads, or a separate thread reads ahead of it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from penstock.consumer.stream.capped import CappedReads
from penstock.consumer.stream.cold_reads import ColdReads
from penstock.database import sessions
from penstock.database.wake import Wake
from penstock.records import Event, Lease, payload_bytes

if TYPE_CHECKING:
    from penstock.consumer.handlers.options import ConsumerOptions
    from penstock.consumer.stream.assignment import PartitionBuffers
    from penstock.consumer.stream.in_flight import PartitionBuffer
    from penstock.database import Connection, dialect
    from penstock.leases.keeper import Keeper

#: How far to read beyond an event that is not done: after a crash all of it would come again.
MAX_AHEAD = 2_000
#: How many events to read of a partition while their size is unknown.
PROBE_ROWS = 16
#: A poll reads batches of so many partitions: each poll costs as much as some hundred events.
BATCHES_AT_ONCE = 4
#: While one partition has no room, how long until the others are looked at again.
FULL_PAUSE_SECONDS = 0.02


class Reader:
    """Reads events into the assignment.  With ``ahead_rows``, reads ahead, at most so many rows."""

    def __init__(
        self,
        assignment: PartitionBuffers,
        keeper: Keeper,
        options: ConsumerOptions,
        *,
        connect: Callable[[], Connection],
        ahead_rows: int,
    ) -> None:
        self._assignment = assignment
        self._keeper = keeper
        self._cold: ColdReads | None = None
        self._poll_leases: Callable[..., list[tuple[Lease, list[Event]]]] = keeper.poll
        if options.archive is not None:
            self._cold = ColdReads(keeper.subscription, keeper.poll, options.archive)
            self._poll_leases = self._cold.poll
        if options.max_events_per_second is not None:
            capped = CappedReads(self._poll_leases, options.max_events_per_second, options.clock)
            self._poll_leases = capped.poll
        self._connect = connect
        self._clock = options.clock
        self._by_key = options.by_key
        self._idle_seconds = options.idle_seconds
        self._bounds = Bounds(ahead_rows, options.prefetch_bytes, options.batch_size)
        self._wanted = options.wanted()
        self._room = Room(self._bounds) if ahead_rows else None
        #: Whether a separate thread reads.
        self.reads_ahead = self._room is not None
        self._thread: ReadAhead | None = None
        #: Partitions that were read to their end; no notice since then says that they have grown.
        self._read_out: dict[int, PartitionBuffer] = {}
        self._asked_all_at = -math.inf

    def start(self, wake: Callable[[], None]) -> None:
        """Let a thread read.  It calls ``wake`` when it has read something."""
        self._thread = ReadAhead(
            self._connect,
            self._poll_leases,
            wanted=self._reads_wanted,
            took=self._took,
            heard=self.heard,
            wake=wake,
            idle_seconds=self._idle_seconds,
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread, if there is one."""
        if self._thread is not None:
            self._thread.stop()
            self._thread = None

    def go_on(self) -> None:
        """Let the thread look again: there is more room, or another partition."""
        if self._thread is not None:
            self._thread.changed.set()

    def read(
        self,
        connection: Connection,
        listener: dialect.Listener | None,
        ready: Sequence[tuple[Lease, PartitionBuffer]],
    ) -> None:
        """Read those of ready partitions that have nothing left, where the loop itself reads."""
        if self._thread is not None:
            self._thread.require_well()
            return
        now = self._clock()
        if (
            listener is None
            or not listener.is_told
            or now - self._asked_all_at >= self._idle_seconds
        ):
            self._read_out.clear()
            self._asked_all_at = now
        unread = self._unread(ready)
        if not unread and listener is not None:
            self.heard(listener.heard())
            unread = self._unread(ready)
        if unread:
            self._poll(connection, unread)

    def heard(self, notices: Sequence[str]) -> None:
        """The database says that these partitions have grown.  Some may be held elsewhere."""
        for grown in notices:
            try:
                for partition_id in grown.split(","):
                    self._read_out.pop(int(partition_id), None)
            except ValueError:  # "all", or text from another login
                self._read_out.clear()
        self._keeper.heard(notices)

    def _poll(self, connection: Connection, unread: list[tuple[PartitionBuffer, Lease]]) -> None:
        buffers = {lease.partition_id: each for each, lease in unread}
        leases = [lease for _, lease in unread]
        polled = self._poll_leases(connection, leases, self._bounds.batch)
        for lease, events in polled:
            self._took(buffers[lease.partition_id], events)
        if sum(len(events) for _, events in polled) < self._bounds.batch:
            self._read_out |= {
                partition_id: each
                for partition_id, each in buffers.items()
                if self._cold is None or not self._cold.reads_on(partition_id, each.read)
            }

    def _unread(
        self, ready: Sequence[tuple[Lease, PartitionBuffer]]
    ) -> list[tuple[PartitionBuffer, Lease]]:
        """Partitions with nothing in hand that may have grown, and the position to read after."""
        most = self._bounds.batch if self._by_key else 1
        return [
            (each, replace(lease, position=each.read))
            for lease, each in ready
            if each.rows < most
            and (not self._by_key or self._may_read_on(each))
            and self._read_out.get(lease.partition_id) is not each
        ]

    def _reads_wanted(self) -> WantedReads:
        """What the thread should read next."""
        assert self._room is not None
        ready = [each for _, each in self._assignment.ready()]
        with self._assignment.lock:
            held = len(self._assignment.all())
            open_hands = [
                each
                for each in ready
                if not each.closed and (not self._by_key or self._may_read_on(each))
            ]
            chosen, max_each = self._room.chunk(open_hands)
            chosen.sort(key=lambda each: each.rows)
            leases = [(each, replace(each.lease, position=each.read)) for each in chosen]
        return WantedReads(leases, self._room.together(max_each), max_each, len(chosen) < held)

    def _may_read_on(self, buffer: PartitionBuffer) -> bool:
        """Keys run side by side, so events may be done far ahead of one that is not."""
        return buffer.read - buffer.done < MAX_AHEAD

    def _took(self, buffer: PartitionBuffer, events: list[Event]) -> None:
        if self._room is not None:
            self._room.learn(events, payload_bytes(events)[1])
        if self._cold is not None:
            buffer.cold_to = self._cold.cold_to(buffer.lease.partition_id)
        self._assignment.take(buffer, events, self._wanted)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may be in memory of all partitions together, and how much one read may bring."""

    rows: int
    bytes: int
    batch: int


class Room:
    """How much may be read of which partition.

    Each has an equal share, so that a slow partition does not delay the others.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._mean: float | None = None

    def chunk(self, buffers: Sequence[PartitionBuffer]) -> tuple[list[PartitionBuffer], int]:
        """Which of these to read from, and how many events of each."""
        if not buffers:
            return [], 0
        full = self._rows_of(self._bounds.bytes / len(buffers))
        full = max(1, min(full, self._bounds.rows // len(buffers), self._bounds.batch))
        wanted: list[PartitionBuffer] = []
        least = full
        for each in buffers:
            room = self._room(each, len(buffers))
            # Do not read a few rows at a time.  But an event larger than any room must come too.
            if not each.rows:
                room = max(room, 1)
            if room >= (full + 1) // 2 or not each.rows:
                wanted.append(each)
                least = min(least, room)
        return wanted, least

    def together(self, rows: int) -> int:
        """How many events one poll may bring of all partitions; its result is in memory twice."""
        share = self._rows_of(self._bounds.bytes / BATCHES_AT_ONCE)
        return max(rows, min(rows * BATCHES_AT_ONCE, share))

    def learn(self, events: Sequence[Event], size: int) -> None:
        """Learn how large events are.  The newest count most."""
        mean = size / len(events)
        self._mean = mean if self._mean is None else max(mean, (self._mean + mean) / 2)

    def _room(self, buffer: PartitionBuffer, share: int) -> int:
        rows = self._bounds.rows // share - buffer.rows
        return max(0, min(rows, self._rows_of(self._bounds.bytes / share - buffer.bytes)))

    def _rows_of(self, size: float) -> int:
        return PROBE_ROWS if self._mean is None else int(size / self._mean)


class WantedReads(NamedTuple):
    """What is to be polled."""

    leases: list[tuple[PartitionBuffer, Lease]]
    max_events: int
    max_each: int
    #: Whether a partition was left out because it has no room.
    some_are_full: bool


class ReadAhead(threading.Thread):
    """Polls ahead until it is stopped.  ``error`` keeps what ended it."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        poll: Callable[[Connection, Sequence[Lease], int, int], list[tuple[Lease, list[Event]]]],
        *,
        wanted: Callable[[], WantedReads],
        took: Callable[[PartitionBuffer, list[Event]], None],
        heard: Callable[[Sequence[str]], None],
        wake: Callable[[], None],
        idle_seconds: float,
    ) -> None:
        super().__init__(name="penstock-reader", daemon=True)
        self.error: BaseException | None = None
        self.changed = Wake()
        self._connect = connect
        self._poll_leases = poll
        self._wanted = wanted
        self._took = took
        self._heard = heard
        self._wake = wake
        self._idle_seconds = idle_seconds
        self._stopped = False

    def require_well(self) -> None:
        """Raise the error that ended it, if there is one."""
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """End the thread, and wait for it."""
        self._stopped = True
        self.changed.set()
        self.join()
        self.changed.close()

    def run(self) -> None:
        """Poll until stopped; the thread runs this."""
        try:
            with self._connect() as connection:
                self._read(connection)
        except BaseException as error:
            self.error = error
            self._wake()

    def _read(self, connection: Connection) -> None:
        listener = sessions.of_connection(connection).listen(connection)
        while not self._stopped:
            self.changed.clear()
            wanted = self._wanted()
            found = self._poll(connection, wanted)
            if found:
                continue
            seconds = FULL_PAUSE_SECONDS if wanted.some_are_full else self._idle_seconds
            self._heard(listener.wait(seconds, self.changed))

    def _poll(self, connection: Connection, wanted: WantedReads) -> int:
        if not wanted.leases:
            return 0
        by_partition = {lease.partition_id: each for each, lease in wanted.leases}
        polled = self._poll_leases(
            connection, [lease for _, lease in wanted.leases], wanted.max_events, wanted.max_each
        )
        for lease, events in polled:
            self._took(by_partition[lease.partition_id], events)
        if polled:
            self._wake()
        return len(polled)
