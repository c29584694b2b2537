"""A worker acknowledges many events in one call: what a crash and a lost claim have to do with it.

When it does that is in tests/units/test_queue_loop.py.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock import subscriptions
from penstock.consumer.queue.consumer import QueueConsumer
from penstock.consumer.queue.delivery import QueueDelivery
from penstock.consumer.queue.settling import Settler
from penstock.subscriptions import queue
from penstock.subscriptions.queue import Delivery
from tests.contract.databases import ContractDatabase
from tests.kit.log import Connection, wait_until
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, acknowledge, filled, pass_time, receive, texts
from tests.kit.stream import running

pytestmark = pytest.mark.mariadb_differs("rows that others have locked are passed over")


@proves("a worker acknowledges in time")
def test_after_a_crash_only_what_was_not_acknowledged_comes_again(
    db: ContractDatabase, own: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice as many as are acknowledged together at most.  Guard: the limit in Backlog._take."""
    filled(own, 40, visibility_seconds=30)
    handled: list[str] = []
    told: list[int] = []
    go_on, real = threading.Event(), queue.acknowledge

    def slow(connection: Any, subscription: str, receipts: Any, **options: Any) -> list[bool]:
        told.append(len(receipts))
        if len(told) == 2:
            assert go_on.wait(60)
        return real(connection, subscription, receipts, **options)

    consumer = QueueConsumer(
        db.url, QUEUE, prefetch=50, acknowledge_every_events=5, acknowledge_every_seconds=60,
        handler=lambda delivery: handled.append(delivery.payload.decode()),
    )  # fmt: skip
    with monkeypatch.context() as patch, running(consumer) as stop:
        patch.setattr(queue, "acknowledge", slow)
        wait_until(lambda: len(told) == 2, "the second call is made")
        wait_until(lambda: len(handled) == told[0] + 9, "and as many are handled meanwhile")
        pass_time(own, 31)
        again: list[str] = []
        while found := receive(own, 10):
            again += texts(found)
        assert set(handled) - set(again) == set(handled[: told[0]])
        assert len(set(handled) & set(again)) == 9
        stop.set()
        go_on.set()
    assert consumer.stats.stale_commits == 9


def _one_of_three_is_lost(db: ContractDatabase, own: Connection) -> tuple[QueueConsumer, int]:
    """Three wait to be acknowledged together, and another worker has got one of them.

    What came back has no order: the other worker may get those first that are still handled.
    Returns the consumer, and how many the other worker has got.
    """
    filled(own, 5, visibility_seconds=30)
    now, gate = [0.0], threading.Event()

    def handle(delivery: QueueDelivery) -> None:
        assert delivery.sequence < 4 or gate.wait(60)

    consumer = QueueConsumer(
        db.url, QUEUE, handler=handle, concurrency=2, prefetch=0, clock=lambda: now[0]
    )
    with running(consumer):
        wait_until(lambda: len(consumer.settler.outcomes) == 3, "they are done")
        wait_until(lambda: len(consumer.executor.under_way) == 2, "and it receives no more")
        pass_time(own, 31)
        others: list[Delivery] = []
        while all(each.event.sequence > 3 for each in others):
            others += receive(own)
        subscriptions.pause(own, QUEUE)  # so that the worker does not get its own events again
        now[0] += 0.005
        wait_until(lambda: not consumer.settler.outcomes, "the database was told")
        gate.set()
    acknowledge(own, others)
    return consumer, len(others)


@proves("a worker acknowledges in time")
def test_a_lost_claim_harms_no_other(db: ContractDatabase, own: Connection) -> None:
    """Guard: Settler._acknowledge_partly."""
    consumer, lost = _one_of_three_is_lost(db, own)
    assert (consumer.stats.events, consumer.stats.stale_commits) == (5 - lost, lost)
    assert queue.statistics(own, QUEUE).size == 0


@proves("a worker acknowledges in time", guard="the parts of a call")
@pytest.mark.long_on("mysql", "mariadb")
def test_without_the_parts_all_are_lost(
    db: ContractDatabase, own: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: a call that is refused is not made again for those that are good."""
    monkeypatch.setattr(Settler, "_acknowledge_partly", lambda *_: 0)
    consumer, lost = _one_of_three_is_lost(db, own)
    assert consumer.stats.events == 3 - lost
    assert queue.statistics(own, QUEUE).size > 0
