"""The relay of a queue: four states, attempts, time limits, leases, and no event with two holders.

O-T4 is here: what the seed has no test of.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ops.relay import sink_calls
from ops.relay.queue_options import QueueRelayOptions
from ops.relay.queue_relay import QueueRelay
from ops.relay.queue_status import RelayedEvent, relayed_events
from ops.relay.results import QueueRelayResult
from ops.sinks.base import EventRefused, SinkUnavailable
from ops.sinks.jsonl import JsonlSink
from ops.sinks.routing import KEY
from penstock.errors import ConfigurationError, InvalidArgument
from penstock.publishing.publish import publish_batch
from penstock.records import Event, Message
from penstock.subscriptions import dead_letters, queue
from tests.contract.databases import ContractDatabase
from tests.kit.log import drain
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, TOPIC, filled, more, pass_time
from tests.kit.taking import Taking

#: As fast as a test may be; the seed's times are asserted by themselves.  What has failed is due
#: when the test says so, however slow the machine is.
QUICK = QueueRelayOptions(poll_seconds=0.02, send_seconds=5, at_once=4, first_backoff_seconds=300)


@pytest.fixture
def own(db: ContractDatabase) -> Iterator[Any]:
    """A connection that commits by itself."""
    with closing(db.connect()) as opened:
        yield opened


def relayed(
    db: ContractDatabase, sink: Any, options: QueueRelayOptions = QUICK, **more: Any
) -> QueueRelayResult:
    """What one run has done with what is due now."""
    return QueueRelay(db.url, QUEUE, sink, options, **more).run_for(20)


def events(own: Any, **more: Any) -> list[RelayedEvent]:
    """The events of the first partition."""
    return relayed_events(own, QUEUE, TOPIC, 0, **more)


def states(own: Any) -> list[str]:
    """Their states."""
    return [each.state for each in events(own)]


def bad(*payloads: bytes) -> Taking:
    """A sink to which some events are poison: they do not get through."""

    def fails(event: Event, _: threading.Event) -> None:
        if event.payload in payloads:
            raise SinkUnavailable("it answered 500")

    return Taking(fails)


def _until(over: threading.Event) -> Taking:
    """A sink that takes nothing before this."""

    def waits(*_: Any) -> None:
        assert over.wait(60)

    return Taking(waits)


def test_the_defaults_are_those_of_the_seed() -> None:
    """O-F8, O-F9, O-F10, O-F12."""
    found = QueueRelayOptions()
    assert (found.poll_seconds, found.batch, found.send_seconds) == (2, 100, 5)
    assert (found.attempts, found.lease_seconds) == (10, 60)
    assert (found.first_backoff_seconds, found.longest_backoff_seconds) == (2, 300)
    assert found.longest_poll_seconds == 0


def test_what_no_relay_can_be_is_refused(db: ContractDatabase, tmp_path: Path) -> None:
    for wrong in ({"order": "all"}, {"batch": 0}, {"attempts": 0}, {"lease_seconds": 0}):
        with pytest.raises(InvalidArgument):
            QueueRelayOptions(**wrong)
    with pytest.raises(ConfigurationError, match="in their order only"):
        QueueRelay(db.url, QUEUE, JsonlSink(tmp_path))


@proves("a queue's relay loses and hides nothing")
def test_an_event_goes_through_its_states(db: ContractDatabase, own: Any) -> None:
    """O-F5: pending, in flight, sent, failed; what was refused is dead at once."""

    def fails(event: Event, _: threading.Event) -> None:
        if event.payload == b"2":
            raise EventRefused(event.sequence, "too large")
        if event.payload == b"3":
            raise RuntimeError("the password is hunter2")

    filled(own, 5)
    assert states(own) == ["pending"] * 5
    assert {each.attempts for each in events(own)} == {0}
    sink = Taking(fails)
    done = relayed(db, sink)
    assert (done.events, done.failures, done.dead_letters) == (3, 1, 1)
    first, refused, failed, *_ = events(own)
    assert (first.state, refused.state, failed.state) == ("sent", "failed", "pending")
    assert refused.last_error == "too large"
    assert (refused.attempts, failed.attempts) == (1, 1)
    assert failed.last_error == "RuntimeError"  # what a library says may be a secret
    assert failed.next_attempt_at is not None
    more(own, 1, start=6)
    pass_time(own, 1)
    (held,) = queue.receive(own, QUEUE, 1)
    assert states(own) == ["sent", "failed", "pending", "sent", "sent", "in_flight"]
    queue.acknowledge(own, QUEUE, [held.receipt])
    assert [each.sequence for each in events(own, from_sequence=4, max_events=2)] == [4, 5]
    with pytest.raises(InvalidArgument):
        events(own, max_events=1001)


@proves("a queue's relay loses and hides nothing")
def test_two_relays_never_send_the_same_event(db: ContractDatabase, own: Any) -> None:
    filled(own, 60, 2)
    sink = Taking()
    relays = [QueueRelay(db.url, QUEUE, sink, replace(QUICK, batch=7)) for _ in range(2)]
    relays[0].prepare(own)
    threads = [threading.Thread(target=each.run_for, args=(20,)) for each in relays]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert Counter(sink.taken) == {str(number): 2 for number in range(1, 61)}
    assert {each.result.stale for each in relays} == {0}


def _crashed(db: ContractDatabase, own: Any, sink: Any) -> QueueRelay:
    """A relay that has sent what it could, and has marked nothing."""
    relay = QueueRelay(db.url, QUEUE, sink, QUICK)
    relay.prepare(own)
    pass_time(own, 1)
    relay._look(own)
    relay._begin(own)
    while relay._sender._finished.empty():
        relay._sender.wait(1)
    return relay


@proves("a queue's relay loses and hides nothing")
def test_a_crash_after_sending_sends_once_more_and_a_late_mark_changes_nothing(
    db: ContractDatabase, own: Any
) -> None:
    filled(own, 1)
    sink = Taking()
    late = _crashed(db, own, sink)
    assert relayed(db, sink).events == 0, "it is hidden for a minute"
    assert states(own) == ["in_flight"]
    pass_time(own, 61)
    done = relayed(db, sink)
    assert (done.events, sink.taken) == (1, ["1", "1"])
    late.turn(own)
    assert (late.result.events, late.result.stale) == (0, 1)
    assert states(own) == ["sent"]
    late._sender.close()


@proves("a queue's relay loses and hides nothing")
def test_the_last_attempt_is_the_tenth(db: ContractDatabase, own: Any) -> None:
    """O-T4: 9 and 10. Others get through, so it is not the sink that is away."""
    filled(own, 1)
    sink = bad(b"1")
    for attempt in range(1, 11):
        more(own, 1, start=100 + attempt)
        pass_time(own, 301)
        relayed(db, sink)
        poison = events(own)[0]
        assert poison.attempts == attempt
        assert poison.state == ("pending" if attempt < 10 else "failed")
    assert events(own)[0].last_error == "SinkUnavailable: it answered 500"
    assert sink.taken == [str(100 + attempt) for attempt in range(1, 11)]
    assert queue.redrive(own, QUEUE) is not None
    sink.fails = lambda event, ended: None
    pass_time(own, 1)
    assert relayed(db, sink).events == 1
    assert events(own)[0].state == "sent"


@proves("a queue's relay loses and hides nothing")
def test_a_poison_event_that_kills_its_relay_is_counted(db: ContractDatabase, own: Any) -> None:
    """O-W3: at hand-out."""
    filled(own, 1)
    for _ in range(10):
        assert states(own) == ["pending"]
        _crashed(db, own, Taking())._sender.close()
        pass_time(own, 61)
    relayed(db, Taking())
    assert states(own) == ["failed"]
    (letter,) = dead_letters.dead_letters(own, QUEUE)
    assert letter.attempts == 10


def test_a_publishers_own_limit_counts(db: ContractDatabase, own: Any) -> None:
    filled(own, 0)
    publish_batch(own, [Message(TOPIC, b"1", headers={"penstock-max-attempts": 1}, partition=0)])
    more(own, 1, start=2)
    assert relayed(db, bad(b"1")).dead_letters == 1
    assert states(own) == ["failed", "sent"]


@proves("a queue's relay loses and hides nothing")
def test_when_nothing_gets_through_no_event_is_to_blame(db: ContractDatabase, own: Any) -> None:
    """O-F8: attempts end an event there only if that was asked for."""
    filled(own, 12)
    sink = Taking()
    sink.is_away = True
    for _ in range(6):
        pass_time(own, 301)
        done = relayed(db, sink, replace(QUICK, attempts=3))
        assert (done.dead_letters, done.events) == (0, 0)
        assert done.last_error == "SinkUnavailable: nobody is there"
    counts = [each.attempts or 0 for each in events(own)]
    assert set(states(own)) == {"pending"}
    assert max(counts) < 3
    sink.is_away = False
    pass_time(own, 301)
    assert relayed(db, sink).events == 12


def test_attempts_count_while_the_sink_is_away_if_that_is_asked_for(
    db: ContractDatabase, own: Any
) -> None:
    filled(own, 2)
    sink = Taking()
    sink.is_away = True
    for _ in range(2):
        pass_time(own, 301)
        relayed(db, sink, replace(QUICK, attempts=2, counts_absence=True))
    assert states(own) == ["failed", "failed"]


@pytest.mark.parametrize("counts_absence", [True, False])
def test_a_sink_that_took_nothing_is_told_to_be_away(
    db: ContractDatabase, own: Any, counts_absence: bool
) -> None:
    """Also where its attempts count.  Guard: is_away goes by the breaker alone."""
    filled(own, 6)
    sink = Taking()
    sink.is_away = True
    done = relayed(db, sink, replace(QUICK, counts_absence=counts_absence))
    assert (done.events, done.is_away) == (0, True)
    sink.is_away = False
    pass_time(own, 301)
    assert not relayed(db, sink).is_away


@proves("a queue's relay loses and hides nothing")
def test_a_slow_event_has_failed_and_its_mark_has_a_time_limit_of_its_own(
    db: ContractDatabase, own: Any
) -> None:
    """O-W2: the limit of sending does not end the mark."""

    def fails(event: Event, ended: threading.Event) -> None:
        if event.payload == b"1":
            assert ended.wait(30)
            raise RuntimeError("ended")

    filled(own, 3)
    sink = Taking(fails)
    done = relayed(db, sink, replace(QUICK, send_seconds=0.05))
    assert (done.events, done.failures, done.left_behind) == (2, 1, 0)
    slow = events(own)[0]
    assert (slow.state, slow.attempts) == ("pending", 1)
    assert slow.last_error == "SinkUnavailable: the sink did not take it within 0.05 s"


@proves("a queue's relay loses and hides nothing")
def test_a_call_that_does_not_end_is_left_behind(
    db: ContractDatabase, own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps neither its place among the threads nor its event."""
    monkeypatch.setattr(sink_calls, "ABORT_SECONDS", 0.05)
    over = threading.Event()

    def fails(event: Event, _: threading.Event) -> None:
        if event.payload == b"1":
            assert over.wait(60)

    filled(own, 5)
    sink = Taking(fails)
    done = relayed(db, sink, replace(QUICK, send_seconds=0.05, at_once=1))
    over.set()
    assert (done.events, done.left_behind) == (4, 1)
    assert "does not end" in events(own)[0].last_error


