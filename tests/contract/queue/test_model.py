"""Random receives, receipts and time against a model: what is current, counted, done and dead.

And, where a queue keeps the order of keys, which one of a key comes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.subscriptions import dead_letters, queue
from penstock.subscriptions.queue import Delivery, Receipt
from tests.contract.databases import ContractDatabase
from tests.kit.log import Connection, drain, topic
from tests.kit.proof import proves
from tests.kit.queue import TOPIC, mutated, pass_time

EVENTS = 12
KEYS = "aabacb-bcaba"  # of the events; - is none
VISIBLE = 100.0
LIMIT = 3  # deliveries, and failures

_names = itertools.count(1)


@dataclass
class Model:
    """One event: its last receipt while that is good, when it can come again, and its counts.

    ``begun``: handed out since it was published or redriven.
    """

    receipt: Receipt | None = None
    again_at: float = 0.0
    deliveries: int = 0
    failures: int = 0
    state: str = "open"
    begun: bool = False
    redriven: bool = False


@dataclass
class Run:
    """A queue beside its model."""

    own: Connection
    name: str
    in_order: bool = False
    now: float = 0.0
    events: dict[int, Model] = field(default_factory=dict)
    given: list[Receipt] = field(default_factory=list)

    def receive(self, size: int) -> None:
        """All that comes may come: it is open, its time is over, and its count is right."""
        self.wait(1)
        for each in queue.receive(self.own, self.name, size, visibility_seconds=VISIBLE):
            self._handed_out(each)

    def _handed_out(self, delivery: Delivery) -> None:
        event = self.events[delivery.event.sequence]
        assert event.state == "open"
        assert event.again_at <= self.now
        if self.in_order:
            self._is_next(delivery.event.sequence)
        event.deliveries, event.begun = event.deliveries + 1, True
        assert (delivery.deliveries, delivery.failures) == (event.deliveries, event.failures)
        event.receipt, event.again_at = delivery.receipt, self.now + VISIBLE
        self.given.append(delivery.receipt)

    def _is_next(self, sequence: int) -> None:
        """No other event of its key has been begun and is unfinished; none waits before it."""
        key = KEYS[sequence - 1]
        for other, event in self.events.items():
            if key == "-" or KEYS[other - 1] != key or other == sequence:
                continue
            unfinished = self._sweep(other).state == "open"
            assert not (unfinished and event.begun), (sequence, other)
            assert not (unfinished and other < sequence and not event.redriven), (sequence, other)

    def redrive(self) -> None:
        """What is dead comes again, with new counts."""
        for sequence in self._letters():
            self.events[sequence] = Model(again_at=self.now, redriven=True)
        queue.redrive(self.own, self.name)

    def wait(self, seconds: float) -> None:
        """Time goes on; a claim that is over for the last time is swept at the next receive."""
        pass_time(self.own, seconds)
        self.now += seconds

    def use(self, verb: str, places: Sequence[int]) -> None:
        """Some of the receipts that were ever given, good or not."""
        chosen = list({self.given[place % len(self.given)] for place in places})
        if verb == "extend":
            self._extend(chosen)
            return
        calls = {"acknowledge": queue.acknowledge, "release": queue.release, "reject": queue.reject}
        answers = calls[verb](self.own, self.name, chosen, partly=True)
        for receipt, answer in zip(chosen, answers, strict=True):
            event = self._sweep(receipt.sequence)
            assert answer == (event.receipt == receipt), (verb, receipt, event)
            if answer:
                self._settle(event, verb)

    def _settle(self, event: Model, verb: str) -> None:
        event.receipt, event.again_at = None, self.now
        if verb == "acknowledge":
            event.state = "done"
        elif verb == "release":
            event.deliveries -= 1
        else:
            event.failures += 1
            event.again_at = self.now + 1.0
            if event.failures >= LIMIT or event.deliveries >= LIMIT:
                event.state = "dead"

    def _extend(self, chosen: Sequence[Receipt]) -> None:
        good = [each for each in chosen if self._sweep(each.sequence).receipt == each]
        for old, new in zip(good, queue.extend(self.own, self.name, good, VISIBLE), strict=True):
            event = self.events[old.sequence]
            event.receipt, event.again_at = new, self.now + VISIBLE
            self.given.append(new)

    def _sweep(self, sequence: int) -> Model:
        """Whether an event died meanwhile is known by its letter alone: the sweep is lazy."""
        event = self.events[sequence]
        over = event.receipt is not None and event.again_at <= self.now
        if over and event.deliveries >= LIMIT and sequence in self._letters():
            event.receipt, event.state = None, "dead"
        return event

    def _letters(self) -> set[int]:
        return {each.sequence for each in dead_letters.dead_letters(self.own, self.name)}

    def finish(self) -> None:
        """What is left comes, each once; nothing is lost."""
        for _ in range(8 * EVENTS):
            if queue.statistics(self.own, self.name).size == 0:
                break
            self.wait(VISIBLE + 2)
            for each in queue.receive(self.own, self.name, 50, visibility_seconds=VISIBLE):
                self._handed_out(each)
                queue.acknowledge(self.own, self.name, [each.receipt])
                self.events[each.event.sequence].state = "done"
        dead = self._letters()
        for sequence, event in self.events.items():
            assert (event.state == "done") != (sequence in dead), (sequence, event)
        assert queue.statistics(self.own, self.name).size == 0


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("receive"), st.integers(1, 8)),
        st.tuples(st.just("wait"), st.integers(1, 150)),
        st.tuples(st.just("redrive"), st.just(0)),
        st.tuples(
            st.sampled_from(["acknowledge", "release", "reject", "extend"]),
            st.lists(st.integers(0, 40), min_size=1, max_size=5),
        ),
    ),
    max_size=25,
)


def _play(own: Connection, steps: Sequence[tuple[str, object]], order: str = "none") -> None:
    name = f"model {next(_names)}"
    queue.subscribe(own, name, [TOPIC])
    queue.configure(
        own, name, max_deliveries=LIMIT, max_failures=LIMIT, first_backoff_seconds=0.5, jitter=0,
        longest_backoff_seconds=1, order=order,
    )  # fmt: skip
    events = {number: Model() for number in range(1, EVENTS + 1)}
    run = Run(own, name, order == "key", events=events)
    for verb, what in steps:
        if verb == "receive":
            assert isinstance(what, int)
            run.receive(what)
        elif verb == "wait":
            assert isinstance(what, int)
            run.wait(what)
        elif verb == "redrive":
            run.redrive()
        elif run.given:
            assert isinstance(what, list)
            run.use(verb, what)
    run.finish()


def _fill(own: Connection) -> None:
    """Twelve events with a few keys, in one partition."""
    topic(own, name=TOPIC)
    publish_batch(
        own,
        [Message(TOPIC, b"", partition=0, key=None if key == "-" else key) for key in KEYS],
    )
    drain(own)


def _machine(own: Connection, order: str, examples: int) -> None:
    _fill(own)

    @settings(
        max_examples=examples, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(STEPS)
    def played(steps: list[tuple[str, object]]) -> None:
        _play(own, steps, order)

    played()


@proves("a queue loses nothing and hands out nothing twice at a time")
@proves("D4 in queues")
@pytest.mark.parametrize("order", ["none", "key"])
def test_a_queue_does_what_the_model_does(own: Connection, order: str) -> None:
    _machine(own, order, 4)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("order", ["none", "key"])
def test_a_queue_does_what_the_model_does_for_long(own: Connection, order: str) -> None:
    _machine(own, order, 300)


#: Counts that are forgotten when an event is put back, expires or fails.
MUTANTS = {
    "put back": {
        "postgres": ("free_pieces", [("GREATEST(p.deliveries - uncounted, 0)", "0")]),
        "memory": ("queues._freed", [("max(dealt.deliveries - 1, 0)", "0")]),
        "mysql": ("free_pieces", [("GREATEST(p.deliveries - uncounted, 0)", "0")]),
    },
    "expired": {
        "postgres": ("end_claims", [("s, s, g.deliveries,", "s, s, 0,")]),
        "memory": ("queues.receive", [("deliveries=each.deliveries + 1", "deliveries=1")]),
        "mysql": ("end_claims", [("n.n, r.deliveries, r.waiting_id", "n.n, 0, r.waiting_id")]),
    },
    "failed": {
        "postgres": ("reject", [("failures = w.failures + 1", "failures = w.failures")]),
        "memory": (
            "queues.reject",
            [("failures = dealt.failures + 1", "failures = dealt.failures")],
        ),
        "mysql": ("fail_pieces", [("w.failures = w.failures + 1", "w.failures = w.failures")]),
    },
}


@proves("a queue loses nothing and hands out nothing twice at a time", guard="the counts")
@pytest.mark.parametrize("guard", MUTANTS)
def test_the_model_sees_a_wrong_count(db: ContractDatabase, own: Connection, guard: str) -> None:
    """Mutants: see above."""
    mutated(db, MUTANTS[guard])
    with pytest.raises(AssertionError):
        _play_all(own)


def _play_all(own: Connection) -> None:
    """What each mutant breaks: deliveries 2, put back, expired, rejected."""
    _fill(own)
    first = [("receive", 12), ("wait", 150), ("receive", 3), ("release", [12]), ("receive", 8)]
    more_steps = [("reject", [15, 16]), ("wait", 5), ("receive", 8), ("receive", 8)]
    _play(own, [*first, ("receive", 8), *more_steps])
