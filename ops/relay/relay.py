"""Relay: carry a subscription to a sink, in recorded blocks, exactly once where the sink can.

A relay is a consumer of a stream subscription: it joins, holds leases and is fenced like any other.
For each partition it (1) records the range that it is about to send, the block, (2) reads it, (3)
gives it to the sink, in a thread (`lanes`), (4) commits its end. If it is killed or paused anywhere
in between, its successor finds the open block and sends exactly the same one. The sinks store it
once (`ops.sinks`).

A sink that does not answer is tried again after a backoff, and the database counts the attempts. An
event that the sink refuses goes to the dead letters, and its block goes on without it. Every
skipped event has a row that says so, and every attempt is counted.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from ops.relay.block import (
    DEFAULT_BACKOFF,
    Backoff,
    Begun,
    BlockResult,
    BlockWork,
    InHand,
    Rules,
    given,
)
from ops.relay.known import SinkTopics
from ops.relay.lanes import AT_ONCE, STOP_SECONDS, Lane, RelayLanes
from ops.relay.pace import CLOSED, Breaker, RelayPace
from ops.relay.pauses import Pauses
from ops.relay.places import PassedPlaces
from ops.relay.results import RelayResult
from ops.relay.status import ToldBreaker
from ops.sinks.base import Sink, SinkMisconfigured, SinkPaused, SinkUnavailable
from ops.sinks.ends import SinkBehind
from ops.sinks.routed import routing_of
from penstock import subscriptions
from penstock.database.backoff import doubled
from penstock.errors import (
    ConfigurationError,
    InvalidArgument,
    LogBehind,
    PenstockError,
    StaleLease,
    TopicNotFound,
    error_text,
    is_interruption,
)
from penstock.leases.held import HeldLeases
from penstock.leases.keepers import keeper_for
from penstock.leases.loop import Rounds
from penstock.log.restores import Seen, require_log
from penstock.records import Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.archive.targets import Target
    from penstock.database import Connection

log = logging.getLogger(__name__)

_MICRO_BATCH_POLL_SECONDS = 0.2


class Relay(Rounds):
    """Relays a subscription until it is told to stop: the continuous form.

    The caller opens and closes the sink.
    """

    def __init__(
        self,
        url: str | None,
        subscription: str,
        sink: Sink,
        *,
        consumer_id: str | None = None,
        weight: float = 1.0,
        idle_seconds: float = 0.5,
        backoff: Backoff = DEFAULT_BACKOFF,
        archive: Sequence[Target] = (),
        at_once: int = AT_ONCE,
        max_attempts: int | None = None,
        stop_seconds: float = STOP_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a relay that sends the blocks of up to ``at_once`` partitions at the same time.

        Below the low sequence it reads the ``archive`` targets. With ``max_attempts`` the events of
        a block that has failed so often go to the dead letters, also when the sink was only away.
        When it is told to stop, it waits ``stop_seconds`` for the blocks that it is sending, and
        then ends the calls of the sink.
        """
        _require_counts(at_once, max_attempts)
        routing = routing_of(sink)
        if routing.order:
            raise ConfigurationError(
                f"order={routing.order} is for the relay of a queue, and this one sends a stream",
                hint="leave order out",
            )
        keeper = keeper_for(url, subscription, consumer_id=consumer_id, weight=weight)
        self.keeper = keeper
        super().__init__(HeldLeases(keeper), idle_seconds=idle_seconds)
        self.sink = sink
        self.dead_letters = self.left_out = 0
        self.pauses = Pauses(clock)
        self._rules = Rules(backoff, tuple(archive), max_attempts, routing)
        self._places = PassedPlaces()
        self._pace = RelayPace(routing.pacing, clock)
        self._breaker = Breaker(routing.pacing, clock)
        self._told = ToldBreaker(self._breaker, sink.name, subscription)
        self._lanes = RelayLanes(sink, at_once, clock)
        self._lanes.holds = keeper.holds
        self._stop_seconds = stop_seconds
        self._topics = SinkTopics()
        self._compared: dict[int, int] = {}
        self._begun: dict[int, Begun] = {}
        self._compared_on: Connection | None = None
        self._begins = True

    def run_for(self, max_seconds: float, *, until_drained: bool = False) -> RelayResult:
        """Relay what is there, for at most about ``max_seconds``.

        A failing sink is tried again meanwhile.  With ``until_drained`` it also waits for the
        partitions that others hold: one that died holds them until its lease ends.
        """
        with self.joined() as connection:
            return self.send_for(connection, max_seconds, until_drained=until_drained)

    @contextmanager
    def joined(self) -> Iterator[Connection]:
        """A connection for :meth:`send_for`, as often as the caller likes.

        Leases and channels of the sink are kept until the end of the block.
        """
        with self.keeper, self._lanes_closed(), self.open() as connection:
            self._prove(connection)
            yield connection

    def send_for(
        self,
        connection: Connection,
        max_seconds: float,
        *,
        until_drained: bool = False,
        stop: threading.Event | None = None,
    ) -> RelayResult:
        """As :meth:`run_for`, within :meth:`joined`.  The result counts from the beginning.

        Its last error is that of an earlier call while nothing has gone on since.

        Who sets ``stop`` ends it earlier.  A call that goes on for long after the end is ended, and
        that is a failure of the sink: else one that never answers would never have failed.
        """
        deadline = time.monotonic() + max_seconds
        stop = stop or threading.Event()
        stats, before = self.stats, (self.stats.failures, self.stats.batches)
        self._begins = True
        while time.monotonic() < deadline and not stop.is_set():
            if self.turn(connection):
                continue
            if self._lanes.busy:
                self._lanes.wait(_MICRO_BATCH_POLL_SECONDS)
            elif not self._waits() and not (until_drained and self._lags(connection)):
                break
            else:
                stop.wait(_MICRO_BATCH_POLL_SECONDS)
        self._finish(connection, is_to_blame=not stop.is_set())
        drained = not self._lags(connection)
        if stats.failures == before[0] and (drained or stats.batches > before[1]):
            stats.last_error = ""  # it has gone on since
        return RelayResult(
            stats.events,
            stats.batches,
            self.dead_letters,
            stats.failures,
            drained,
            stats.last_error,
            self.left_out,
        )

    def _waits(self) -> bool:
        """Whether something is sent later: after a failure, or when the pace allows it."""
        return bool(self.pauses) or self._breaker.state != CLOSED or self._pace.wait_seconds() > 0

    def round(self, connection: Connection) -> int:
        """Commit what was sent since, and send the next block of each held partition.

        Returns how many events are finished. It waits for no sink: a thread that has finished
        something wakes the loop.
        """
        self._notice(connection)
        done = sum(self._settle(connection, lane) for lane in self._lanes.finished())
        held = self.keeper.leases()
        self._lanes.end_others(held)
        self.pauses.keep(held)
        self._told.tell(connection, self.stats.last_error, self.keeper.member.consumer)
        for lease in self.keeper.active():
            if self._lanes.free <= 0 or self.is_stopping() or not self._may_begin():
                break
            self.stats.last_round = time.monotonic()
            lane = self._lanes.of(lease)
            is_free = lane is None or not lane.is_busy
            if is_free and self.pauses.is_over(lease) and self.keeper.holds(lease):
                done += self._counted(lease, partial(self._start, connection, lease))
        return done

    def _may_begin(self) -> bool:
        return self._breaker.lets_through(self._lanes.busy) and not self._pace.wait_seconds()

    def let_go(self, connection: Connection, asked: list[Lease]) -> list[Lease]:
        """Those without a channel.  The others follow when theirs is closed."""
        free = []
        for lease in asked:
            lane = self._lanes.of(lease)
            if lane is None:
                free.append(lease)
            elif not lane.is_busy:
                self._lanes.end(lane)
        return free

    def gauges(self) -> dict[str, float]:
        """Also whether the sink is left alone, and how many of its calls do not end."""
        is_open = self._breaker.state != CLOSED
        return super().gauges() | {
            "relay_breaker_open": float(is_open),
            "relay_calls_left_behind": float(self._lanes.left_behind),
        }

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """The threads have ended and the channels are closed before the leases are given back."""
        self._begins = True
        with super().at_work():
            self._lanes.wake = self._wake.set
            with self._lanes_closed():
                yield

    @contextmanager
    def _lanes_closed(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._lanes.close(self._stop_seconds)

    @contextmanager
    def session(self, connection: Connection) -> Iterator[None]:
        """When the relay is told to stop, the blocks that are being sent are finished.

        A sink that does not answer gets some time for that, and then its calls are ended.
        """
        yield
        self._finish(connection)

    def _finish(self, connection: Connection, *, is_to_blame: bool = False) -> None:
        """Commit what is still being sent, and begin nothing more.

        ``is_to_blame``: what has to be ended is a failure of the sink.
        """
        self._begins = False
        for lane in self._lanes.ending(self._stop_seconds):
            is_ended = lane.is_given_up and lane.error is not None
            if is_to_blame and is_ended and self.keeper.holds(lane.lease):
                name, seconds = self.sink.name, self._stop_seconds
                lane.error = SinkUnavailable(f"the sink {name} did not answer within {seconds} s")
                self._counted(lane.lease, partial(lane.then, connection, lane))
            else:
                self._settle(connection, lane)

    def _prove(self, connection: Connection) -> None:
        """SinkMisconfigured when the sink is not set up for all topics, before anything is sent."""
        for lease in {each.topic: each for each in self.keeper.leases()}.values():
            topic = self._topics.of(connection, lease)
            with self._later():
                if topic is not None:
                    self._lanes.preflights.require(lease.topic, topic.partitions)

    @contextmanager
    def _later(self) -> Iterator[None]:
        """Whatever else the sink raises, the first turn meets again and counts."""
        try:
            yield
        except SinkMisconfigured:
            raise
        except BaseException as error:
            if is_interruption(error):
                raise

    def _notice(self, connection: Connection) -> None:
        """On another connection it is compared again what the sink holds."""
        if connection is not self._compared_on:
            self._compared_on = connection
            self._compared.clear()

    def _lags(self, connection: Connection) -> bool:
        """Whether a partition has events that are not sent, whoever holds it."""
        found = subscriptions.lag(connection, self.keeper.member.subscription)
        return any(each.lag_events for each in found)

    def _counted(self, lease: Lease, step: Callable[[], int]) -> int:
        """One step for a lease.  Whatever stops it is counted, and other partitions go on."""
        try:
            return step()
        except StaleLease as error:
            self.stats.stale(error)
            self.keeper.lost(lease)
        except PenstockError as error:
            if isinstance(error, SinkMisconfigured) and not self._lanes.preflights.proven:
                raise  # at the start, a person sees it; later, other partitions go on
            if isinstance(error, LogBehind):
                self._compared.pop(lease.partition_id, None)
            # No block is open, so the database has nothing to count the failure on.
            shortest, longest = self._rules.backoff.base_seconds, self._rules.backoff.max_seconds
            pause = doubled(self.pauses.attempts(lease) + 1, shortest, longest)
            self._pause(lease, pause, error_text(error))
        return 0

    def _start(self, connection: Connection, lease: Lease) -> int:
        """Open the lease's next block, and send what comes next on its way."""
        topic = self._topics.of(connection, lease)
        if topic is None:
            self.keeper.check_in_soon()
            raise TopicNotFound(f'"{lease.topic}" has become another topic\'s address')
        served = topic.served(self.keeper.member.subscription, lease)
        lane = self._lanes.of(lease)
        if lane is not None and lane.served != served:
            self._lanes.end(lane)  # when that is done, the loop is woken
            return 0
        work = self._blocks(connection, lease)
        try:
            hand = work.open(self.sink, self._begun)
        except LogBehind:
            with suppress(LogBehind):  # recorded, so that all readers are stopped
                self._compare(connection, lease, None)
            raise
        lane = self._lanes.enter(lease, served, topic.partitions)
        lane.hand = hand
        ended = None if hand is None else work.read(hand)
        return self._go_on(connection, lane) if ended is None else self._settled(lease, ended)

    def _go_on(self, connection: Connection, lane: Lane) -> int:
        """Ask what the sink holds, once for each lease and connection; then send the block."""
        lease, hand = lane.lease, lane.hand
        is_compared = self._compared.get(lease.partition_id) == lease.lease_epoch
        if hand is not None and hand.is_empty and (is_compared or not hand.left_out):
            # The sink may be away for ever. What rules have left out waits once for its answer,
            # because it may hold what the log has lost.
            return self._commit(connection, lane, hand)
        if not is_compared:
            self._lanes.ask(lane, self._answered)
        elif hand is None:
            self.pauses.end(lease)
        elif self.keeper.holds(lease):  # else the block is its next holder's
            if hand.parts:
                self._blocks(connection, lease).read_part(hand, self.sink)
            going = hand.part or hand.block
            assert going is not None
            self._pace.spend(going.events)
            if hand.part is None:
                given(lease, self._begun)
            self._lanes.send(lane, self._sent)
        return 0

    def _settle(self, connection: Connection, lane: Lane) -> int:
        """Handle what a thread has finished, on the connection of now."""
        if lane.is_given_up and lane.error is not None:
            lane.hand = None  # the relay has ended it, so it is no failure of the sink
            return 0
        return self._counted(lane.lease, lambda: lane.then(connection, lane))

    def _answered(self, connection: Connection, lane: Lane) -> int:
        """The sink was asked what it holds."""
        if lane.error is not None:
            return self._failed(connection, lane, lane.error)
        self._compare(connection, lane.lease, lane.seen)
        self._compared[lane.lease.partition_id] = lane.lease.lease_epoch
        return self._go_on(connection, lane) if self._begins else 0

    def _sent(self, connection: Connection, lane: Lane) -> int:
        """A block was sent, or not."""
        hand, error = lane.hand, lane.error
        assert hand is not None
        work = self._blocks(connection, lane.lease)
        if error is None:
            self._breaker.succeeded()
        if error is None and hand.part is None:
            return self._commit(connection, lane, hand)
        if isinstance(error, SinkBehind):
            try:
                work.bridge(hand, error)
            except PenstockError as stopped:
                self._lanes.end(lane)
                return self._failed(connection, lane, stopped)
        elif error is not None and not work.refused(hand, error):
            return self._failed(connection, lane, error)
        hand.part = None
        return self._go_on(connection, lane) if self._begins else 0

    def _commit(self, connection: Connection, lane: Lane, hand: InHand) -> int:
        lane.hand = None
        try:
            done = self._blocks(connection, lane.lease).commit(hand, self.sink)
        except BaseException:
            self._places.forget(lane.lease)
            raise
        return self._settled(lane.lease, done)

    def _failed(self, connection: Connection, lane: Lane, error: BaseException) -> int:
        hand, lane.hand = lane.hand, None
        if isinstance(error, SinkUnavailable) or not isinstance(error, PenstockError):
            self._breaker.failed()
        if hand is not None:
            result = self._blocks(connection, lane.lease).failed(hand, error)
            if isinstance(error, SinkMisconfigured) and not self._lanes.preflights.proven:
                raise error
            return self._settled(lane.lease, result)
        if isinstance(error, SinkPaused):
            self._blocks(connection, lane.lease).pause(error)
        if isinstance(error, PenstockError):
            raise error
        name = self.sink.name
        log.error("the sink %s failed with an unexpected error", name, exc_info=error)
        raise SinkUnavailable(f"the sink {name} failed: {error_text(error)}") from error

    def _compare(self, connection: Connection, lease: Lease, seen: Seen | None) -> None:
        """Check that the log reaches what the sink holds, and what was begun under this lease."""
        places = [] if seen is None else [seen]
        begun = self._begun.get(lease.partition_id)
        if begun is not None and begun.lease_epoch == lease.lease_epoch:
            places.append(Seen(begun.last_sequence, lease.history))
        if not places:
            return
        relay = self.keeper.member.subscription
        furthest = max(places, key=lambda each: (each.history, each.sequence))
        source = f'{self.sink.name} of the relay "{relay}"'
        require_log(connection, {lease.partition_id: furthest}, source, relay)

    def _blocks(self, connection: Connection, lease: Lease) -> BlockWork:
        return BlockWork(connection, self.keeper.member, lease, self._rules, self._places)

    def _settled(self, lease: Lease, result: BlockResult) -> int:
        self.dead_letters += result.dead_letters
        self.stats.dead_letters = self.dead_letters
        self.left_out += result.left_out
        self.stats.filtered = self.left_out
        if result.retry_after is not None:
            self._pause(lease, result.retry_after, result.error)
            return 0
        self.pauses.end(lease)
        self.keeper.moved(lease, result.last_sequence)
        self.stats.done(result.events)
        return result.events + result.dead_letters + result.left_out

    def _pause(self, lease: Lease, seconds: float, error: str) -> None:
        self.pauses.begin(lease, seconds)
        self.stats.failures += 1
        self.stats.last_error = error
        log.warning(
            "relay of %s partition %s to %s failed, again in %.1f s: %s",
            lease.topic,
            lease.partition,
            self.sink.name,
            seconds,
            error,
        )


def _require_counts(at_once: int, max_attempts: int | None) -> None:
    for name, count in (("at_once", at_once), ("max_attempts", max_attempts)):
        if count is not None and count < 1:
            raise InvalidArgument(f"{name} of a relay is {count}", hint="it is at least 1")