def _held_up(db: ContractDatabase, own: Any, *, extends: bool) -> list[str]:
    """What a second relay sends while the first one is still at it, after its lease."""
    now, over = [0.0], threading.Event()
    filled(own, 3)
    options = replace(QUICK, at_once=1, send_seconds=1000)
    first = QueueRelay(db.url, QUEUE, _until(over), options, clock=lambda: now[0])
    first.prepare(own)
    first.turn(own)
    for _ in range(4):
        now[0] += 21
        pass_time(own, 21)
        if extends:
            first.turn(own)
    second = Taking()
    relayed(db, second)
    over.set()
    first.finish(own)
    first._sender.close()
    return second.taken


@proves("a queue's relay loses and hides nothing")
def test_a_slow_batch_is_extended(db: ContractDatabase, own: Any) -> None:
    """O-W1. Guard: QueueRelay._extend."""
    assert _held_up(db, own, extends=True) == []


@proves("a queue's relay loses and hides nothing", guard="QueueRelay._extend")
def test_otherwise_others_would_send_it_too(db: ContractDatabase, own: Any) -> None:
    assert _held_up(db, own, extends=False) == ["1", "2", "3"]


@proves("a queue's relay loses and hides nothing")
def test_a_key_keeps_its_order_behind_a_poison_event(db: ContractDatabase, own: Any) -> None:
    """Others of other keys pass.  That they get through says whom to blame."""
    filled(own, 0)
    publish_batch(
        own,
        [Message(TOPIC, b"%d" % n, key="hot" if n % 2 else "cold", partition=0) for n in range(8)],
    )
    drain(own)
    options = replace(QUICK, order=KEY, attempts=2)
    sink = bad(b"1")
    relayed(db, sink, options)
    for n in (8, 10, 12):
        publish_batch(own, [Message(TOPIC, b"%d" % n, key="cold", partition=0)])
        drain(own)
        pass_time(own, 301)
        relayed(db, sink, options)
    assert states(own) == ["sent", "failed", *["sent"] * 9]
    assert [each for each in sink.taken if int(each) % 2] == ["3", "5", "7"]
    even = [each for each in sink.taken if int(each) % 2 == 0]
    assert even == ["0", "2", "4", "6", "8", "10", "12"]


