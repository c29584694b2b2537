"""Canary: one event goes the whole way, published, sequenced, consumed, and each part is measured.

It has a topic of its own, so it disturbs nobody.  It uses what applications use, so it finds what
they would find: missing rights, a sequencer that stands still, leases that nobody gets.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock import database
from penstock.publishing.publish import publish
from penstock.records import Event, as_time
from penstock.subscriptions import stream
from penstock.subscriptions.stream import Membership
from penstock.topics import names
from penstock.upkeep.sequencing import sequence

SUBSCRIPTION = "canary"
_PAUSE_SECONDS = 0.2
#: How long the last part may take when the canary has sequenced by itself.
_LAST_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Canary:
    """One run.  The times are seconds; ``sequenced`` is by the clock of the database.

    ``problem`` is empty when the event was consumed within the limit.
    """

    topic: str
    event_id: uuid.UUID
    published: float
    sequenced: float | None
    consumed: float | None
    problem: str = ""


@dataclass(slots=True)
class _CanaryRun:
    """A member of the canary's subscription that waits for one event."""

    connection: Any
    member: Membership
    clock: Callable[[], float]
    pause: Callable[[float], object]

    def await_event(self, event_id: uuid.UUID, until: float) -> Event | None:
        """The event, read and committed; None when it has not come until then."""
        while True:
            found = self._read(event_id)
            if found is not None or self.clock() >= until:
                return found
            self.pause(_PAUSE_SECONDS)

    def _read(self, event_id: uuid.UUID) -> Event | None:
        """Read what there is: earlier runs may have left events."""
        leases = stream.check_in(self.connection, self.member)
        found = None
        for lease, events in stream.poll(self.connection, self.member, leases) if leases else []:
            stream.commit(self.connection, self.member, [(lease, events[-1].sequence)])
            found = next((each for each in events if each.event_id == event_id), found)
        return found


def fly(
    url: str,
    topic: str,
    *,
    limit_seconds: float,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = time.sleep,
) -> Canary:
    """Send one event through the topic, which is created if it is not there.

    When nobody sequences it within the limit, the canary does so itself, once.  Then its report
    says whether the rest of the way is free.
    """
    with database.connect(url, application_name="penstock canary") as connection:
        names.create_topic(connection, topic, create_namespaces=True, if_not_exists=True)
        stream.subscribe(connection, SUBSCRIPTION, [topic])
        member = stream.join(connection, SUBSCRIPTION, f"canary-{uuid.uuid4().hex[:12]}")
        try:
            canary_run = _CanaryRun(connection, member, clock, pause)
            return _run_canary(canary_run, url, topic, limit_seconds)
        finally:
            stream.leave(connection, member)


def _run_canary(canary_run: _CanaryRun, url: str, topic: str, limit: float) -> Canary:
    clock, started = canary_run.clock, canary_run.clock()
    event_id = publish(canary_run.connection, topic, b"canary", type="canary")
    published = clock() - started
    problem = ""
    event = canary_run.await_event(event_id, started + limit)
    if event is None:
        nobody = sequence(url).events > 0
        problem = f"{'nobody sequenced it' if nobody else 'it was not consumed'} within {limit:g} s"
        event = canary_run.await_event(event_id, clock() + _LAST_SECONDS)
    if event is None:
        problem = f"it was not consumed within {limit:g} s, also after it was sequenced"
        return Canary(topic, event_id, published, None, None, problem)
    sequenced = as_time(event.sequenced_at) - as_time(event.created_at)
    return Canary(topic, event_id, published, sequenced.total_seconds(), clock() - started, problem)
