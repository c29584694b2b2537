"""Handlers that fail in odd ways: what their worker does then, and what other events notice."""

from __future__ import annotations

import logging
import threading

import pytest

from penstock.consumer.delivery import HandlerFailed
from penstock.consumer.queue_consumer import QueueConsumer
from penstock.consumer.queue_delivery import QueueDelivery
from penstock.subscriptions import queue
from tests.contract.databases import ContractDatabase
from tests.kit.log import Connection, wait_until
from tests.kit.queue import QUEUE, filled, more, rows
from tests.kit.stream import running


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
