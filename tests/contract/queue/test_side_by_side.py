"""Handlers that finish events of one batch in transactions of their own run at once."""

from __future__ import annotations

import contextlib
import threading

import pytest

from penstock.consumer.queue.consumer import QueueConsumer
from penstock.consumer.queue.delivery import QueueDelivery
from penstock.subscriptions import queue
from tests.contract.databases import ContractDatabase
from tests.contract.queue.test_workers import consumer_of, effects, write, written
from tests.kit.log import Connection
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, filled, pass_time, receipts, receive, texts

pytestmark = pytest.mark.mariadb_differs("rows that others have locked are passed over")

HANDLERS = 4


def _most_in_transactions(db: ContractDatabase, own: Connection, patience: float) -> int:
    """Of the handlers of one batch; each waits in its transaction for the others."""
    filled(own, HANDLERS)
    effects(own)
    together = threading.Barrier(HANDLERS)
    lock, inside, most = threading.Lock(), 0, 0

    def handle(delivery: QueueDelivery) -> None:
        nonlocal inside, most
        with delivery.transaction() as connection:
            with lock:
                inside += 1
                most = max(most, inside)
            with contextlib.suppress(threading.BrokenBarrierError):
                together.wait(patience)
            write(connection, int(delivery.payload))
            with lock:
                inside -= 1

    consumer = consumer_of(db, handle, concurrency=HANDLERS, prefetch=6)  # a receive of 10
    assert consumer.run_until_idle() == HANDLERS
    assert written(own) == [1, 2, 3, 4]
    return most


@proves("handlers in transactions run at once")
def test_transactions_of_one_batch_run_at_once(db: ContractDatabase, own: Connection) -> None:
    """Guard: the worker gives each event a claim of its own."""
    assert _most_in_transactions(db, own, 20) == HANDLERS


@proves("handlers in transactions run at once", guard="claims of their own")
def test_without_claims_of_their_own_they_wait_for_each_other(
    db: ContractDatabase, own: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: one claim for all, which each transaction locks."""
    monkeypatch.setattr(QueueConsumer, "_part", lambda *_: None)
    assert _most_in_transactions(db, own, 0.1) == 1


def test_who_uses_no_transactions_keeps_whole_claims(db: ContractDatabase, own: Connection) -> None:
    """Then a batch is one row, and its end is one row.  Only the first one was parted."""
    filled(own, 30)
    claims: list[int] = []

    def handle(delivery: QueueDelivery) -> None:
        claims.append(delivery._claim.unit.receipt.claim)

    assert consumer_of(db, handle, prefetch=9).run_until_idle() == 30
    assert len(set(claims[:5])) == 5
    assert len(set(claims[-5:])) == 1


def test_extended_apart_each_has_its_own_claim(own: Connection) -> None:
    """All receipts are new, and good until they are used; the old ones are spent."""
    filled(own, 6)
    held = receive(own, 5, visibility_seconds=10)
    new = queue.extend(own, QUEUE, receipts(held), 100, apart=True)
    assert [each.sequence for each in new] == [1, 2, 3, 4, 5]
    assert len({each.claim for each in new}) == 5
    assert queue.acknowledge(own, QUEUE, receipts(held), partly=True) == [False] * 5
    pass_time(own, 50)
    assert texts(receive(own, 5)) == ["6"]
    assert queue.acknowledge(own, QUEUE, new) == [True] * 5
