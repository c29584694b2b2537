"""Events that may be what ends their workers, in a worker of a queue: each is handled alone."""

from __future__ import annotations

import pytest

from penstock import queue
from penstock.consumer.queue import consumer as queue_consumer
from penstock.consumer.queue.backlog import Backlog
from penstock.consumer.queue.delivery import QueueDelivery
from tests.kit.log import wait_until
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, pass_time
from tests.kit.queue_script import Script, in_hand, outcome_of


def _beside_a_suspect() -> int:
    """How many events a worker has in hand while one is handled that was lost twice."""
    script = Script(8, concurrency=3)
    taken: list[queue.Delivery] = []
    for _ in range(2):
        pass_time(script.own, 31)
        taken = queue.receive(script.own, QUEUE, 8)
    fresh = [each.receipt for each in taken if each.event.sequence not in (4, 5)]
    queue.release(script.own, QUEUE, fresh)
    pass_time(script.own, 31)
    beside: list[int] = []

    def handle(delivery: QueueDelivery) -> None:
        if delivery.deliveries != 3:
            return
        seen: set[float] = set()

        def is_over() -> bool:
            seen.add(script.consumer.stats.last_round)
            return len(seen) > 2

        wait_until(is_over, "two rounds are over")
        beside.append(queue.statistics(script.database.connect(), QUEUE).in_flight)

    script.use(handle)
    assert script.consumer.run_until_idle() == 8
    assert len(beside) == 2
    return max(beside)


@proves("S16 in queues")
def test_a_suspect_is_handled_alone() -> None:
    """What ends its worker takes no neighbour along.  Guard: is_suspect of what is in hand."""
    assert _beside_a_suspect() == 1


@proves("S16 in queues", guard="nothing else is in hand of the worker")
def test_without_that_its_neighbours_are_in_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: no event is a suspect."""
    monkeypatch.setattr(queue_consumer, "SUSPECT_DELIVERIES", 1000)
    assert _beside_a_suspect() > 1


def test_a_suspect_waits_with_its_claim_for_its_turn() -> None:
    """It is neither given back nor begun while another handler is busy; what is lost is dropped."""
    now = 0.0
    backlog = Backlog(lambda: now, together=3)
    backlog.spare_seconds = 15.0
    fresh, suspect = in_hand(30.0), in_hand(31.0)
    suspect.is_suspect = True
    backlog.extend([fresh, suspect])
    assert (backlog.suspect(), backlog.has_suspect()) == (None, True)
    assert backlog.take() == fresh
    assert (backlog.suspect(), backlog.take()) == (suspect, None)
    assert backlog.after_one(outcome_of(), is_last=False)[0] is None
    now = 20.0
    assert (backlog.take(alone=True), backlog.take_late()) == (None, [])
    suspect.until = 51.0
    backlog.drop_lost()
    assert backlog.take(alone=True) == suspect
    backlog.extend([suspect])
    suspect.lost = True
    backlog.drop_lost()
    assert len(backlog) == 0