def test_the_next_event_of_a_key_comes_after_a_slow_one(db: ContractDatabase, own: Any) -> None:
    """A look in between finds nothing. Guard: run_for looks again after what was sent."""
    filled(own, 0)
    publish_batch(own, [Message(TOPIC, b"%d" % n, key="one", partition=0) for n in range(3)])
    drain(own)
    looks, go_on = [0], threading.Event()

    def is_slow(event: Event, _: threading.Event) -> None:
        assert event.payload != b"0" or go_on.wait(30)

    class Relay(QueueRelay):
        def _look(self, connection: Any) -> None:
            super()._look(connection)
            looks[0] += 1
            if looks[0] > 2:
                assert self._is_idle or go_on.is_set()
                go_on.set()

    done = Relay(db.url, QUEUE, Taking(is_slow), replace(QUICK, order=KEY, poll_seconds=30))
    assert (done.run_for(20).events, done.result.drained) == (3, True)


@proves("a queue's relay loses and hides nothing", guard="QueueRelay._free_next")
@pytest.mark.parametrize("guarded", [True, False])
def test_the_next_event_of_a_key_does_not_wait_for_the_next_look(
    db: ContractDatabase, own: Any, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: QueueRelay._free_next.  The clock stands, so nothing else begins a look."""
    filled(own, 0)
    publish_batch(own, [Message(TOPIC, b"%d" % n, key="one", partition=0) for n in range(3)])
    drain(own)
    if not guarded:
        monkeypatch.setattr(QueueRelay, "_free_next", lambda _: None)
    relay = QueueRelay(db.url, QUEUE, Taking(), replace(QUICK, order=KEY), clock=lambda: 0.0)
    relay.prepare(own)
    for _ in range(4):
        relay.turn(own)
        relay._sender.wait(5 if relay._sender.busy else 0)
    relay._sender.close()
    assert relay.result.events == (3 if guarded else 1)


def test_the_order_is_chosen_once(db: ContractDatabase, own: Any) -> None:
    filled(own, 1)
    _crashed(db, own, Taking())._sender.close()
    with pytest.raises(InvalidArgument):
        relayed(db, Taking(), replace(QUICK, order=KEY))


def test_what_was_not_begun_is_put_back_uncounted(db: ContractDatabase, own: Any) -> None:
    filled(own, 6)
    over = threading.Event()
    relay = QueueRelay(db.url, QUEUE, _until(over), replace(QUICK, at_once=1))
    relay.prepare(own)
    relay.turn(own)
    assert states(own) == ["in_flight"] * 6
    over.set()
    relay.finish(own)
    relay._sender.close()
    assert (relay.result.events, relay.result.put_back) == (1, 5)
    assert [each.attempts for each in events(own)][1:] == [0] * 5


def test_it_looks_at_once_then_after_its_pause(db: ContractDatabase, own: Any) -> None:
    """O-F10, O-F11: an immediate first tick; a full batch is followed at once by the next one."""
    now = [0.0]
    filled(own, 5)
    options = QueueRelayOptions(batch=2, at_once=2, longest_poll_seconds=5)
    relay = QueueRelay(db.url, QUEUE, Taking(), options, clock=lambda: now[0])
    relay.prepare(own)
    looks: list[float] = []
    receive = queue.receive

    def noted(*given: Any, **named: Any) -> Any:
        looks.append(now[0])
        return receive(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue, "receive", noted)
        while relay.result.events < 5 or now[0] < 20:
            relay.turn(own)
            relay._sender.wait(0.01)
            if relay.result.events == 5:
                now[0] += 0.5
    relay._sender.close()
    assert set(looks[:3]) == {0.0}
    pauses = [b - a for a, b in itertools.pairwise(looks) if b > a]
    assert pauses[0] == 2.0
    assert pauses[-1] == 5.0
    assert pauses == sorted(pauses)
