"""The relay of a queue goes on after its database was away, and has forgotten nothing meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ops.relay import queue_relay
from ops.relay.queue_options import QueueRelayOptions
from ops.relay.queue_relay import QueueRelay
from ops.sinks.base import SinkUnavailable
from penstock import database
from penstock.errors import DatabaseUnavailable
from penstock.leases import loop
from penstock.subscriptions import queue
from penstock.topics import names
from tests.contract.consumer.test_passing import TROUBLES
from tests.contract.databases import ContractDatabase
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, filled, pass_time
from tests.kit.taking import Taking

OPTIONS = QueueRelayOptions(poll_seconds=0.02, at_once=2)
AWAY = DatabaseUnavailable("nobody answers")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "backoff", lambda outages: 0.01)


@pytest.fixture
def own(db: ContractDatabase) -> Iterator[Any]:
    """A connection to a queue with three events."""
    with closing(db.connect()) as opened:
        yield filled(opened, 3)


def _relay(db: ContractDatabase) -> tuple[QueueRelay, threading.Event]:
    """A relay that is told to stop by the third event."""
    stop = threading.Event()

    def sees(event: Any, _: threading.Event) -> None:
        if event.payload == b"3":
            stop.set()

    return QueueRelay(db.url, QUEUE, Taking(sees), OPTIONS), stop


def _scripted(patch: pytest.MonkeyPatch, home: Any, name: str, *steps: Any) -> None:
    """The first calls of a function do this before: None is nothing, an error is raised."""
    whole, left = getattr(home, name), list(steps)

    def scripted(*given: Any, **named: Any) -> Any:
        step = left.pop(0) if left else None
        if isinstance(step, Exception):
            raise step
        if step is not None:
            step(*given)
        return whole(*given, **named)

    patch.setattr(home, name, scripted)


@proves("a queue's relay loses and hides nothing")
@pytest.mark.parametrize("trouble", TROUBLES)
def test_it_goes_on_after_what_passes(
    db: ContractDatabase, own: Any, trouble: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And when nobody answers then, and the sink is away.  Guard: QueueRelay.goes_on_after."""
    relay, stop = _relay(db)
    _scripted(monkeypatch, relay, "turn", lambda connection: trouble(db, connection))
    _scripted(monkeypatch, relay, "open", None, AWAY, AWAY)
    _scripted(monkeypatch, relay.sink, "preflight", None, SinkUnavailable("it is away"))
    relay.run(stop)
    assert queue.statistics(own, QUEUE).size == 0


