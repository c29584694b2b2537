"""Reading ahead: a thread with a connection of its own fills what the consumer has in hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from penstock.dialects import work
from penstock.in_hand import InHand
from penstock.records import Event, Lease
from penstock.wake import Wake

if TYPE_CHECKING:
    from penstock.database import Connection

#: Read so many of a partition while nobody knows how large its events are.
PROBE_ROWS = 16
#: A poll brings batches of so many partitions: each poll costs as much as some hundred events.
BATCHES_AT_ONCE = 4
#: While a partition has no room, others are looked at again after so long.
FULL_PAUSE_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Bounds:
    """What may be in memory of all partitions together, and read at once of one of them."""

    rows: int
    bytes: int
    batch: int


class Room:
    """How much may be read of which partition.

    Each has an equal share, so that one that is not worked off keeps no other one waiting.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._mean: float | None = None

    def chunk(self, hands: Sequence[InHand]) -> tuple[list[InHand], int]:
        """Which of these to read from, and how many events of each."""
        if not hands:
            return [], 0
        full = self._rows_of(self._bounds.bytes / len(hands))
        full = max(1, min(full, self._bounds.rows // len(hands), self._bounds.batch))
        wanted: list[InHand] = []
        least = full
        for each in hands:
            room = self._room(each, len(hands))
            # Not for a few rows at a time; but an event that fits nowhere must come as well.
            if not each.rows:
                room = max(room, 1)
            if room >= (full + 1) // 2 or not each.rows:
                wanted.append(each)
                least = min(least, room)
        return wanted, least

    def together(self, each: int) -> int:
        """How many events of all partitions in one poll, whose answer is in memory twice."""
        share = self._rows_of(self._bounds.bytes / BATCHES_AT_ONCE)
        return max(each, min(each * BATCHES_AT_ONCE, share))

    def learn(self, events: Sequence[Event], size: int) -> None:
        """How large events are: the newest count most."""
        mean = size / len(events)
        self._mean = mean if self._mean is None else max(mean, (self._mean + mean) / 2)

    def _room(self, each: InHand, share: int) -> int:
        rows = self._bounds.rows // share - each.rows
        return max(0, min(rows, self._rows_of(self._bounds.bytes / share - each.bytes)))

    def _rows_of(self, size: float) -> int:
        return PROBE_ROWS if self._mean is None else int(size / self._mean)


class Wanted(NamedTuple):
    """What a reader is to poll."""

    leases: list[tuple[InHand, Lease]]
    max_events: int
    max_each: int
    #: A partition was left out for want of room.
    some_are_full: bool


class Reader(threading.Thread):
    """Polls ahead until it is stopped; what it raised stands in ``error``."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        poll: Callable[[Connection, Sequence[Lease], int, int], list[tuple[Lease, list[Event]]]],
        *,
        wanted: Callable[[], Wanted],
        took: Callable[[InHand, list[Event]], None],
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

    def stop(self) -> None:
        """End, and wait for it."""
        self._stopped = True
        self.changed.set()
        self.join()
        self.changed.close()

    def run(self) -> None:
        """In the thread."""
        try:
            with self._connect() as connection:
                self._read(connection)
        except BaseException as error:
            self.error = error
            self._wake()

    def _read(self, connection: Connection) -> None:
        ear = work.of_connection(connection).listen(connection)
        while not self._stopped:
            self.changed.clear()
            wanted = self._wanted()
            found = self._poll(connection, wanted)
            if found:
                continue
            seconds = FULL_PAUSE_SECONDS if wanted.some_are_full else self._idle_seconds
            self._heard(ear.wait(seconds, self.changed))

    def _poll(self, connection: Connection, wanted: Wanted) -> int:
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
