"""What a relay asks of its sink, for several partitions at once: each has a lane.

The relay's own thread opens, reads and commits blocks on its connection. What talks to the sink
runs in a few threads beside it, so a slow partition does not hold up the others. Only one thing at
a time is under way on a lane, so a partition is never in two threads.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ops.sinks.base import Channel, Sink, SinkLease
from ops.sinks.ends import SinkBehind

if TYPE_CHECKING:
    from ops.relay.block import InHand
    from penstock.database import Connection
    from penstock.log.restores import Seen
    from penstock.records import Lease

log = logging.getLogger(__name__)

#: What the relay does with an answer, on the connection that it has then.  Returns how many events
#: are finished.
Then = Callable[["Connection", "Lane"], int]

#: How many partitions a relay serves at once, when nobody says otherwise.
AT_ONCE = 16


@dataclass(slots=True)
class Lane:
    """One held partition: its channel, the block in hand, and what is under way."""

    lease: Lease
    served: SinkLease
    partitions: int
    channel: Channel | None = None
    hand: InHand | None = None
    #: The answer of the sink to what was asked last.
    seen: Seen | None = None
    error: BaseException | None = None
    #: What to do with the answer, on the relay's thread.
    then: Then = field(default=lambda connection, lane: 0)
    is_busy: bool = False


class Preflights:
    """Which topics the sink was proven to take.  Threads that ask for one share the answer."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._lock = threading.Lock()
        self._under_way: dict[tuple[str, int], Future[None]] = {}
        self.proven: dict[str, int] = {}

    def require(self, topic: str, partitions: int) -> None:
        """Prove it, if the topic was not proven with so many partitions."""
        with self._lock:
            if self.proven.get(topic, 0) >= partitions:
                return
            own: Future[None] = Future()
            shared = self._under_way.setdefault((topic, partitions), own)
        if shared is own:
            self._prove(topic, partitions, own)
        shared.result()

    def _prove(self, topic: str, partitions: int, answer: Future[None]) -> None:
        try:
            self._sink.preflight(topic, partitions)
            self.proven[topic] = partitions
        except BaseException as error:
            answer.set_exception(error)
        else:
            answer.set_result(None)
        finally:
            with self._lock:
                del self._under_way[topic, partitions]


class RelayLanes:
    """The lanes of a relay, by partition id."""

    def __init__(self, sink: Sink, at_once: int = AT_ONCE) -> None:
        self.preflights = Preflights(sink)
        #: Called from a thread when something is finished.
        self.wake: Callable[[], None] = lambda: None
        self._sink = sink
        self._at_once = at_once
        self._threads: ThreadPoolExecutor | None = None
        self._lanes: dict[int, Lane] = {}
        self._busy = 0
        self._finished: queue.SimpleQueue[Lane] = queue.SimpleQueue()

    @property
    def busy(self) -> int:
        """How many partitions something is under way for."""
        return self._busy

    @property
    def is_full(self) -> bool:
        """Whether nothing more can be begun now."""
        return self._busy >= self._at_once

    def of(self, lease: Lease) -> Lane | None:
        """The lane of a partition, under whichever lease."""
        return self._lanes.get(lease.partition_id)

    def enter(self, lease: Lease, served: SinkLease, partitions: int) -> Lane:
        """The lane of a partition under this lease.  Nothing is under way on it."""
        known = self._lanes.get(lease.partition_id)
        if known is None or known.served != served:
            known = self._lanes[lease.partition_id] = Lane(lease, served, partitions)
        known.lease, known.partitions = lease, partitions
        return known

    def ask(self, lane: Lane, then: Then) -> None:
        """Open the channel and ask what the sink holds; a topic is proven before."""

        def asking() -> None:
            self.preflights.require(lane.served.topic, lane.partitions)
            lane.seen = self._channel(lane).seen()

        self._begin(lane, asking, then)

    def send(self, lane: Lane, then: Then) -> None:
        """Send the block in hand, or a part of what comes before it."""

        def sending() -> None:
            assert lane.hand is not None and lane.hand.block is not None
            self._channel(lane).send_block(lane.hand.part or lane.hand.block)

        self._begin(lane, sending, then)

    def end(self, lane: Lane) -> None:
        """Close the channel; the lane is gone when that is done."""
        self._begin(lane, lambda: _close(lane), self._forget)

    def end_others(self, leases: Iterable[Lease]) -> None:
        """End the lanes of leases that are not among these."""
        held = {(each.partition_id, each.lease_epoch) for each in leases}
        for each in list(self._lanes.values()):
            if not each.is_busy and (each.lease.partition_id, each.lease.lease_epoch) not in held:
                self.end(each)

    def wait(self, seconds: float | None = None) -> None:
        """Wait until something is finished."""
        try:
            self._finished.put(self._finished.get(timeout=seconds))
        except queue.Empty:
            return

    def finished(self) -> list[Lane]:
        """The lanes on which something was finished since this was asked last."""
        found = []
        while not self._finished.empty():
            lane = self._finished.get()
            lane.is_busy = False
            self._busy -= 1
            found.append(lane)
        return found

    def close(self) -> None:
        """Wait for what is under way, and close every channel."""
        while self._busy:
            self.wait()
            self.finished()
        self.end_others(())
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
        self.finished()
        self._lanes.clear()

    def _begin(self, lane: Lane, work: Callable[[], None], then: Then) -> None:
        assert not lane.is_busy
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._at_once, thread_name_prefix="relay")
        lane.is_busy, lane.error, lane.then = True, None, then
        self._busy += 1
        self._threads.submit(self._run, lane, work)

    def _run(self, lane: Lane, work: Callable[[], None]) -> None:
        try:
            work()
        except SinkBehind as error:  # the channel goes on when it has what is missing
            lane.error = error
        except BaseException as error:  # it is handled where the lane is looked at
            lane.error = error
            _close(lane)
        self._finished.put(lane)
        self.wake()

    def _channel(self, lane: Lane) -> Channel:
        if lane.channel is None:
            lane.channel = self._sink.open(lane.served)
        return lane.channel

    def _forget(self, connection: Connection, lane: Lane) -> int:
        if self._lanes.get(lane.lease.partition_id) is lane:
            del self._lanes[lane.lease.partition_id]
        return 0


def _close(lane: Lane) -> None:
    channel, lane.channel = lane.channel, None
    if channel is None:
        return
    try:
        channel.close()
    except BaseException:  # what it did not give back ends with the process
        log.warning("a channel of %s could not be closed", lane.served.topic, exc_info=True)
