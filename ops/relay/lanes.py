"""What a relay asks of its sink, for several partitions at once: each has a lane.

The relay's own thread opens, reads and commits blocks on its connection. What talks to the sink
runs in a few threads beside it, so a slow partition does not hold up the others. Only one thing at
a time is under way on a lane, so a partition is never in two threads.

A call of a sink may never end by itself. When its lease is lost, or when the relay was told to stop
and has waited, the channel is told to end it (`abort`). A call that goes on all the same is left
behind in its thread and counted. Another thread takes its place, so its partition can be served
again. When it ends after all, it gives that place back.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from ops.relay.threads import ABORT_SECONDS, MOST_LEFT, SideThreads, end_call
from ops.sinks.base import Channel, Sink, SinkLease, SinkUnavailable
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

#: How long a relay that is told to stop waits for the blocks that it is sending.
STOP_SECONDS = 10.0

#: How often it is looked whether the lease of a call is still held.
_LOOK_SECONDS = 0.5


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
    #: The sink was told to end what is under way; the channel is of no use after that.
    is_aborted: bool = False
    aborted_at: float = 0.0
    #: The call did not end all the same, and nobody looks at it any more.
    is_left: bool = False
    #: What was under way has returned: there is nothing to leave behind.
    is_over: bool = False


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
        #: Whether a lease is held now.  A call for one that is not is told to end.
        self.holds: Callable[[Lease], bool] = lambda lease: True
        self._sink = sink
        self._at_once = at_once
        self._threads: SideThreads | None = None
        self._lanes: dict[int, Lane] = {}
        self._busy: dict[int, Lane] = {}
        self._finished: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        self._over = threading.Event()
        self._lock = threading.Lock()
        #: How many calls are left behind and go on, and how many ever were.
        self.left = self.left_behind = 0

    @property
    def busy(self) -> int:
        """How many partitions something is under way for."""
        return len(self._busy)

    @property
    def is_full(self) -> bool:
        """Whether nothing more can be begun now."""
        return self.busy >= self._at_once - max(0, self.left - MOST_LEFT)

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
            hand = lane.hand
            assert hand is not None and hand.block is not None
            channel = self._channel(lane)
            if hand.skip is not None:
                hand.skip()
                hand.skip = None
            channel.send_block(hand.part or hand.block)

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
        self._leave(self._overdue())
        return self._taken()

    def _taken(self) -> list[Lane]:
        found = []
        while not self._finished.empty():
            lane = self._finished.get()
            if self._busy.pop(id(lane), None) is not None:  # else it was left behind
                lane.is_busy = False
                found.append(lane)
        return found

    def ending(self, seconds: float) -> Iterator[Lane]:
        """The lanes that are finished from now on, until nothing is under way.

        After ``seconds`` calls of the sink are told to end. Those that do not are left behind: a
        copy of their lane tells of it.
        """
        aborted_at = time.monotonic() + seconds
        left_at = aborted_at + ABORT_SECONDS
        while self._busy:
            now = time.monotonic()
            if now >= aborted_at:
                self._abort(list(self._busy.values()))
            if now < left_at:
                self.wait(max(0.0, (aborted_at if now < aborted_at else left_at) - now))
            yield from self._taken()
            yield from self._leave(self._overdue() if now < left_at else [*self._busy.values()])

    def close(self, seconds: float = STOP_SECONDS) -> None:
        """Wait for what is under way, but not for ever, and close every channel."""
        for _ in self.ending(seconds):
            continue
        self.end_others(())
        for _ in self.ending(seconds):
            continue
        self._over.set()
        if self._threads is not None:
            self._threads.end()
            self._threads = None
        self._lanes.clear()
        self.wake = lambda: None

    def _begin(self, lane: Lane, work: Callable[[], None], then: Then) -> None:
        assert not lane.is_busy
        spoiled, lane.is_aborted = lane.is_aborted, False
        lane.error, lane.then, lane.is_over = None, then, False
        finished = self._finished

        def run() -> None:
            if spoiled:
                _close(lane)
            self._run(lane, work, finished)

        lane.is_busy = True
        self._busy[id(lane)] = lane
        try:
            self._side_threads().give(run)
        except RuntimeError as error:  # the machine has no thread for it now
            lane.error = SinkUnavailable(f"the relay cannot start a thread: {error}")
            _close(lane)
            finished.put(lane)
            self.wake()

    def _side_threads(self) -> SideThreads:
        if self._threads is None:
            over = self._over = threading.Event()
            threads = SideThreads(self._at_once + 1, "relay")
            threads.give(partial(self._look, over))
            self._threads = threads
        return self._threads

    def _look(self, over: threading.Event) -> None:
        """End the calls of lost leases, also while the relay's thread waits for its database."""
        while not over.wait(_LOOK_SECONDS):
            busy = list(self._busy.values())
            self._abort([each for each in busy if not self.holds(each.lease)])
            if any(map(self._is_overdue, busy)):
                self.wake()

    def _run(self, lane: Lane, work: Callable[[], None], finished: queue.SimpleQueue[Lane]) -> None:
        try:
            work()
        except SinkBehind as error:  # the channel goes on when it has what is missing
            lane.error = error
        except BaseException as error:  # it is handled where the lane is looked at
            lane.error = error
            _close(lane)
        with self._lock:
            lane.is_over = True
            finished.put(lane)
            if lane.is_left:
                self._count_left(-1)
        if lane.is_left:
            _close(lane)
        self.wake()

    def _channel(self, lane: Lane) -> Channel:
        if lane.channel is None:
            lane.channel = self._sink.open(lane.served)
        if lane.is_aborted:  # before it was there
            raise SinkUnavailable("the relay has given the call up")
        return lane.channel

    def _abort(self, lanes: Iterable[Lane]) -> None:
        """Tell channels to end what is under way.  Each in a thread: nobody waits for that."""
        for lane in lanes:
            if lane.is_aborted:
                continue
            # Before the thread runs: the call may return at once, and that is no failure of its.
            lane.aborted_at, lane.is_aborted = time.monotonic(), True
            if lane.channel is not None:
                ending = threading.Thread(target=end_call, args=(lane.channel,), daemon=True)
                try:
                    ending.start()
                except RuntimeError as error:  # the machine has no thread for it: at the next look
                    log.warning("a call of %s cannot be ended now: %s", lane.served.topic, error)
                    lane.is_aborted = False

    def _overdue(self) -> list[Lane]:
        return [each for each in self._busy.values() if self._is_overdue(each)]

    def _is_overdue(self, lane: Lane) -> bool:
        return lane.is_aborted and time.monotonic() - lane.aborted_at >= ABORT_SECONDS

    def _leave(self, lanes: Iterable[Lane]) -> list[Lane]:
        """Go on without calls that do not end.  What they return is not looked at.

        Returns copies of their lanes: the calls go on with the lanes themselves.
        """
        left = []
        for lane in lanes:
            with self._lock:
                if lane.is_over:
                    continue
                lane.is_left = True
                self._count_left(1)
            self.left_behind += 1
            log.error(
                "%s partition %s: a call of the sink does not end, and is left behind",
                lane.served.topic, lane.served.partition,
            )  # fmt: skip
            del self._busy[id(lane)]
            if self._lanes.get(lane.lease.partition_id) is lane:
                del self._lanes[lane.lease.partition_id]
            error = SinkUnavailable("a call of the sink does not end")
            left.append(replace(lane, error=error, is_aborted=True, is_busy=False))
        return left

    def _count_left(self, more: int) -> None:
        self.left += more
        if self._threads is not None:
            self._threads.replaced = min(self.left, MOST_LEFT)

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
