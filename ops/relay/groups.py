"""Relays with several sinks: serve them in turn, the fastest first, and say where each stands.

Each sink is a relay of its own, so a slow or dead one holds up nobody. With fewer threads than
sinks they take turns: whose time comes first is served next. A sink's time is when it asked plus
the moving average of its blocks, so the fastest of those that ask together is first, and a slow one
waits at most as long as it is slower.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from operator import add, sub
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from ops.relay.status import relay_status
from ops.relay.threads import SideThreads
from penstock.database.backoff import backoff
from penstock.errors import InvalidArgument, error_text, is_interruption
from penstock.subscriptions.relay_groups import RelayGroup, relay_group_lag

if TYPE_CHECKING:
    from ops.relay.relay import Relay
    from ops.relay.results import RelayResult
    from ops.sinks.base import Sink

log = logging.getLogger(__name__)

#: How long one sink is served before another one that waits.
TURN_SECONDS = 2.0
#: How long a sink that has everything is left alone.
IDLE_SECONDS = 0.5
#: How long it is waited at the end for all sinks together to be left and closed.
CLOSE_SECONDS = 30.0
#: The moving average of a sink: what it begins with, the weight of the newest, and its end.
_FIRST, _WEIGHT, _LONGEST = 0.001, 0.2, 10.0


class SinkTurns:
    """Whose turn it is."""

    def __init__(self, names: Iterable[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked = dict.fromkeys(names, clock())
        #: How long each sink takes for a block.
        self.averages = dict.fromkeys(self._asked, _FIRST)

    def __len__(self) -> int:
        return len(self._asked)

    def take(self) -> str | None:
        """The sink that is served next; None when nobody asks now."""
        now = self._clock()
        asking = [name for name, asked in self._asked.items() if asked <= now]
        if not asking:
            return None
        found = min(asking, key=lambda name: (self._asked[name] + self.averages[name], name))
        del self._asked[found]
        return found

    def served(self, name: str, seconds: float | None) -> None:
        """What a turn has shown: the seconds of a block; None when the sink took nothing."""
        average = self.averages[name]
        if seconds is None:
            self.averages[name] = min(2 * average, _LONGEST)
        else:
            self.averages[name] = min((1 - _WEIGHT) * average + _WEIGHT * seconds, _LONGEST)

    def ask(self, name: str, later: float = 0.0) -> None:
        """A sink asks for its next turn, or will after some seconds."""
        self._asked[name] = self._clock() + later


@dataclass(frozen=True, slots=True)
class SinkResult:
    """What a relay has done for one of its sinks.  ``drained``: nothing is left to send to it."""

    sink: str
    events: int
    blocks: int
    dead_letters: int
    failures: int
    drained: bool
    last_error: str


@dataclass(frozen=True, slots=True)
class _Turn:
    """What a turn has shown, and when the sink asks for its next.

    ``seconds``: those of a block; None when it took none and something failed.
    """

    drained: bool
    seconds: float | None
    later: float


class _Served:
    """One sink while it is served: it stays open, and its relay goes on in every turn."""

    def __init__(self, name: str, open_sink: Callable[[], Sink], made: Callable[[Sink], Relay]):
        self.name = name
        self._open, self._made = open_sink, made
        self._relay: Relay | None = None
        self._connection: Any = None
        self._kept = ExitStack()
        #: Events, blocks, dead letters and failures: of all relays, and of the one that is there.
        self._counts = self._of_this = (0, 0, 0, 0)
        self._drained, self._error = False, ""
        #: How many turns in a row have raised.
        self._raised = 0

    def turn(self, seconds: float, stop: threading.Event) -> _Turn:
        """Serve it until the time is over, or somebody says so."""
        begun, before = time.monotonic(), self._counts
        try:
            relay = self._present()
            self._note(relay.send_for(self._connection, seconds, stop=stop))
            self._raised = 0
        except Exception as error:
            if is_interruption(error):
                raise
            log.warning("the sink %s cannot be served: %s", self.name, error_text(error))
            self.close()
            self._error, self._drained = error_text(error), False
            self._count((0, 0, 0, 1))
            self._raised += 1
        taken, has_failed = self._counts[1] - before[1], self._counts[3] > before[3]
        if taken:
            return _Turn(self._drained, (time.monotonic() - begun) / taken, self._later(0.0))
        # Without a failure there was nothing to do here: others may hold what is left.
        later = self._later(0.0 if has_failed else IDLE_SECONDS)
        return _Turn(self._drained, None if has_failed else 0.0, later)

    def _later(self, seconds: float) -> float:
        """After what raised at once there is a pause: else a thread would do nothing else."""
        if self._raised:
            return backoff(self._raised)
        return IDLE_SECONDS if self._drained else seconds

    def close(self) -> None:
        """Leave, and close the sink.  The next turn opens it again."""
        self._relay, self._of_this = None, (0, 0, 0, 0)
        try:
            self._kept.close()
        except Exception as error:
            log.warning("the sink %s was not left in order: %s", self.name, error_text(error))

    def _present(self) -> Relay:
        if self._relay is None:
            with ExitStack() as opening:
                sink = opening.enter_context(closing(self._open()))
                relay = self._made(sink)
                self._connection = opening.enter_context(relay.joined())
                self._kept = opening.pop_all()
            self._relay = relay
        return self._relay

    def _note(self, done: RelayResult) -> None:
        now = (done.events, done.blocks, done.dead_letters, done.failures)
        self._count(tuple(map(sub, now, self._of_this)))
        self._of_this = now
        self._drained, self._error = done.drained, done.last_error

    def _count(self, more: tuple[int, ...]) -> None:
        events, blocks, letters, failures = map(add, self._counts, more)
        self._counts = events, blocks, letters, failures

    def result(self) -> SinkResult:
        """What was done until now."""
        return SinkResult(self.name, *self._counts, drained=self._drained, last_error=self._error)


def serve(
    sinks: Mapping[str, Callable[[], Sink]],
    made: Callable[[str, Sink], Relay],
    *,
    threads: int,
    max_seconds: float | None = None,
    stop: threading.Event | None = None,
) -> list[SinkResult]:
    """Send to several sinks what is there, or, without ``max_seconds``, until ``stop`` is set.

    ``made`` makes the relay of a sink.  What one raises is in its result: the others go on.
    """
    if threads < 1:
        raise InvalidArgument(f"a relay cannot have {threads} threads", hint="it has at least 1")
    stop = stop or threading.Event()
    deadline = None if max_seconds is None else time.monotonic() + max_seconds
    served = {
        name: _Served(name, opened, lambda sink, name=name: made(name, sink))  # type: ignore[misc]
        for name, opened in sinks.items()
    }
    try:
        with ThreadPoolExecutor(threads, thread_name_prefix="relay-sink") as pool:
            try:
                _take_turns(served, pool, threads, deadline, stop)
            except BaseException:
                stop.set()  # the turns that are under way end too, and are waited for here
                raise
    finally:
        _close_all(list(served.values()))
    return [each.result() for each in served.values()]


def _close_all(served: list[_Served]) -> None:
    """Close all sinks side by side, so that one that does not answer holds up no other.

    No turn is under way.  What is not closed in time ends with the process.
    """
    threads = SideThreads(len(served), "relay-close")
    closed: SimpleQueue[str] = SimpleQueue()

    def close(one: _Served) -> None:
        one.close()
        closed.put(one.name)

    left = {each.name for each in served}
    for each in served:
        try:
            threads.give(partial(close, each))
        except RuntimeError:  # the machine has no thread for it now
            close(each)
    ends = time.monotonic() + CLOSE_SECONDS
    try:
        while left:
            left.discard(closed.get(timeout=max(0.0, ends - time.monotonic())))
    except Empty:
        log.error("these sinks are not closed after %s s: %s", CLOSE_SECONDS, sorted(left))
    threads.end()


def _take_turns(
    served: Mapping[str, _Served],
    pool: ThreadPoolExecutor,
    threads: int,
    deadline: float | None,
    stop: threading.Event,
) -> None:
    """Until everything was sent, the time is over, or somebody says so.  No turn is under way."""
    turns = SinkTurns(served)
    busy: dict[Future[_Turn], str] = {}
    while (turns or busy) and not stop.is_set():
        left = TURN_SECONDS if deadline is None else deadline - time.monotonic()
        if left <= 0:
            break
        has_room = threads >= len(turns) + len(busy) and deadline is not None
        while len(busy) < threads and (name := turns.take()) is not None:
            seconds = left if has_room else min(left, TURN_SECONDS)
            busy[pool.submit(served[name].turn, seconds, stop)] = name
        done, _ = wait(busy, timeout=IDLE_SECONDS, return_when=FIRST_COMPLETED)
        if not busy:
            stop.wait(min(left, IDLE_SECONDS))
        for each in done:
            name, turn = busy.pop(each), each.result()
            turns.served(name, turn.seconds)
            if deadline is None or not turn.drained:
                turns.ask(name, turn.later)
    wait(busy)


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """Where a relay with several sinks, or one of them, stands in a partition.

    The row of the relay itself has ``sink`` ''; ``there`` is how many sinks have passed its
    position, and of a sink whether it has.
    """

    topic: str
    partition: int
    sink: str
    there: str
    position: int
    lag_events: int
    oldest_seconds: float
    events_per_second: float
    attempts: int
    breaker: str
    holder: str
    last_error: str


def group_status(connection: Any, group: RelayGroup) -> list[SinkStatus]:
    """A row for each partition of a relay with several sinks, and after it one for each sink."""
    of_sinks = {
        (each.topic, each.partition, sink): each
        for sink, subscription in sorted(group.sinks.items())
        for each in relay_status(connection, subscription)
    }
    found = []
    for at in relay_group_lag(connection, group.relay):
        said = f"{at.sinks_there} of {at.sinks}, quorum {group.ack_quorum}"
        found.append(
            SinkStatus(at.topic, at.partition, "", said, at.position, at.lag_events,
                       round(at.lag_seconds, 3), 0.0, 0, "", "", "")
        )  # fmt: skip
        for (topic, partition, sink), each in of_sinks.items():
            if (topic, partition) == (at.topic, at.partition):
                there = "yes" if each.position >= at.position else "no"
                found.append(
                    SinkStatus(topic, partition, sink, there, each.position, each.lag_events,
                               each.oldest_seconds, each.events_per_second, each.attempts,
                               each.breaker, each.holder, each.last_error)
                )  # fmt: skip
    return found
