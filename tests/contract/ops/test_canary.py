"""The canary on every engine: it goes the whole way, and says which part of it is closed."""

from __future__ import annotations

from contextlib import closing

from ops.canary import SUBSCRIPTION, fly
from penstock import subscriptions
from penstock.publishing.publish import publish
from penstock.subscriptions import stream
from penstock.upkeep.sequencing import sequence
from tests.contract.databases import ContractDatabase
from tests.kit.log import drain, topic

TOPIC = "ops/canary"


class Clock:
    """A clock that moves while the canary rests."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds


def test_an_event_goes_the_whole_way(db: ContractDatabase) -> None:
    """Somebody sequences while it waits.  It creates what it needs and leaves nothing unread."""
    for _number in range(2):
        done = fly(db.url, TOPIC, limit_seconds=30, pause=lambda _: sequence(db.url))
        assert done.problem == "" and done.consumed is not None and done.sequenced is not None
        assert 0 <= done.published <= done.consumed < 30
    with closing(db.connect()) as own:
        assert [each.lag_events for each in subscriptions.lag(own, SUBSCRIPTION)] == [0]


def test_without_a_sequencer_it_says_so_and_looks_at_the_rest_of_the_way(
    db: ContractDatabase,
) -> None:
    clock = Clock()
    done = fly(db.url, TOPIC, limit_seconds=5, clock=clock, pause=clock.pause)
    assert done.problem == "nobody sequenced it within 5 s"
    assert done.consumed is not None and done.consumed >= 5


def test_what_somebody_else_holds_is_not_consumed(db: ContractDatabase) -> None:
    clock = Clock()
    with closing(db.connect()) as own:
        topic(own, 1, TOPIC)
        publish(own, TOPIC, b"earlier")
        drain(own)
        stream.subscribe(own, SUBSCRIPTION, [TOPIC])
        thief = stream.join(own, SUBSCRIPTION, "thief")
        assert stream.check_in(own, thief)
        done = fly(db.url, TOPIC, limit_seconds=5, clock=clock, pause=clock.pause)
        assert done.consumed is None and "was not consumed" in done.problem
        stream.leave(own, thief)
    # The next one reads what the last one has left too.
    done = fly(db.url, TOPIC, limit_seconds=30, pause=lambda _: sequence(db.url))
    assert done.problem == ""
