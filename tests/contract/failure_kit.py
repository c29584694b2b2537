"""What the tests of failures share: a consumer that follows penstock.dead_letters step by step.

It is one thread without pauses, so that a test says what happens when; a handler kills it by
raising Killed, after which it makes no further call, as a process that is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.publishing.publish import publish_batch
from penstock.records import Event, Lease, Message
from penstock.subscriptions import dead_letters, policies, stream
from penstock.subscriptions.stream import Membership
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import end_lease
from tests.kit.log import drain, topic
from tests.kit.stream import STREAM, SUBSCRIPTION

#: How many events a consumer has in flight.
WINDOW = 5


class Killed(Exception):
    """The process of a consumer ends here."""


@dataclass
class Handled:
    """What a handler was given, and what it did; ``bad`` says what it does with an event."""

    bad: Callable[[Event], object] = lambda event: None
    given: Counter[str] = field(default_factory=Counter)
    done: list[str] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        """Handle one event."""
        name = event.payload.decode()
        self.given[name] += 1
        self.bad(event)
        self.done.append(name)


def keyed(db: ContractDatabase, names: str) -> Any:
    """A stream of one partition: events called a1, b1, -1, ... whose letter is the key, - none."""
    own = db.connect()
    topic(own, 1, STREAM)
    put(own, names)
    stream.subscribe(own, SUBSCRIPTION, [STREAM])
    return own


def put(own: Any, names: str) -> None:
    """Further events."""
    messages = [
        Message(STREAM, name.encode(), key=None if name[0] == "-" else name[0], partition=0)
        for name in names.split()
    ]
    publish_batch(own, messages)
    drain(own)


def retry(own: Any, **settings: Any) -> None:
    """The retry policy of the subscription."""
    policies.set_policy(own, "retry", settings, scope="subscription", name=SUBSCRIPTION)


class Steps:
    """A consumer with the only partition."""

    def __init__(self, db: ContractDatabase, own: Any, consumer: str, handle: Handled) -> None:
        self.own = own
        self.handle = handle
        self.member: Membership = stream.join(own, SUBSCRIPTION, consumer)
        found = stream.check_in(own, self.member)
        assert found, "no lease"
        self.lease: Lease = found[0]
        self.policy = policies.subscription_policy(own, SUBSCRIPTION)
        self._db = db
        self._keys = self._parked_keys()
        self._careful_until = self._suspected()

    def run(self) -> None:
        """Everything that is there."""
        while self.redriven() or self.batch():
            pass

    def leave(self) -> None:
        """In good order."""
        stream.leave(self.own, self.member)

    def die(self) -> None:
        """As if its lease time had passed."""
        end_lease(self._db, self.member.consumer)

    def batch(self) -> int:
        """One poll.  Returns how many events were passed."""
        polled = stream.poll(self.own, self.member, [self.lease], WINDOW)
        events = polled[0][1] if polled else []
        careful = bool(events) and events[0].sequence <= self._careful_until
        if careful:
            self._carefully(events[0])
            return 1
        done: list[Event] = []
        for event in events:
            try:
                if not self._waits(event):
                    self.handle(event)
            except Killed:
                raise
            except Exception as error:
                self._commit(done)
                self._careful_until = event.sequence
                self._carefully(event, uncounted=1, reason=str(error))
                return len(done) + 1
            done.append(event)
        self._commit(done)
        return len(done)

    def redriven(self) -> int:
        """Letters that are handed out again.  Returns how many."""
        letters = dead_letters.poll_redriven(self.own, self.member, [self.lease])
        for letter in letters:
            try:
                self.handle(letter.event)
            except Killed:
                raise
            except Exception as error:
                dead_letters.fail_redriven(self.own, self.member, letter, str(error))
            else:
                dead_letters.finish_redriven(self.own, self.member, letter)
        if letters:
            self._keys = self._parked_keys()
        return len(letters)

    def _carefully(self, event: Event, uncounted: int = 0, reason: str = "") -> None:
        if self._waits(event):
            self._commit([event])
            return
        reason = reason or "its consumer died"
        while True:
            attempt = dead_letters.begin_attempt(
                self.own,
                self.member,
                self.lease,
                event.sequence,
                uncounted=uncounted,
                reason=reason,
            )
            if attempt > self.policy.max_attempts:
                self._give_up(event, reason, attempt - 1)
                return
            try:
                self.handle(event)
            except Killed:
                raise
            except Exception as error:
                reason = str(error)
                continue
            self._commit([event])
            return

    def _give_up(self, event: Event, reason: str, attempts: int) -> None:
        park = self.policy.exhausted == "park_key"
        dead_letters.give_up(
            self.own, self.member, self.lease, event.sequence, reason, attempts=attempts, park=park
        )
        self.lease = replace(self.lease, position=event.sequence)
        self._keys = self._parked_keys()

    def _commit(self, events: Sequence[Event]) -> None:
        if not events:
            return
        waiting = [event.sequence for event in events if self._waits(event)]
        last, after = events[-1].sequence, events[0].sequence - 1
        if waiting:
            dead_letters.commit_parking(
                self.own, self.member, self.lease, last, after=after, sequences=waiting
            )
        else:
            stream.commit(self.own, self.member, [(self.lease, last)], after=[after])
        self.lease = replace(self.lease, position=last)

    def _waits(self, event: Event) -> bool:
        return event.key in self._keys

    def _parked_keys(self) -> frozenset[str]:
        found = dead_letters.parked_keys(self.own, SUBSCRIPTION, [self.lease])
        return found.get(self.lease.partition_id, frozenset())

    def _suspected(self) -> int:
        suspects = dead_letters.suspects(self.own, self.member, [self.lease])
        suspect = suspects.get(self.lease.partition_id)
        if suspect is None:
            return 0
        return max(suspect.sequence or 0, self.lease.position + WINDOW * suspect.died)


def survivors(db: ContractDatabase, own: Any, handle: Handled, most: int = 7) -> int:
    """One consumer after another, each until it is killed.  Returns how many were."""
    for number in range(most):
        consumer = Steps(db, own, f"c{number}", handle)
        try:
            consumer.run()
        except Killed:
            consumer.die()
        else:
            consumer.leave()
            return number
    return most
