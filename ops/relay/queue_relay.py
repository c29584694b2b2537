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
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ops.relay.misfits import misfits
from ops.relay.pace import CLOSED, OPEN, Breaker, RelayPace
from ops.relay.queue_options import QueueRelayOptions
from ops.relay.queue_sender import QueueSender, Sending
from ops.relay.results import QueueRelayResult
from ops.relay.status import ToldBreaker
from ops.sinks.base import EventRefused, RelayBlock, Sink, SinkLease, SinkPaused, SinkUnavailable
from ops.sinks.routed import routing_of
from ops.sinks.routing import KEY
from penstock import database, subscriptions
from penstock.database import call, config
from penstock.errors import (
    ConfigurationError,
    DatabaseUnavailable,
    PenstockError,
    StaleReceipt,
    error_text,
)
from penstock.leases.loop import LoopSetting, Rounds
from penstock.publishing.rows import MAX_ATTEMPTS
from penstock.subscriptions import queue
from penstock.subscriptions.queue import Delivery, Receipt
from penstock.topics import names

log = logging.getLogger(__name__)

#: After so many failures in a row, of whichever events, the sink is taken for away.
AWAY_AFTER = 5
_STOP_SECONDS = 10.0
_WAKE_SECONDS = 0.2
_REST_SECONDS = 0.02
#: Who gets through says so again after this: another may have found the sink away, and died.
_TELL_SECONDS = 30.0


class _Marks(LoopSetting):
    """Marks have a time limit of their own: that of sending does not end them."""

    def __init__(self, url: str | None, subscription: str, seconds: float) -> None:
        super().__init__(url or config.database_url(), subscription, f"the relay {subscription}")
        self._seconds = seconds

    def longest_answer(self) -> float:
        """For how long a mark may take."""
        return self._seconds


