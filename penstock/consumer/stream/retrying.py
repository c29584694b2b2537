"""Events that fail: each comes again after a pause, alone.  In the end it is a dead letter.

Then its key may be parked too.  The calls and their order are those of
:mod:`penstock.dead_letters`.  This module counts attempts.  The database counts them too, as soon
as the event is the next one after the position.  So the count survives the consumer, even when the
event crashes it.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.consumer.handlers.failures import HandlerTimedOut
from penstock.consumer.stream.committing import STANDS_SECONDS, bringing
from penstock.consumer.stream.in_flight import SUSPECT_GROUP, PartitionBuffer, Unit
from penstock.consumer.stream.reading import MAX_AHEAD
from penstock.database.backoff import doubled
from penstock.errors import NotRedriven, PenstockError, StaleLease, TooManyParked, error_text
from penstock.records import Event
from penstock.subscriptions import dead_letters, policies, stream
from penstock.subscriptions.policies import SubscriptionPolicy

if TYPE_CHECKING:
    from penstock.consumer.handlers.executors import Executor
    from penstock.consumer.handlers.options import ConsumerOptions
    from penstock.consumer.stream.assignment import PartitionBuffers
    from penstock.consumer.stream.committing import Committer
    from penstock.consumer.stream.delivery import Batch
    from penstock.consumer.stream.reading import Reader
    from penstock.database import Connection
    from penstock.leases.keeper import Keeper
    from penstock.leases.loop import LoopStats

log = logging.getLogger(__name__)

#: An event to be given up waits for the events before it, and looks again this often.
LOOK_SECONDS = 0.1
#: One group of suspects is under way at a time.  The others look again this often.
TURN_SECONDS = 0.01
#: The first and the longest pause after the database has failed a handler.
DISTURBED_SECONDS = (0.1, 1.0)


class Retrier:
    """Decides what to do when events fail, and knows which may have crashed an earlier consumer."""

    def __init__(
        self,
        *,
        assignment: PartitionBuffers,
        committer: Committer,
        reader: Reader,
        executor: Executor[Unit, Batch],
        keeper: Keeper,
        stats: LoopStats,
        options: ConsumerOptions,
    ) -> None:
        self.failures = EventFailures(options.rng or random.Random())
        #: The policy of the subscription, as last read.
        self.policy: SubscriptionPolicy | None = None
        self._assignment = assignment
        self._committer = committer
        self._reader = reader
        self._executor = executor
        self._keeper = keeper
        self._stats = stats
        self._options = options
        self._by_batch = options.batch_handler is not None
        self._clock = options.clock
        self._look_at = -math.inf
        self._to_report = ""

    def look_around(self, connection: Connection, new: Sequence[PartitionBuffer]) -> None:
        """Read what is known of new partitions and, at every heartbeat, what has changed.

        A unit keeps the version of the policy that was in force when it began.
        """
        if new:
            self._look_at_new(connection, new)
        now = self._clock()
        if self.policy is None or now >= self._look_at:
            member = self._keeper.member
            self.policy = policies.subscription_policy(connection, member.subscription)
            self._look_at = now + member.heartbeat_seconds
            self._look_for_redriven(connection)
            if self._keeper.in_database:
                self._report(connection)

    def _report(self, connection: Connection) -> None:
        """Report the last error, for `penstock status`."""
        if self._to_report:
            text, self._to_report = self._to_report, ""
            try:
                stream.report_error(connection, self._keeper.member, text)
            except PenstockError as error:
                log.warning("the last error could not be reported: %s", error)

    def _look_at_new(self, connection: Connection, new: Sequence[PartitionBuffer]) -> None:
        leases = [each.lease for each in new]
        suspects = self._keeper.suspects(connection, leases)
        parked = dead_letters.parked_keys(connection, self._keeper.member.subscription, leases)
        # How many events a consumer may have handed out and not committed.
        in_flight = MAX_AHEAD if self._options.by_key else self._options.most_uncommitted
        for each in new:
            lease = each.lease
            self.failures.forget_record(lease.partition_id)
            with self._assignment.lock:
                each.park(parked.get(lease.partition_id, frozenset()))
            suspect = suspects.get(lease.partition_id)
            if suspect is not None:
                each.careful_to = max(
                    lease.position + in_flight if suspect.died else 0, suspect.sequence or 0
                )
                each.alone_to = each.careful_to if self._options.by_key else _alone_to(suspect)
        self._reader.go_on()

    def prepared(self, connection: Connection, unit: Unit) -> bool:
        """Whether a unit that was begun may be handed out.  If not, it is back, or given up."""
        each = unit.work
        failing = self.failures.get((each.lease.partition_id, unit.first))
        if failing is None and unit.first > each.careful_to:
            return True
        if failing is not None and (failing.due > self._clock() or len(unit.events) > 1):
            with self._assignment.lock:  # it failed under an earlier lease
                each.alone.add(unit.first)
            self._put_back(unit, failing.due)
            return False
        unit.careful = unit.first <= each.careful_to
        # A crash by another event would be counted against it.
        if unit.careful and self._careful_under_way():
            self._put_back(unit, self._clock() + TURN_SECONDS)
            return False
        attempts = failing.attempts if failing is not None else 0
        return self._prepared_again(connection, unit, attempts)

    def _careful_under_way(self) -> bool:
        """Whether a handler works on an event that may have crashed an earlier consumer."""
        return any(unit.careful for unit in self._executor.under_way)

    def keep_what_is_done(self, connection: Connection) -> None:
        """Commit what is done, so that a crash does not count against events already handled."""
        self._committer.commit_done(connection)

    def _prepared_again(self, connection: Connection, unit: Unit, attempts: int) -> bool:
        """The same for an event that has failed, or that may have crashed a consumer."""
        assert unit.policy is not None
        each, event = unit.work, unit.events[0]
        now, most = self._clock(), unit.policy.max_attempts
        if unit.careful:
            self.keep_what_is_done(connection)
        try:
            if not self._is_next(connection, each, event.sequence):
                if attempts < most:
                    return True  # an event before it is not done: the database could not count it
                self._put_back(unit, now + LOOK_SECONDS)
                return False
            self._keeper.record_position(connection, each.lease, each.committed)
            if len(unit.events) > 1:
                self._begin_group(connection, unit)
                return True
            if attempts < most:
                attempts = self._count_attempt(connection, unit, attempts)
            if attempts < most:
                return True
            self._give_up(connection, unit, attempts)
        except TooManyParked as error:
            self._stats.failed(error)
            self._put_back(unit, now + STANDS_SECONDS)
        except StaleLease as error:
            self._committer.lease_lost(each, error)
        return False

    def _is_next(self, connection: Connection, buffer: PartitionBuffer, sequence: int) -> bool:
        """Whether the event is the next one after the position.  Commits what is done before it."""
        if buffer.done != sequence - 1:
            return False
        if buffer.committed < buffer.done:
            self._committer.commit(connection, [buffer])
        return buffer.committed == sequence - 1

    def _begin_group(self, connection: Connection, unit: Unit) -> None:
        """Record a group: if it crashes this consumer, the next one hands each event out alone."""
        sequence = unit.events[0].sequence
        dead_letters.begin_attempt(
            connection, self._keeper.member, unit.work.lease, sequence, uncounted=dead_letters.GROUP
        )

    def _count_attempt(self, connection: Connection, unit: Unit, attempts: int) -> int:
        """Count an attempt.  Returns how many there were before it."""
        lease, sequence = unit.work.lease, unit.events[0].sequence
        failing = self.failures.get((lease.partition_id, sequence))
        new = failing is None or not failing.on_record
        # For an event that is on record this adds nothing.
        again = dead_letters.GROUP if failing is not None and failing.spared else 0
        counted = dead_letters.begin_attempt(
            connection,
            self._keeper.member,
            lease,
            sequence,
            uncounted=again or (attempts if new else 0),
            reason=failing.reason if failing is not None else "",
        )
        self.failures.counted(lease.partition_id, sequence, counted - 1)
        return counted - 1

    def _give_up(self, connection: Connection, unit: Unit, attempts: int) -> None:
        each, event = unit.work, unit.events[0]
        failing = self.failures.get((each.lease.partition_id, event.sequence))
        assert unit.policy is not None
        brought = unit.events[:1] if event.sequence <= each.cold_to else []
        with bringing(connection, brought):
            parked = dead_letters.give_up(
                connection,
                self._keeper.member,
                each.lease,
                event.sequence,
                (failing.reason if failing is not None else "")
                or "its consumer ended while it was handled",
                attempts=attempts,
                park=unit.policy.exhausted == "park_key",
                brought=brought,
            )
        self._stats.dead_letters += 1
        log.error(
            "given up after %s attempts: %s partition %s sequence %s",
            attempts,
            event.topic,
            event.partition,
            event.sequence,
        )
        self._keeper.follow_position(connection, each.lease, event.sequence)
        self._assignment.end(unit, 1)
        each.handled -= 1
        self._committer.stands_at(each, event.sequence)
        self.failures.succeeded(each.lease.partition_id, unit.events[:1])
        self._reader.go_on()
        if parked:
            self._look_at_parked(connection, each)

    def _look_at_parked(self, connection: Connection, buffer: PartitionBuffer) -> None:
        found = dead_letters.parked_keys(
            connection, self._keeper.member.subscription, [buffer.lease]
        )
        with self._assignment.lock:
            buffer.park(found.get(buffer.lease.partition_id, frozenset()))

    def _put_back(self, unit: Unit, until: float) -> None:
        self._assignment.end(unit, 0, pause_until=until)

    def end(self, unit: Unit, pause_until: float | None = None) -> None:
        """Take back a unit: its done events stay done, the rest comes again."""
        each = unit.work
        self._assignment.end(unit, unit.done, pause_until=pause_until)
        if self.failures:
            self.failures.succeeded(each.lease.partition_id, unit.events[: unit.done])
        if each.done <= each.committed:
            self._committer.count_done(each)
        if self._reader.reads_ahead:
            self._reader.go_on()

    def unit_done(self, connection: Connection, unit: Unit) -> int:
        """The unit succeeded.  Returns how many events are done."""
        self.end(unit)
        if unit.narrowed:
            with self._assignment.lock:
                unit.work.widen(unit)
        if unit.careful:  # so that the next crash does not count against it as well
            self.keep_what_is_done(connection)
        return unit.done

    def put_down(self, unit: Unit) -> None:
        """The done events of the unit stay done, and the rest comes again.  That was no attempt."""
        if unit.letter is not None:
            unit.work.end_letter()
        else:
            self.end(unit)

    def unit_disturbed(self, unit: Unit, error: BaseException) -> int:
        """The database failed the handler: the events come again, and no attempt is counted."""
        self._note_failure(unit, error, ", which is no attempt")
        if unit.letter is not None:
            unit.work.end_letter()
            return 0
        first = unit.events[min(unit.done, len(unit.events) - 1)]
        self.failures.spare(unit.work.lease.partition_id, first.sequence)
        self.end(unit, pause_until=self._clock() + random.uniform(*DISTURBED_SECONDS))
        return unit.done

    def unit_failed(self, unit: Unit, error: BaseException) -> int:
        """Events of a unit failed.  Returns how many events made progress."""
        left = len(unit.events) - unit.done
        if left == 0:  # it raised after its commit
            self._note_failure(unit, error, "")
            self.end(unit)
        elif self._by_batch and left > 1:
            self._note_failure(unit, error, ", again with half as many")
            with self._assignment.lock:
                unit.work.narrow(unit)
            self.end(unit)
            return unit.done + 1
        else:
            self.postpone_unit(unit, error)
        return unit.done

    def postpone_unit(self, unit: Unit, error: BaseException) -> None:
        """The first event that is not done comes again after a pause, alone."""
        event, now = unit.events[unit.done], self._clock()
        assert unit.policy is not None
        failing = self.failures.failed(
            unit.work.lease.partition_id, event.sequence, error, unit.policy, now
        )
        last = failing.attempts >= unit.policy.max_attempts
        what_follows = "the last: it is given up" if last else f"again in {failing.due - now:.1f} s"
        self._note_failure(unit, error, f", attempt {failing.attempts}, {what_follows}")
        with self._assignment.lock:
            unit.work.alone.add(event.sequence)
        self.end(unit, pause_until=failing.due)

    def _note_failure(self, unit: Unit, error: BaseException, what_follows: str) -> None:
        self._stats.failed(error)
        self._stats.timeouts += isinstance(error, HandlerTimedOut)
        event = unit.events[min(unit.done, len(unit.events) - 1)]
        place = f"{event.topic} partition {event.partition} sequence {event.sequence}"
        # Not the error's text: that may contain a part of the payload.
        self._to_report = f"{type(error).__name__} at {place}{what_follows}"
        log.error(
            "handler failed at %s%s",
            place,
            what_follows,
            exc_info=error,
        )

    # -- dead letters that come again -----------------------------------------------------------

    def _look_for_redriven(self, connection: Connection) -> None:
        free = [
            (lease, each)
            for lease, each in self._assignment.ready()
            if not each.letters and not each.letter_under_way
        ]
        buffers = {lease.partition_id: each for lease, each in free}
        leases = [lease for lease, _ in free]
        if not leases:
            return
        for letter in dead_letters.poll_redriven(connection, self._keeper.member, leases):
            buffers[letter.lease.partition_id].letters.append(letter)

    def letter_ended(
        self, connection: Connection, unit: Unit, error: BaseException | None, *, finished: bool
    ) -> int:
        """A redriven dead letter came back from its handler."""
        each, letter = unit.work, unit.letter
        assert letter is not None
        each.end_letter()
        try:
            if error is None and not finished:
                dead_letters.finish_redriven(connection, self._keeper.member, letter)
            elif error is not None:
                self._note_failure(unit, error, ", a dead letter again")
                reason = error_text(error)
                dead_letters.fail_redriven(connection, self._keeper.member, letter, reason)
            self._look_at_parked(connection, each)
        except NotRedriven as gone:  # finished before it raised, dropped, or taken elsewhere
            log.warning("%s", gone)
        except StaleLease as stale:
            self._committer.lease_lost(each, stale)
            return 0
        if not each.letters:
            self._look_at = -math.inf  # there may be more
        self._stats.events += error is None
        return 1


@dataclass(slots=True)
class Failure:
    """An event that failed: how often in a row, when it is due again, and why it failed last."""

    attempts: int = 0
    due: float = 0.0
    reason: str = ""
    #: Whether the database counts it too, for the next holder of the partition.
    on_record: bool = False
    #: The recorded attempt did not count: the next one takes its place.
    spared: bool = False


class EventFailures(dict[tuple[int, int], Failure]):
    """The events that failed here, under the subscription's policy, by partition and sequence."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    def failed(
        self,
        partition_id: int,
        sequence: int,
        error: BaseException,
        policy: SubscriptionPolicy,
        now: float,
    ) -> Failure:
        """Count a failed attempt.  With no attempts left, the event is due now, to be given up."""
        found = self.setdefault((partition_id, sequence), Failure())
        found.attempts += 1
        found.reason = error_text(error)
        exhausted = found.attempts >= policy.max_attempts
        found.due = now if exhausted else now + _pause(found.attempts, policy, self._rng)
        return found

    def counted(self, partition_id: int, sequence: int, attempts: int) -> None:
        """The database has counted so many attempts before the one that begins."""
        found = self.setdefault((partition_id, sequence), Failure())
        found.attempts, found.on_record, found.spared = attempts, True, False

    def spare(self, partition_id: int, sequence: int) -> None:
        """The event came back, and not because it failed: that was no attempt."""
        found = self.get((partition_id, sequence))
        if found is not None:
            found.spared = found.on_record

    def forget_record(self, partition_id: int) -> None:
        """The lease was lost: another consumer may have counted more attempts in the database."""
        for (place, _), found in self.items():
            if place == partition_id:
                found.on_record = False

    def succeeded(self, partition_id: int, events: Iterable[Event]) -> None:
        """Forget the attempts of events that are done, or given up."""
        for event in events:
            self.pop((partition_id, event.sequence), None)


def _pause(attempt: int, policy: SubscriptionPolicy, rng: random.Random) -> float:
    """The pause, doubling from the first to the longest.  ``jitter`` is its random share."""
    first, longest = policy.first_backoff_seconds, policy.longest_backoff_seconds
    return doubled(attempt, first, longest) * (1.0 - policy.jitter * rng.random())


def _alone_to(suspect: dead_letters.Suspect) -> int:
    """In ordered work: the sequence up to which each suspect is handed out alone, and counted."""
    if suspect.sequence is None:
        return 0
    group_died = suspect.died and suspect.attempts == 0
    return suspect.sequence + (SUSPECT_GROUP - 1 if group_died else 0)
