"""What a relay asks of its sink, for several partitions at once: each has a lane.

The relay's own thread opens, reads and commits blocks on its connection. What talks to the sink
runs in a few threads beside it (`sink_calls`), so a slow partition does not hold up the others.
Only one call at a time is under way on a lane, so a partition is never in two threads.

A call ends with its lease. One that does not is left behind: its lane is gone, so its partition can
be served again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ops.relay.sink_calls import SinkCall, SinkCalls

if TYPE_CHECKING:
    from ops.relay.block import InHand
    from ops.sinks.base import Channel, Sink, SinkLease
    from penstock.database import Connection
    from penstock.log.restores import Seen
    from penstock.records import Lease

#: What the relay does with an answer, on the connection that it has then.  Returns how many events
#: are finished.
Then = Callable[["Connection", "Lane"], int]

#: How many partitions a relay serves at once, when nobody says otherwise.
AT_ONCE = 16

#: How long a relay that is told to stop waits for the blocks that it is sending.
STOP_SECONDS = 10.0


@dataclass(slots=True)
class Lane:
    """One held partition: its channel, the block in hand, and what its last call has shown."""

    lease: Lease
    served: SinkLease
    partitions: int
    channel: Channel | None = None
    hand: InHand | None = None
    #: The answer of the sink to what was asked last.
    seen: Seen | None = None
    error: BaseException | None = None
    #: The relay has not waited for the end of the call.
    is_given_up: bool = False
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


class RelayLanes(SinkCalls[Lane]):
    """The lanes of a relay, by partition id."""

    def __init__(
        self, sink: Sink, at_once: int = AT_ONCE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(sink, at_once, lambda call: not self.holds(call.item.lease), clock)
        self.preflights = Preflights(sink)
        #: Whether a lease is held now.  A call for one that is not is told to end.
        self.holds: Callable[[Lease], bool] = lambda lease: True
        self._lanes: dict[int, Lane] = {}

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

        def asking(call: SinkCall[Lane]) -> None:
            self.preflights.require(lane.served.topic, lane.partitions)
            lane.seen = self.channel(call).seen()

        self._begin(lane, asking, then)

    def send(self, lane: Lane, then: Then) -> None:
        """Send the block in hand, or a part of what comes before it."""
        hand = lane.hand
        assert hand is not None and hand.block is not None
        block = hand.part or hand.block

        def sending(call: SinkCall[Lane]) -> None:
            channel = self.channel(call)
            if hand.skip is not None:
                hand.skip()
                hand.skip = None
            channel.send_block(block)

        self._begin(lane, sending, then)

    def end(self, lane: Lane) -> None:
        """Close the channel; the lane is gone when that is done."""
        self._begin(lane, SinkCall.close, self._forget, is_closing=True)

    def end_others(self, leases: Iterable[Lease]) -> None:
        """End the lanes of leases that are not among these."""
        held = {(each.partition_id, each.lease_epoch) for each in leases}
        for each in list(self._lanes.values()):
            if not each.is_busy and (each.lease.partition_id, each.lease.lease_epoch) not in held:
                self.end(each)

    def finished(self) -> list[Lane]:
        """The lanes on which something was finished since this was asked last."""
        return [self._back(call) for call in self.over()]

    def ending(self, seconds: float) -> Iterator[Lane]:
        """The lanes that are finished from now on, until nothing is under way.

        After ``seconds`` calls of the sink are told to end, and then left behind.
        """
        return map(self._back, self.all_over(seconds))

    def close(self, seconds: float = STOP_SECONDS) -> None:
        """Wait for what is under way, but not for ever, and close every channel."""
        for _ in self.ending(seconds):
            continue
        self.end_others(())
        for _ in self.ending(seconds):
            continue
        self.end_calls()
        self._lanes.clear()

    def _begin(
        self,
        lane: Lane,
        work: Callable[[SinkCall[Lane]], object],
        then: Then,
        *,
        is_closing: bool = False,
    ) -> None:
        assert not lane.is_busy
        lane.is_busy, lane.then = True, then
        call = SinkCall(lane, lane.served, self._clock(), lane.channel, is_closing=is_closing)
        self.begin(call, work)

    def _back(self, call: SinkCall[Lane]) -> Lane:
        """A lane whose call is over, or left behind: then the lane is gone."""
        lane = call.item
        lane.is_busy, lane.channel = False, call.channel
        lane.error, lane.is_given_up = call.error, call.is_given_up
        if call.is_left:
            self._forget(None, lane)
        return lane

    def _forget(self, connection: Connection | None, lane: Lane) -> int:
        if self._lanes.get(lane.lease.partition_id) is lane:
            del self._lanes[lane.lease.partition_id]
        return 0