class QueueRelay(Rounds):
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
                hint="leave order out, and relay a stream; webhooks, RabbitMQ, SQS and SNS take "
                "events in any order",
            )
        self.options = options or QueueRelayOptions()
        marks = _Marks(url, subscription, self.options.mark_seconds)
        super().__init__(marks, idle_seconds=_WAKE_SECONDS)
        self.sink = sink
        self._routing = routing_of(sink)
        self._clock = clock
        pacing = self._routing.pacing
        self._pace = RelayPace(pacing, clock)
        self._breaker = Breaker(replace(pacing, breaker=pacing.breaker or AWAY_AFTER), clock)
        #: The first process that the sink takes something of tells it for all others.
        self._told = ToldBreaker(self._breaker, sink.name, subscription, told=None)
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
        self._look_at = self._extended_at = self._told_at = clock()
        self._pause = self.options.poll_seconds
        #: Whether it was connected, and its sink there, since it runs.
        self._has_begun = False
        #: Whether the last look has found nothing, and whether events of keys were finished since:
        #: others may have waited for them.
        self._is_idle = self._is_next_free = False
        #: Whether the sink has taken something since the start, or since it was away last.
        self._gets_through = False
        #: Whether the sink has taken or refused something since the start.
        self._has_answered = False
        self._put_back_events = 0
        self._drained = False

    @property
    def result(self) -> QueueRelayResult:
        """What it has done."""
        stats = self.stats
        return QueueRelayResult(
            stats.events,
            stats.batches,
            stats.dead_letters,
            stats.failures,
            self._drained,
            stats.last_error,
            stats.filtered,
            stale=stats.stale_commits,
            put_back=self._put_back_events,
            left_behind=self._sender.left_behind,
            is_away=self._breaker.state != CLOSED
            or bool(stats.failures and not self._has_answered),
        )

    def run_for(self, max_seconds: float) -> QueueRelayResult:
        """What is there, for at most about so long.  What waits for its next attempt is left."""
        until = self._clock() + max_seconds
        try:
            with self.open() as connection:
                self.prepare(connection)
                while self._clock() < until:
                    self.turn(connection)
                    is_over = self._is_idle and not self._is_next_free
                    if not self._in_hand and (is_over or self._breaker.state == OPEN):
                        break
                    if not is_over:
                        self._look_at = self._clock()
                    self._sender.wait(_WAKE_SECONDS if self._in_hand else _REST_SECONDS)
                self.finish(connection)
                self._drained = queue.statistics(connection, self._subscription).size == 0
        finally:
            self._sender.close()
        return self.result

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

    def round(self, connection: database.Connection) -> int:
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
        return super().gauges() | {
            "relay_in_hand": float(len(self._in_hand)),
            "relay_breaker_open": float(self._breaker.state != CLOSED),
            "relay_calls_left_behind": float(self._sender.left_behind),
        }

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """What is finished ends the relay's rest."""
        with super().at_work():
            self._sender.wake = self._wake.set
            try:
                yield
            finally:
                self._sender.close()

    @contextmanager
    def session(self, connection: database.Connection) -> Iterator[None]:
        """What is in hand stays in hand when the connection is lost: receipts are good on any."""
        self.prepare(connection)
        self._has_begun = True
        yield
        self.finish(connection)

    def heard(self, notices: Sequence[str]) -> None:
        """There are new events: look at once."""
        if notices:
            self._look_at, self._pause = self._clock(), self.options.poll_seconds

    def longest_rest(self) -> float:
        """Until the next look, or until a call has taken too long."""
        now = self._clock()
        limit = self._sender.next_limit()
        due = [now + self._idle_seconds, *([] if limit is None else [limit])]
        if self._room() > 0:
            due.append(self._look_at)
        return max(_REST_SECONDS, min(due) - now)

    def goes_on_after(self, error: Exception) -> bool:
        """Whether the relay goes on after an error, on another connection.

        A database that cannot be reached at the start may be a wrong address, so that is an error,
        and so is a sink that is away then.  Later neither is.
        """
        if self._has_begun:
            return isinstance(error, SinkUnavailable) or super().goes_on_after(error)
        away = isinstance(error, DatabaseUnavailable) or database.is_unavailable(error)
        return not away and super().goes_on_after(error)

    def _is_away(self) -> bool:
        """Whether the sink is away, and no event is to blame for that."""
        return self._breaker.state != CLOSED and not self.options.counts_absence

    def _room(self) -> int:
        """How many more events the relay may receive now."""
        if self._breaker.state != CLOSED:
            return int(self._breaker.lets_through(len(self._in_hand)))
        return self.options.batch - len(self._in_hand)

    def _look(self, connection: database.Connection) -> None:
        """Receive what there is room for: at once after a full batch, else after the pause."""
        room = self._room()
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
        self._is_idle, self._is_next_free = not found, False
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
            self.stats.filtered += self._acknowledge(connection, [delivery])
            return
        block = self._block(connection, delivery)
        if reason := misfits(connection, event.topic, block, self._routing).get(event.sequence):
            self._bury(connection, delivery, reason)
            return
        self._pace.spend([event])
        self._sender.send(delivery, block, self._served(block))

    def _mark(self, connection: database.Connection) -> int:
        """Record what has become of events.  What could not be recorded is tried again."""
        for one in self._sender.results():
            self._note(one)
            self._unmarked.append(one)
        marked = len(self._unmarked)
        sent = [each for each in self._unmarked if each.error is None]
        if sent:
            done = self._acknowledge(connection, [each.item for each in sent])
            self.stats.events += done
            self.stats.batches += done
            self._unmarked = [each for each in self._unmarked if each.error is not None]
        while self._unmarked:
            self._failed(connection, self._unmarked[0])
            del self._unmarked[0]
        if sent and self._clock() - self._told_at >= _TELL_SECONDS:
            self._told_at = self._clock()
            self._told.forget()
        if self._has_answered or self._breaker.state != CLOSED:
            self._told.tell(connection, self.stats.last_error)
        return marked

    def _note(self, one: Sending) -> None:
        """What an answer says of the sink: once, however often its mark is tried."""
        error = one.error
        if error is None:
            self._breaker.succeeded()
            self._gets_through = self._has_answered = True
            return
        self.stats.last_error = _said(error)
        if isinstance(error, EventRefused):
            self._breaker.succeeded()
            self._has_answered = True
            return
        self.stats.failures += 1
        log.warning("%s was not sent: %s", one.item.event.event_id, self.stats.last_error)
        self._breaker.failed()
        self._gets_through = self._gets_through and not self._is_away()

    def _failed(self, connection: database.Connection, one: Sending) -> None:
        error, delivery = one.error, one.item
        assert error is not None
        text = _said(error)
        if isinstance(error, EventRefused):
            self._bury(connection, delivery, error.reason)
            return
        if isinstance(error, SinkPaused):
            subscriptions.pause(connection, self._subscription, text[:1000])
        is_last = delivery.failures + 1 >= self._most_attempts(delivery)
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
        marked = queue.acknowledge(connection, self._subscription, receipts, partly=True)
        self._free_next()
        return self._settled(marked, done)

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
        self._free_next()
        self.stats.dead_letters += self._settled([bool(each) for each in rows[0][0]], [delivery])

    def _free_next(self) -> None:
        """What waited for a finished event of its key can be received at once."""
        if self.options.order == KEY:
            self._look_at, self._is_next_free = self._clock(), True

    def _release(self, connection: database.Connection, given: list[Delivery]) -> None:
        receipts = [each.receipt for each in given]
        put_back = queue.release(connection, self._subscription, receipts, partly=True)
        self._put_back_events += self._settled(put_back, given)

    def _put_back(self, connection: database.Connection) -> None:
        """Give back what was not begun: its hand-out does not count."""
        if self._ready:
            self._release(connection, list(self._ready))
            self._ready.clear()

    def _settled(self, good: list[bool], deliveries: list[Delivery]) -> int:
        """Forget what was marked.  A mark that was too late has changed nothing."""
        for each in deliveries:
            self._in_hand.pop(each.receipt, None)
        self.stats.stale_commits += len(good) - sum(good)
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
