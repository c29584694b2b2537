"""What is told of a queue's relay: what waits, what has failed and since when, and a dead sink."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from ops.relay.queue_relay import QueueRelay
from ops.relay.queue_status import queue_relay_status
from ops.sinks.base import EventRefused, SinkUnavailable
from penstock.errors import SubscriptionNotFound
from penstock.records import Event
from penstock.subscriptions import queue
from tests.contract.databases import ContractDatabase
from tests.contract.kit import count
from tests.contract.ops.test_queue_relay import QUICK, bad, relayed
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, filled, more, pass_time
from tests.kit.stream import Clock
from tests.kit.taking import Taking


@proves("a queue's relay loses and hides nothing")
def test_the_status_of_a_queue_says_what_waits_and_why(db: ContractDatabase) -> None:
    """Guards: failed_at; the newest of failures and dead letters."""

    def fails(event: Event, _: threading.Event) -> None:
        if event.payload == b"2":
            raise EventRefused(event.sequence, "too big")
        if event.payload == b"3":
            raise SinkUnavailable("it answered 500")

    with closing(db.connect()) as own:
        filled(own, 2)
        relayed(db, Taking(fails))
        first = queue_relay_status(own, QUEUE)
        assert (first.dead_letters, first.delayed, first.last_error) == (1, 0, "too big")
        more(own, 3, start=3)
        relayed(db, Taking(fails))
        more(own, 3, start=6)
        assert len(queue.receive(own, QUEUE, 2)) == 2
        now = queue_relay_status(own, QUEUE)
        assert (now.waiting, now.in_flight, now.delayed, now.dead_letters) == (1, 2, 1, 1)
        assert (now.last_error, now.breaker) == ("SinkUnavailable: it answered 500", "closed")
        assert first.failed_at is not None and now.failed_at is not None
        assert first.failed_at < now.failed_at
        assert now.oldest_seconds > 0
        with pytest.raises(SubscriptionNotFound):
            queue_relay_status(own, "nobody")


@proves("a queue's relay loses and hides nothing")
def test_a_sink_that_is_away_is_told_until_it_takes_something(db: ContractDatabase) -> None:
    """Also by another process than the one that met it.  Guards: ToldBreaker; `since` stays."""
    with closing(db.connect()) as own:
        filled(own, 7)
        sink = Taking()
        sink.is_away = True
        relayed(db, sink)
        away = queue_relay_status(own, QUEUE)
        assert (away.breaker, away.last_error) == ("open", "SinkUnavailable: nobody is there")
        relayed(db, sink)  # it stays as it was for who can send nothing yet
        pass_time(own, 400)
        relayed(db, sink)
        again = queue_relay_status(own, QUEUE)
        assert away.away_since is not None and again.away_since == away.away_since
        assert again.failed_at is not None and away.failed_at is not None
        assert again.failed_at > away.failed_at
        pass_time(own, 400)
        sink.is_away = False
        assert relayed(db, sink).events == 7
        back = queue_relay_status(own, QUEUE)
        assert (back.breaker, back.away_since, back.waiting) == ("closed", None, 0)
        assert count(db, "relay_breakers") == 0


@proves("a queue's relay loses and hides nothing")
def test_who_gets_through_says_so_again(db: ContractDatabase) -> None:
    """Another that found the sink away may be dead.  Guard: `forget` in _mark."""
    with closing(db.connect()) as own:
        filled(own, 1)
        clock = Clock()
        lives = QueueRelay(db.url, QUEUE, Taking(), QUICK, clock=clock)
        assert lives.run_for(20).events == 1
        more(own, 6, start=2)
        away = Taking()
        away.is_away = True
        assert relayed(db, away).is_away
        pass_time(own, 400)
        clock.now += 31
        assert lives.run_for(20).events == 7
        assert queue_relay_status(own, QUEUE).breaker == "closed"


@pytest.mark.parametrize("events", [1, 4])
def test_a_sink_that_takes_nothing_is_away_also_of_few_events(
    db: ContractDatabase, events: int
) -> None:
    """Fewer than open the breaker.  Guard: `_has_answered`."""
    with closing(db.connect()) as own:
        filled(own, events)
        sink = Taking()
        sink.is_away = True
        done = relayed(db, sink)
        assert (done.failures, done.is_away) == (events, True)
        assert not relayed(db, sink).is_away  # nothing was due, so nothing is known of it
        pass_time(own, 301)
        sink.is_away = False
        assert not relayed(db, sink).is_away


def test_an_event_that_fails_beside_others_says_nothing_of_the_sink(db: ContractDatabase) -> None:
    with closing(db.connect()) as own:
        filled(own, 3)
        done = relayed(db, bad(b"2"))
        assert (done.events, done.failures, done.is_away) == (2, 1, False)
