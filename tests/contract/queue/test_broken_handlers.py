"""Handlers that fail in odd ways: what their worker does then, and what other events notice."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from penstock.consumer.handlers.failures import HandlerFailed
from penstock.consumer.queue import delivery as queue_delivery
from penstock.consumer.queue.consumer import QueueConsumer
from penstock.consumer.queue.delivery import QueueDelivery
from penstock.subscriptions import queue
from penstock.subscriptions.verdicts import Verdict
from tests.contract.databases import ContractDatabase
from tests.kit.log import Connection, wait_until
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, filled, more, pass_time, rows
from tests.kit.stream import running


@proves("a worker of a queue goes on")
def test_a_reason_that_is_no_text_is_told_all_the_same(
    db: ContractDatabase, own: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """An error quotes a file name that is no UTF-8, and a zero byte.  Guard: reason_text."""
    caplog.set_level(logging.CRITICAL, "penstock")  # xdist cannot send such a log
    filled(own, 1)

    def handle(delivery: QueueDelivery) -> None:
        raise OSError("no file \udcff\0.txt")

    with pytest.raises(HandlerFailed):
        QueueConsumer(db.url, QUEUE, handler=handle).run_until_idle()
    ((reason,),) = rows(own, "SELECT reason FROM penstock.queue_waiting")
    assert reason == "OSError: no file ?\ufffd.txt"


@pytest.mark.parametrize("said", ["ok", {"sent": 1}, False, 7])
def test_what_a_handler_returns_besides_is_done_and_told_once(
    db: ContractDatabase, own: Connection, said: Any, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """It was a failure, so its effects came again.  Guard: Claim.say."""
    monkeypatch.setattr(queue_delivery, "_warned", set())
    filled(own, 3)
    assert QueueConsumer(db.url, QUEUE, handler=lambda _: said).run_until_idle() == 3
    assert not queue.statistics(own, QUEUE).size
    told = [each.getMessage() for each in caplog.records if "which says nothing" in each.msg]
    assert len(told) == 1 and type(said).__name__ in told[0] and QUEUE in told[0]


def test_a_verdict_that_was_not_made_is_a_failure(db: ContractDatabase, own: Connection) -> None:
    """`return queue.again` without the call: the handler wants it again."""
    filled(own, 2)
    given: list[Any] = [queue.again, Verdict]
    consumer = QueueConsumer(db.url, QUEUE, handler=lambda _: given[0])
    while given:
        with pytest.raises(HandlerFailed, match="returned no verdict"):
            consumer.run_until_idle()
        given.pop(0)
        pass_time(own, 100)
    assert queue.statistics(own, QUEUE).size == 2


@proves("a worker of a queue goes on")
def test_a_transaction_that_hangs_holds_up_no_other_event(
    db: ContractDatabase, own: Connection
) -> None:
    """Its claim is locked: the worker does not wait for it, and extends those of the others.

    Guard: is_locked in Settler._fail.
    """
    filled(own, 1, visibility_seconds=30)
    now, gate, begun = [0.0], threading.Event(), list[QueueDelivery]()

    def handle(delivery: QueueDelivery) -> None:
        if delivery.sequence == 1:
            with delivery.transaction():
                begun.append(delivery)
                assert gate.wait(60)
        else:
            begun.append(delivery)
            assert gate.wait(60)

    consumer = QueueConsumer(
        db.url, QUEUE, handler=handle, concurrency=2, prefetch=0, handler_seconds=16,
        idle_seconds=0.02, clock=lambda: now[0],
    )  # fmt: skip
    with running(consumer):
        wait_until(lambda: len(begun) == 1, "the first is in its transaction")
        now[0] = 10.0
        more(own, 1, start=2)
        wait_until(lambda: len(begun) == 2, "the second is under way")
        now[0] = 17.0
        wait_until(lambda: consumer.stats.timeouts == 1, "the first is given up")
        now[0] = 25.0
        wait_until(lambda: begun[1]._claim.unit.until > 40, "the second is extended", 8)
        gate.set()
        wait_until(lambda: not queue.statistics(own, QUEUE).size, "both are finished")
