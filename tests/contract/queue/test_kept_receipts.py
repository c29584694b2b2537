"""Receipts that stay good when their events get more time: SQS clients hold on to them."""

from __future__ import annotations

import pytest

from penstock.errors import StaleReceipt
from penstock.subscriptions import queue
from penstock.subscriptions.queue import Receipt
from tests.contract.databases import ContractDatabase
from tests.kit.log import Connection
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, filled, pass_time, receive, texts


def acknowledge(own: Connection, receipts: list[Receipt]) -> None:
    queue.acknowledge(own, QUEUE, receipts)


def keep(own: Connection, receipts: list[Receipt], seconds: float = 1000) -> None:
    assert queue.extend(own, QUEUE, receipts, seconds, keeps_receipts=True) == receipts


def test_one_of_ten_is_extended_another_finished_and_the_others_come_back(own: Connection) -> None:
    filled(own, 10)
    held = [each.receipt for each in receive(own, 10, visibility_seconds=100)]
    keep(own, [held[3]])
    acknowledge(own, [held[5]])
    pass_time(own, 200)
    again = [text for _ in range(8) for text in texts(receive(own, 8, visibility_seconds=5000))]
    assert len(again) == 8
    # The one that was extended is still its holder's, by the receipt of before.
    keep(own, [held[3]], 2000)
    pass_time(own, 1500)
    assert receive(own) == []
    acknowledge(own, [held[3]])
    for each in held:
        with pytest.raises(StaleReceipt):
            acknowledge(own, [each])


def test_all_receipts_of_a_claim_finish_it_together_with_what_was_extended(
    own: Connection,
) -> None:
    filled(own, 10)
    held = [each.receipt for each in receive(own, 10, visibility_seconds=100)]
    keep(own, held[2:4])
    keep(own, held[2:3])
    keep(own, held[7:8])
    # As one range, as single ones, and twice.
    acknowledge(own, held[:5])
    for each in held[5:]:
        acknowledge(own, [each])
    assert queue.statistics(own, QUEUE).size == 0
    with pytest.raises(StaleReceipt):
        acknowledge(own, held[2:3])


def test_a_claim_that_was_extended_whole_is_finished_by_its_receipts(own: Connection) -> None:
    filled(own, 3)
    held = [each.receipt for each in receive(own, 3, visibility_seconds=100)]
    keep(own, held)
    pass_time(own, 200)
    assert receive(own) == []
    acknowledge(own, held)
    assert queue.statistics(own, QUEUE).size == 0


@proves("a handle of SQS")
def test_after_its_time_a_kept_receipt_is_good_until_the_next_hand_out(own: Connection) -> None:
    filled(own, 2)
    first, second = (each.receipt for each in receive(own, 2, visibility_seconds=100))
    keep(own, [first], 200)
    keep(own, [second], 200)
    pass_time(own, 300)
    (late,) = receive(own, visibility_seconds=5000)
    handed_out = [first, second][int(late.event.payload) - 1]
    with pytest.raises(StaleReceipt):
        keep(own, [handed_out])
    other = second if handed_out is first else first
    acknowledge(own, [other])


def test_putting_back_spends_the_receipt_and_a_body_is_kept(own: Connection) -> None:
    filled(own, 1)
    (held,) = receive(own, visibility_seconds=100)
    assert queue.extend(own, QUEUE, [held.receipt], 100, body=b"b", keeps_receipts=True)
    keep(own, [held.receipt])
    assert queue.extend(own, QUEUE, [held.receipt], 0, keeps_receipts=True) == []
    (again,) = receive(own, visibility_seconds=100)
    assert (again.event.payload, again.deliveries) == (b"b", 2)
    with pytest.raises(StaleReceipt):
        acknowledge(own, [held.receipt])


@proves("a handle of SQS", guard="the look at what was taken out")
def test_without_a_look_at_what_was_taken_out_the_receipt_is_stale(
    db: ContractDatabase, own: Connection
) -> None:
    if db.engine != "postgres":
        pytest.skip("the others always look")
    db.without_guard(
        "lock_receipts",
        "OR EXISTS (SELECT FROM unnest(locked) AS r WHERE r.finished IS NOT NULL)",
        "",
    )
    filled(own, 3)
    held = [each.receipt for each in receive(own, 3, visibility_seconds=100)]
    keep(own, held[:1])
    with pytest.raises(StaleReceipt):
        acknowledge(own, held[:1])
