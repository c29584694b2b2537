"""Reading: by the loop itself, or ahead of it by a thread of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.holding import Holding
from penstock.in_hand import InHand
from penstock.prefetch import Bounds, Reader, Room, Wanted
from penstock.records import Event, Lease, payload_bytes

if TYPE_CHECKING:
    from penstock.database import Connection

#: So far may be read beyond an event that is not done: it would all come again after a crash.
MAX_AHEAD = 2_000


class Reading(Holding):
    """A loop that fills what it has in hand; with ``bounds.rows``, ahead of the work."""

    def __init__(
        self,
        *given: Any,
        bounds: Bounds,
        wanted: Callable[[Event], bool] | None,
        **options: Any,
    ) -> None:
        super().__init__(*given, **options)
        self._bounds = bounds
        self._wanted = wanted
        self._room = Room(bounds) if bounds.rows else None
        self._reader: Reader | None = None
        #: What was read to its end, and has not grown since, as far as was heard.
        self._read_out: dict[int, InHand] = {}
        self._asked_all_at = -math.inf

    @property
    def reads_ahead(self) -> bool:
        """Whether a thread of its own is to read."""
        return self._room is not None

    def reader_may_go_on(self) -> None:
        """Wakes the thread that reads ahead."""
        if self._reader is not None:
            self._reader.changed.set()

    def start_reading(self, wake: Callable[[], None]) -> None:
        """Let a thread read; ``wake`` is called when it has brought something."""
        self._reader = Reader(
            lambda: self.open(),
            self.keeper.poll,
            wanted=self._reads_wanted,
            took=self._took,
            heard=self._heard,
            wake=wake,
            idle_seconds=self._idle_seconds,
        )
        self._reader.start()

    def stop_reading(self) -> None:
        if self._reader is not None:
            self._reader.stop()
            self._reader = None

    def poll(self, connection: Connection) -> None:
        """Where the loop itself reads: what has nothing left in hand."""
        now = self._clock()
        if (
            self._ear is None
            or not self._ear.is_told
            or now - self._asked_all_at >= self._idle_seconds
        ):
            self._read_out.clear()
            self._asked_all_at = now
        leases = self._unread()
        if not leases and self._ear is not None:
            self._heard(self._ear.heard())
            leases = self._unread()
        if not leases:
            return
        polled = self.keeper.poll(connection, leases, self._bounds.batch)
        for lease, events in polled:
            self._took(self._hand[lease.partition_id], events)
        if sum(len(events) for _, events in polled) < self._bounds.batch:
            self._read_out |= {each.partition_id: self._hand[each.partition_id] for each in leases}

    def _unread(self) -> list[Lease]:
        """What has nothing left in hand and may have grown, with the position to read behind."""
        most = self._bounds.batch if self._by_key else 1
        empty = {
            partition_id
            for partition_id, each in self._hand.items()
            if each.rows < most
            and self._may_read_on(each)
            and self._read_out.get(partition_id) is not each
        }
        return [
            replace(lease, position=self._hand[lease.partition_id].read)
            for lease in self.ready_leases()
            if lease.partition_id in empty
        ]

    def _heard(self, notices: Sequence[str]) -> None:
        for grown in notices:
            try:
                for partition_id in grown.split(","):
                    self._read_out.pop(int(partition_id), None)
            except ValueError:  # "all", or what another login has said
                self._read_out.clear()
        super()._heard(notices)

    def _reads_wanted(self) -> Wanted:
        assert self._room is not None
        active = {each.partition_id for each in self.ready_leases()}
        with self._lock:
            open_hands = [
                each
                for partition_id, each in self._hand.items()
                if partition_id in active and self._may_read_on(each)
            ]
            chosen, max_each = self._room.chunk(open_hands)
            chosen.sort(key=lambda each: each.rows)
            leases = [(each, replace(each.lease, position=each.read)) for each in chosen]
            some_are_full = len(chosen) < len(self._hand)
        return Wanted(leases, self._room.together(max_each), max_each, some_are_full)

    def _may_read_on(self, each: InHand) -> bool:
        return not self._by_key or each.read - each.done < MAX_AHEAD

    def _took(self, each: InHand, events: list[Event]) -> None:
        """Events were read; those of a lease that was lost meanwhile are dropped."""
        if self._room is not None:
            self._room.learn(events, payload_bytes(events)[1])
        with self._lock:
            if not each.closed:
                self.stats.filtered += each.take(events, self._wanted)
