"""Random runs, deaths, failures and time against what the relay of a queue promises."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from ops.relay.queue_options import QueueRelayOptions
from ops.relay.queue_relay import QueueRelay
from ops.relay.queue_status import RelayedEvent, relayed_events
from ops.sinks.base import EventRefused, SinkUnavailable
from penstock.publishing.publish import publish_batch
from penstock.records import Event, Message
from penstock.subscriptions import queue
from tests.contract.databases import ContractDatabase
from tests.kit.log import drain, topic
from tests.kit.proof import proves
from tests.kit.queue import TOPIC, pass_time
from tests.kit.taking import Taking

KEYS = "aabacb-bcaba"  # of the events; - is none
LIMIT = 3
OPTIONS = QueueRelayOptions(poll_seconds=0.01, attempts=LIMIT, at_once=2, batch=5)

_names = itertools.count(1)


@dataclass
class Run:
    """A queue, its sink, and what was seen of it."""

    db: ContractDatabase
    own: Any
    name: str
    order: str
    fails: set[int] = field(default_factory=set)
    refuses: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    #: What a relay had that died, and what was sent again by a person.
    dead_hands: Counter[int] = field(default_factory=Counter)
    redriven: set[int] = field(default_factory=set)
    sent: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        def says(event: Event, _: Any) -> None:
            if event.sequence in self.refuses:
                self.refused.add(event.sequence)
                raise EventRefused(event.sequence, "never")
            if event.sequence in self.fails:
                raise SinkUnavailable("not now")

        self.sink: Any = Taking(lambda event, ended: says(event, ended))

    def relay(self) -> QueueRelay:
        """One process."""
        options = replace(OPTIONS, order=self.order)
        return QueueRelay(self.db.url, self.name, self.sink, options)

    def step(self, verb: str, what: Any) -> None:
        """One of them, and then what always holds."""
        if verb == "relay":
            self.fails, self.refuses = set(what[0]), set(what[1])
            self.relay().run_for(20)
        elif verb == "dies":
            self.fails, self.refuses = set(), set()
            self._dies()
        elif verb == "wait":
            pass_time(self.own, what)
        elif verb == "redrive":
            self.redriven |= self.failed
            self.failed = set()
            queue.redrive(self.own, self.name)
        self.check()

    def _dies(self) -> None:
        """A process that has sent what it could take at once, and has marked nothing."""
        relay = self.relay()
        relay.prepare(self.own)
        relay._look(self.own)
        relay._begin(self.own)
        for receipt in relay._in_hand:
            self.dead_hands[receipt.sequence] += 1
        while relay._sender._finished.qsize() < relay._sender.busy:
            relay._sender.wait(0.01)
        relay._sender.close()

    def events(self) -> list[RelayedEvent]:
        """All of them."""
        return relayed_events(self.own, self.name, TOPIC, 0)

    def check(self) -> None:
        """Four states, with the ways between them; attempts are counted; nothing is sent twice."""
        taken = Counter(map(int, self.sink.taken))
        found = {each.sequence: each for each in self.events()}
        assert sorted(found) == list(range(1, len(KEYS) + 1))
        sent = {number for number, each in found.items() if each.state == "sent"}
        failed = {number for number, each in found.items() if each.state == "failed"}
        assert {each.state for each in found.values()} <= {"pending", "in_flight", "sent", "failed"}
        assert self.sent <= sent, "sent is the end"
        assert self.failed <= failed, "failed is the end, but for a person"
        assert all(taken[number] for number in sent)
        for number in failed - self.failed:
            assert number in self.refused or (found[number].attempts or 0) >= LIMIT
        for number, count in taken.items():
            assert count <= 1 + self.dead_hands[number], "twice, and nobody has died with it"
        assert all((each.attempts or 0) <= LIMIT for each in found.values())
        self.sent, self.failed = sent, failed
        if self.order == "key":
            self._in_order()

    def _in_order(self) -> None:
        """The first time of each event, by key, but for what a person has sent again."""
        first = list(dict.fromkeys(map(int, self.sink.taken)))
        for key in set(KEYS) - {"-"}:
            own = [each for each in first if KEYS[each - 1] == key and each not in self.redriven]
            assert own == sorted(own), (key, own)

    def finish(self) -> None:
        """The sink is well again: what is left is sent, and nothing was lost."""
        self.fails, self.refuses = set(), set()
        for _ in range(8 * len(KEYS)):
            if queue.statistics(self.own, self.name).size == 0:
                break
            pass_time(self.own, 400)
            self.relay().run_for(20)
            self.check()
        assert {each.state for each in self.events()} <= {"sent", "failed"}


_SOME = st.lists(st.integers(1, len(KEYS)), max_size=4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("relay"), st.tuples(_SOME, _SOME.map(lambda some: some[:1]))),
        st.tuples(st.just("dies"), st.just(0)),
        st.tuples(st.just("wait"), st.sampled_from([1, 3, 61, 301])),
        st.tuples(st.just("redrive"), st.just(0)),
    ),
    max_size=10,
)


def _play(db: ContractDatabase, steps: Sequence[tuple[str, Any]], order: str) -> None:
    with closing(db.connect()) as own:
        name = f"relayed {next(_names)}"
        queue.subscribe(own, name, [TOPIC])
        run = Run(db, own, name, order)
        for verb, what in steps:
            run.step(verb, what)
        run.finish()


@pytest.fixture
def filled(db: ContractDatabase) -> ContractDatabase:
    """Twelve events with a few keys, in one partition."""
    with closing(db.connect()) as own:
        topic(own, name=TOPIC)
        publish_batch(
            own,
            [
                Message(TOPIC, b"%d" % number, partition=0, key=None if key == "-" else key)
                for number, key in enumerate(KEYS, start=1)
            ],
        )
        drain(own)
    return db


_SHORT = settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@proves("a queue's relay loses and hides nothing")
@_SHORT
@given(steps=STEPS, order=st.sampled_from(["none", "key"]))
def test_any_run_keeps_its_promises(
    filled: ContractDatabase, steps: Sequence[tuple[str, Any]], order: str
) -> None:
    _play(filled, steps, order)


@proves("a queue's relay loses and hides nothing")
@pytest.mark.long
@settings(_SHORT, max_examples=150, derandomize=False)
@given(steps=STEPS, order=st.sampled_from(["none", "key"]))
def test_any_run_keeps_its_promises_at_length(
    filled: ContractDatabase, steps: Sequence[tuple[str, Any]], order: str
) -> None:
    _play(filled, steps, order)


@proves("a queue's relay loses and hides nothing", guard="that a sent event is marked")
def test_without_the_mark_an_event_would_be_sent_twice(
    filled: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It bites: a relay that forgets what it has sent."""

    def forgets(relay: QueueRelay, _: Any, done: list[Any]) -> int:
        return relay._settled([True] * len(done), done)

    monkeypatch.setattr(QueueRelay, "_acknowledge", forgets)
    with pytest.raises(AssertionError):
        _play(filled, [("relay", ([], [])), ("wait", 61), ("relay", ([], []))], "none")