@proves("a queue's relay loses and hides nothing", guard="QueueRelay.goes_on_after")
def test_without_the_guard_an_outage_ends_it(
    db: ContractDatabase, own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: only a connection that is gone is left behind, as before."""
    monkeypatch.setattr(
        QueueRelay, "goes_on_after", lambda _, error: database.is_unavailable(error)
    )
    relay, stop = _relay(db)
    _scripted(monkeypatch, relay, "turn", AWAY)
    with pytest.raises(DatabaseUnavailable):
        relay.run(stop)


def test_what_is_wrong_at_the_start_ends_it(
    db: ContractDatabase, own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a wrong address.  Guard: _has_begun."""
    relay, stop = _relay(db)
    _scripted(monkeypatch, relay, "open", AWAY)
    with pytest.raises(DatabaseUnavailable):
        relay.run(stop)
    relay, stop = _relay(db)
    _scripted(monkeypatch, relay.sink, "preflight", SinkUnavailable("it is away"))
    with pytest.raises(SinkUnavailable):
        relay.run(stop)


@proves("a queue's relay loses and hides nothing")
@pytest.mark.parametrize(
    ("home", "name"),
    [
        (QueueRelay, "_acknowledge"),
        (names, "describe_topic"),
        (queue_relay, "misfits"),
        (QueueRelay, "_bury"),
    ],
)
def test_what_is_ready_is_not_forgotten(
    db: ContractDatabase, own: Any, home: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database goes away just before it is begun.  Guard: _begin looks, and pops after."""
    relay, stop = _relay(db)
    if name == "_acknowledge":
        rules: Any = SimpleNamespace(takes=lambda event: event.payload != b"1", schemas=())
        relay._routing = rules
    if name == "_bury":
        odd = iter([{1: "odd"}, {1: "odd"}])
        monkeypatch.setattr(queue_relay, "misfits", lambda *_: next(odd, {}))
    _scripted(monkeypatch, home, name, AWAY)
    relay.run(stop)
    found = queue.statistics(own, QUEUE)
    assert (found.size, found.dead) == (0, int(name == "_bury"))
    assert not relay._in_hand


@proves("a queue's relay loses and hides nothing", guard="that _begin pops last")
def test_without_that_its_lease_would_be_kept_for_ever(
    db: ContractDatabase, own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: it is taken out before it is begun, as before."""

    def begins(relay: QueueRelay, connection: Any) -> None:
        while relay._ready and relay._sender.free > 0:
            relay._begin_one(connection, relay._ready.popleft())

    monkeypatch.setattr(QueueRelay, "_begin", begins)
    relay, stop = _relay(db)
    _scripted(monkeypatch, queue_relay, "misfits", AWAY)
    relay.run(stop)
    assert queue.statistics(own, QUEUE).size == 1
    assert [each.sequence for each in relay._in_hand] == [1]


@proves("a queue's relay loses and hides nothing", guard="that _note is called once")
@pytest.mark.parametrize("guarded", [True, False])
def test_a_failure_counts_once_however_often_its_mark_is_tried(
    db: ContractDatabase, own: Any, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an outage of the database opens the breaker.  Guard: QueueRelay._note is called once."""

    def fails(*_: Any) -> None:
        raise SinkUnavailable("it answered 500")

    failed = QueueRelay._failed

    def again(relay: QueueRelay, connection: Any, one: Any) -> None:
        relay._note(one)
        failed(relay, connection, one)

    if not guarded:
        monkeypatch.setattr(QueueRelay, "_failed", again)
    relay = QueueRelay(db.url, QUEUE, Taking(fails), replace(OPTIONS, batch=1), clock=lambda: 0.0)
    relay.prepare(own)
    _scripted(monkeypatch, queue, "reject", AWAY, AWAY)
    relay._look(own)
    relay._begin(own)
    relay._sender.wait(10)
    for _ in range(2):
        with pytest.raises(DatabaseUnavailable):
            relay._mark(own)
    relay._mark(own)
    relay._sender.close()
    assert relay.result.failures == (1 if guarded else 4)


def _late(db: ContractDatabase, own: Any, turns: Any) -> tuple[list[str], QueueRelay]:
    """What a relay sends that was away longer than its lease, after another one sent it all."""
    now = [0.0]
    sink = Taking()
    first = QueueRelay(db.url, QUEUE, sink, OPTIONS, clock=lambda: now[0])
    first.prepare(own)
    first._look(own)
    now[0] += 61
    pass_time(own, 61)
    assert QueueRelay(db.url, QUEUE, Taking(), OPTIONS).run_for(20).events == 3
    turns(first, own)
    first.finish(own)
    first._sender.close()
    return sink.taken, first


@proves("a queue's relay loses and hides nothing")
def test_what_others_had_meanwhile_is_not_sent_after_it(db: ContractDatabase, own: Any) -> None:
    """Its leases are lost.  Guard: QueueRelay._forget."""
    taken, relay = _late(db, own, QueueRelay.turn)
    assert (taken, dict(relay._in_hand), list(relay._ready)) == ([], {}, [])


@proves("a queue's relay loses and hides nothing")
def test_a_lease_that_is_over_is_given_back(db: ContractDatabase, own: Any) -> None:
    """Nobody has told the relay that it was lost.  Guard: the look at its time in _begin."""
    taken, relay = _late(db, own, QueueRelay._begin)
    assert (taken, relay.result.stale) == ([], 3)


@proves("a queue's relay loses and hides nothing")
def test_an_extension_that_did_not_come_through_is_tried_again(
    db: ContractDatabase, own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a third of the lease later.  Guard: _extended_at is set last."""
    now = [0.0]
    relay = QueueRelay(db.url, QUEUE, Taking(), OPTIONS, clock=lambda: now[0])
    relay.prepare(own)
    relay._look(own)
    now[0] += 21
    _scripted(monkeypatch, queue, "extend", AWAY)
    with pytest.raises(DatabaseUnavailable):
        relay._extend(own)
    relay._extend(own)
    assert set(relay._in_hand.values()) == {81.0}
    relay.finish(own)
    relay._sender.close()


@proves("a queue's relay loses and hides nothing", guard="QueueRelay._forget")
def test_without_the_guards_a_late_relay_sends_it_again(
    db: ContractDatabase, own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: what is lost stays ready, and its time is not looked at, as before."""
    monkeypatch.setattr(QueueRelay, "_forget", lambda relay, receipt: None)
    release = QueueRelay._release

    def begins(relay: QueueRelay, connection: Any, given: list[Any]) -> None:
        if len(given) == 1:
            relay._begin_one(connection, given[0])
        else:
            release(relay, connection, given)

    monkeypatch.setattr(QueueRelay, "_release", begins)
    taken, _ = _late(db, own, QueueRelay.turn)
    assert set(taken) >= {"1", "2"}
