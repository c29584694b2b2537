"""The relay of a queue: single events in no order, or in that of their keys, each with attempts.

It is the other half of `ops.relay.relay`, for sinks that only take. The database hands events out,
hides them from other relays for the time of a lease, counts every hand-out, and keeps what has
failed until its next attempt (`penstock.subscriptions.queue`). So an event is pending, in flight,
sent, or failed: a dead letter. One that a sink refuses is dead at once. One that fails waits longer
each time, and is dead after so many attempts, whether the relay saw them fail or died of them.

A slow event holds up no other: each has its own time limit, and what waits for its turn gets its
lease extended. Marks go over the relay's own connection, so they do not share that limit.

When nothing gets through, the sink is away, and no event is to blame. Then the relay puts back what
it has, without counting it, and tries with one event now and then. So an event has its last attempt
only while others get through. Whoever wants the attempts counted then too says so
(``counts_absence``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

from ops.relay.misfits import misfits
from ops.relay.pace import CLOSED, OPEN, Breaker, RelayPace
from ops.relay.queue_sender import QueueSender, Sending, too_late
from ops.sinks.base import EventRefused, RelayBlock, Sink, SinkLease, SinkPaused, SinkUnavailable
from ops.sinks.routed import routing_of
from penstock import database, subscriptions
from penstock.database import call
from penstock.errors import (
    ConfigurationError,
    DatabaseUnavailable,
    InvalidArgument,
    PenstockError,
    StaleReceipt,
    error_text,
)
from penstock.publishing.rows import MAX_ATTEMPTS
from penstock.subscriptions import queue
from penstock.subscriptions.queue import Delivery, Receipt
from penstock.topics import names

log = logging.getLogger(__name__)

NONE, KEY = "none", "key"
#: After so many failures in a row, of whichever events, the sink is taken for away.
AWAY_AFTER = 5
_RECONNECT_SECONDS = 2.0
_STOP_SECONDS = 10.0
_WAKE_SECONDS = 0.2
_REST_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class QueueRelayOptions:
    """How a relay of a queue works; times in seconds.  Without options as the Go outbox did.

    ``longest_poll_seconds``: while nothing comes, each pause is twice as long, up to this; 0: all
    are the same.
    """

    order: str = NONE
    batch: int = 100
    poll_seconds: float = 2.0
    longest_poll_seconds: float = 0.0
    send_seconds: float = 5.0
    mark_seconds: float = 10.0
    lease_seconds: float = 60.0
    attempts: int = 10
    counts_absence: bool = False
    first_backoff_seconds: float = 2.0
    longest_backoff_seconds: float = 300.0
    at_once: int = 8

    def __post_init__(self) -> None:
        """InvalidArgument for what no relay can be."""
        if self.order not in {NONE, KEY}:
            raise InvalidArgument(f"a relay has no order {self.order!r}", hint="use none or key")
        for name in ("batch", "attempts", "at_once"):
            if getattr(self, name) < 1:
                raise InvalidArgument(
                    f"{name} of a relay is {getattr(self, name)}", hint="1 at least"
                )
        if not self.lease_seconds > 0 or not self.send_seconds > 0:
            raise InvalidArgument("a lease and a time limit of a relay are longer than 0 seconds")

    def settings(self) -> dict[str, float | str]:
        """What the queue itself has to know."""
        return {
            "visibility_seconds": self.lease_seconds,
            "max_deliveries": self.attempts,
            "max_failures": self.attempts,
            "first_backoff_seconds": self.first_backoff_seconds,
            "longest_backoff_seconds": self.longest_backoff_seconds,
            "order": self.order,
        }


@dataclass(slots=True)
class QueueRelayResult:
    """What a relay has done.  ``stale``: marks that came too late and changed nothing."""

    events: int = 0
    failures: int = 0
    dead_letters: int = 0
    left_out: int = 0
    stale: int = 0
    put_back: int = 0
    left_behind: int = 0
    drained: bool = False
    last_error: str = ""


class QueueRelay:
    """Relays a queue until it is told to stop.  The caller opens and closes the sink."""

    def __init__(
        self,
        url: str | None,
        subscription: str,
        sink: Sink,
        options: QueueRelayOptions | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not getattr(sink, "any_order", False):
            raise ConfigurationError(
                f"a {sink.name} sink takes the events of a partition in their order only",
                hint="leave --order out, and relay a stream; webhooks, RabbitMQ, SQS and SNS take "
                "events in any order",
            )
        self.options = options or QueueRelayOptions()
        self.result = QueueRelayResult()
        self._url = url
        self._subscription = subscription
        self.sink = sink
        self._routing = routing_of(sink)
        self._clock = clock
        pacing = self._routing.pacing
        self._pace = RelayPace(pacing, clock)
        self._breaker = Breaker(replace(pacing, breaker=pacing.breaker or AWAY_AFTER), clock)
        self._sender = QueueSender(
            sink, at_once=self.options.at_once, seconds=self.options.send_seconds, clock=clock
        )
        #: What was received, is in hand and not begun.
        self._ready: deque[Delivery] = deque()
        #: What was received and is not settled, and until when its lease lasts at least.
        self._in_hand: dict[Receipt, float] = {}
        #: What is finished and not marked yet, because the database was away.
        self._unmarked: list[Sending] = []
        self._known_as: dict[str, str] = {}
        self._look_at = self._extended_at = clock()
        self._pause = self.options.poll_seconds
        #: Whether it was connected, and its sink there, since it runs.
        self._has_begun = False
        #: Whether the last look has found nothing, and whether something was sent since: by key,
        #: other events may have waited for that.
        self._is_idle = self._has_sent = False
        #: Whether the sink has taken something since the start, or since it was away last.
        self._gets_through = False

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set.  What passes on the database does not end it."""
        try:
            while not stop.is_set():
                try:
                    self._session(stop)
                except Exception as error:
                    if not self._goes_on_after(error):
                        raise
                    log.warning("the relay connects again: %s", error_text(error))
                    stop.wait(_RECONNECT_SECONDS)
        finally:
            self._sender.close()

    def run_for(self, max_seconds: float) -> QueueRelayResult:
        """What is there, for at most about so long.  What waits for its next attempt is left."""
        until = self._clock() + max_seconds
        try:
            with closing(self._connect()) as connection:
                self.prepare(connection)
                while self._clock() < until:
                    self.turn(connection)
                    is_over = self._is_idle and not self._has_sent
                    if not self._in_hand and (is_over or self._breaker.state == OPEN):
                        break
                    if not is_over:
                        self._look_at = self._clock()
                    self._sender.wait(_WAKE_SECONDS if self._in_hand else _REST_SECONDS)
                self.finish(connection)
                left = queue.statistics(connection, self._subscription)
                self.result.drained = left.size == 0
        finally:
            self._sender.close()
        return self.result

    def close(self) -> None:
        """Close the sink."""
        self.sink.close()

    def prepare(self, connection: database.Connection) -> None:
        """Give the queue the settings of this relay, and prove that the sink takes its topics."""
        known = queue.describe(connection, self._subscription)
        wanted = self.options.settings()
        changed = {name: value for name, value in wanted.items() if getattr(known, name) != value}
        if changed:
            queue.configure(connection, self._subscription, **changed)
        found = queue.pointers(connection, self._subscription)
        for topic in sorted({each.topic for each in found}):
            self.sink.preflight(topic, sum(each.topic == topic for each in found))

    def turn(self, connection: database.Connection) -> int:
        """Mark what is finished, look for more, and send.  Returns how many are finished."""
        done = self._mark(connection)
        self._extend(connection)
        if self._in_hand and self._is_away():
            self._put_back(connection)
        self._look(connection)
        self._begin(connection)
        return done

    def finish(self, connection: database.Connection) -> None:
        """Mark what is being sent, give back what was not begun, and begin nothing more."""
        self._put_back(connection)
        until = self._clock() + _STOP_SECONDS
        while self._sender.busy and self._clock() < until:
            self._sender.wait(_WAKE_SECONDS)
            self._mark(connection)
        self._mark(connection)

    def gauges(self) -> dict[str, float]:
        """What the relay has in hand, whether its sink is away, and calls that did not end."""
        return {
            "relay_in_hand": float(len(self._in_hand)),
            "relay_breaker_open": float(self._is_away()),
            "relay_calls_left_behind": float(self._sender.left_behind),
        }

    def _connect(self) -> database.Connection:
        milliseconds = int(self.options.mark_seconds * 1000)
        return database.connect(
            self._url, application_name="penstock-relay", statement_timeout_ms=milliseconds
        )

    def _session(self, stop: threading.Event) -> None:
        with closing(self._connect()) as connection:
            self.prepare(connection)
            self._has_begun = True
            while not stop.is_set():
                if not self.turn(connection):
                    rest = max(_REST_SECONDS, self._look_at - self._clock())
                    self._sender.wait(min(_WAKE_SECONDS, rest))
            self.finish(connection)

    def _goes_on_after(self, error: Exception) -> bool:
        """Whether the relay goes on after an error, on another connection.

        A database that cannot be reached at the start may be a wrong address, so that is an error,
        and so is a sink that is away then.  Later neither is.
        """
        if self._has_begun:
            return isinstance(error, SinkUnavailable) or database.is_passing(error)
        away = isinstance(error, DatabaseUnavailable) or database.is_unavailable(error)
        return not away and database.is_passing(error)

    def _is_away(self) -> bool:
        return self._breaker.state != CLOSED and not self.options.counts_absence

    def _look(self, connection: database.Connection) -> None:
        """Receive what there is room for: at once after a full batch, else after the pause."""
        room = self.options.batch - len(self._in_hand)
        if self._breaker.state != CLOSED:
            room = int(self._breaker.lets_through(len(self._in_hand)))
        if room < 1 or self._look_at > self._clock() or self._pace.wait_seconds():
            return
        until = self._clock() + self.options.lease_seconds  # it begins later, if anything
        found = queue.receive(
            connection,
            self._subscription,
            min(room, 1000),
            visibility_seconds=self.options.lease_seconds,
        )
        self._ready.extend(found)
        self._in_hand |= {each.receipt: until for each in found}
        options = self.options
        self._is_idle, self._has_sent = not found, False
        if found:
            self._pause = options.poll_seconds
        if len(found) < room:
            self._look_at = self._clock() + self._pause
            if not found:
                longest = max(options.longest_poll_seconds, options.poll_seconds)
                self._pause = min(2 * self._pause, longest)

    def _begin(self, connection: database.Connection) -> None:
        """Send what is ready.  Each stays the first of it until it is settled or the sender's.

        So when the database goes away meanwhile, it is not forgotten.
        """
        while self._ready and self._sender.free > 0 and not self._pace.wait_seconds():
            first = self._ready[0]
            if self._in_hand.get(first.receipt, 0.0) > self._clock():
                self._begin_one(connection, first)
            else:  # others may have had it, and what comes after it in its key
                self._release(connection, [first])
            self._ready.popleft()

    def _begin_one(self, connection: database.Connection, delivery: Delivery) -> None:
        event = delivery.event
        if not self._routing.takes(event):
            self.result.left_out += self._acknowledge(connection, [delivery])
            return
        block = self._block(connection, delivery)
        if reason := misfits(connection, event.topic, block, self._routing).get(event.sequence):
            self._bury(connection, delivery, reason)
            return
        self._pace.spend([event])
        self._sender.send(delivery, block, self._served(block))

    def _mark(self, connection: database.Connection) -> int:
        """Record what has become of events.  What could not be recorded is tried again."""
        self._unmarked += self._sender.results()
        self.result.left_behind = self._sender.left_behind
        marked = len(self._unmarked)
        sent = [each for each in self._unmarked if each.error is None]
        if sent:
            self._breaker.succeeded()
            self._gets_through = True
            self.result.events += self._acknowledge(connection, [each.delivery for each in sent])
            self._unmarked = [each for each in self._unmarked if each.error is not None]
            self._has_sent = True
        while self._unmarked:
            self._failed(connection, self._unmarked[0])
            del self._unmarked[0]
        return marked

    def _failed(self, connection: database.Connection, one: Sending) -> None:
        error, delivery = too_late(one, self.options.send_seconds), one.delivery
        assert error is not None
        text = _said(error)
        self.result.last_error = text
        if isinstance(error, EventRefused):
            self._breaker.succeeded()  # it has answered
            self._bury(connection, delivery, error.reason)
            return
        self.result.failures += 1
        log.warning("%s was not sent: %s", delivery.event.event_id, text)
        self._breaker.failed()
        if isinstance(error, SinkPaused):
            subscriptions.pause(connection, self._subscription, text[:1000])
        is_last = delivery.failures + 1 >= self._most_attempts(delivery)
        self._gets_through = self._gets_through and not self._is_away()
        is_to_blame = self._gets_through or self.options.counts_absence
        if self._is_away() or (is_last and not is_to_blame):
            self._release(connection, [delivery])
        elif is_last:
            self._bury(connection, delivery, text)
        else:
            delay = error.retry_after if isinstance(error, SinkUnavailable) else None
            self._settled(
                queue.reject(
                    connection,
                    self._subscription,
                    [delivery.receipt],
                    reason=text,
                    delay_seconds=delay,
                    partly=True,
                ),
                [delivery],
            )

    def _most_attempts(self, delivery: Delivery) -> int:
        """The relay's limit or that of the event's publisher, whichever is lower."""
        own = delivery.event.headers.get(MAX_ATTEMPTS)
        return min(self.options.attempts, own) if type(own) is int else self.options.attempts

    def _acknowledge(self, connection: database.Connection, done: list[Delivery]) -> int:
        receipts = [each.receipt for each in done]
        return self._settled(
            queue.acknowledge(connection, self._subscription, receipts, partly=True), done
        )

    def _bury(self, connection: database.Connection, delivery: Delivery, reason: str) -> None:
        log.error("%s is a dead letter: %s", delivery.event.event_id, reason)
        given = queue.binds_of([delivery.receipt])
        rows = call(
            connection,
            "bury_claims",
            subscription=self._subscription,
            **given,
            reason=reason,
            partly=True,
        )
        self.result.dead_letters += self._settled([bool(each) for each in rows[0][0]], [delivery])

    def _release(self, connection: database.Connection, given: list[Delivery]) -> None:
        receipts = [each.receipt for each in given]
        put_back = queue.release(connection, self._subscription, receipts, partly=True)
        self.result.put_back += self._settled(put_back, given)

    def _put_back(self, connection: database.Connection) -> None:
        """Give back what was not begun: its hand-out does not count."""
        if self._ready:
            self._release(connection, list(self._ready))
            self._ready.clear()

    def _settled(self, good: list[bool], deliveries: list[Delivery]) -> int:
        """Forget what was marked.  A mark that was too late has changed nothing."""
        for each in deliveries:
            self._in_hand.pop(each.receipt, None)
        self.result.stale += len(good) - sum(good)
        return sum(good)

    def _extend(self, connection: database.Connection) -> None:
        """What is still in hand after a third of the lease gets a whole one again."""
        if self._clock() - self._extended_at < self.options.lease_seconds / 3:
            return
        now = self._clock()
        if not self._extended(connection, list(self._in_hand)):
            for receipt in list(self._in_hand):  # one of them is lost: the others are not
                if not self._extended(connection, [receipt]):
                    self._forget(receipt)
        self._extended_at = now

    def _extended(self, connection: database.Connection, receipts: list[Receipt]) -> bool:
        seconds = self.options.lease_seconds
        until = self._clock() + seconds
        try:
            queue.extend(connection, self._subscription, receipts, seconds, keeps_receipts=True)
        except StaleReceipt as error:  # somebody else has it
            log.warning("a lease was lost: %s", error_text(error))
            return False
        self._in_hand |= dict.fromkeys(receipts, until)
        return True

    def _forget(self, receipt: Receipt) -> None:
        """Not to send what somebody else has.  If it is being sent, its mark changes nothing."""
        del self._in_hand[receipt]
        self._ready = deque(each for each in self._ready if each.receipt != receipt)

    def _block(self, connection: database.Connection, delivery: Delivery) -> RelayBlock:
        event = delivery.event
        if event.topic not in self._known_as:
            found = names.describe_topic(connection, event.topic)
            self._known_as[event.topic] = found.known_as
        return RelayBlock(
            relay=self._subscription,
            topic=event.topic,
            known_as=self._known_as[event.topic],
            partition=event.partition,
            history=event.history,
            lease_epoch=delivery.receipt.claim,
            first_sequence=event.sequence,
            last_sequence=event.sequence,
            reopened=delivery.deliveries > 1,
            events=(event,),
        )

    def _served(self, block: RelayBlock) -> SinkLease:
        return SinkLease(
            relay=block.relay,
            topic=block.topic,
            known_as=block.known_as,
            partition=block.partition,
            history=block.history,
            lease_epoch=block.lease_epoch,
        )


def _said(error: BaseException) -> str:
    """What is kept of an error.  Errors of libraries may say secrets, so only their kind is."""
    return error_text(error) if isinstance(error, PenstockError) else type(error).__name__
