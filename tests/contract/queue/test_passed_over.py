"""A queue that has dealt events which retention removes by the policy max_lag_seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ops.seal import seal
from penstock import database, subscriptions
from penstock.archive.targets import Target
from penstock.subscriptions import policies, queue, stream
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import Guard, without
from tests.kit.cleaning import clean_unread
from tests.kit.copies import copy_all
from tests.kit.log import drain, put
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, TOPIC, count, filled, pass_time, receipts

#: What was dealt and is gone stays in the window.
KEPT: Guard = {
    "postgres": ("turn_queue", "PERFORM drop_removed(queue, last.floor_id);", "NULL;"),
    "mysql": ("turn_queue", "CALL drop_removed(owner_id, floor_id, kept_order);", "DO 0;"),
}


def _passed_over(own: Any, target: Target, order: str) -> list[queue.Delivery]:
    """Ten of thirty events are gone that a queue has dealt; returns what somebody has of them."""
    filled(own, 0)
    queue.configure(own, QUEUE, order=order)
    for number in range(1, 31):
        put(own, str(number), key="k" if number % 2 else "l", name=TOPIC)
    drain(own)
    held = queue.receive(own, QUEUE, 4 if order == "none" else 1, visibility_seconds=1000)
    seal(own, TOPIC, max_events=10)
    copy_all(own, TOPIC, target)
    database.call(own, "set_retention", topic=TOPIC, minimum_age_seconds=0, copies=1,
                  origin="hand", max_bytes=None, targets=[target.name])  # fmt: skip
    ago = "sealed_at - INTERVAL '2' DAY"
    database.execute(own, f"UPDATE penstock.log_epochs SET sealed_at = {ago} WHERE log_epoch = 1")
    policies.set_policy(own, "keep", {"max_lag_seconds": 86_400}, scope="subscription", name=QUEUE)
    clean_unread(own, TOPIC)
    return held


def _all_that_comes(own: Any) -> list[int]:
    found: list[int] = []
    while True:
        pass_time(own, 10)
        deliveries = queue.receive(own, QUEUE, 100)
        if not deliveries:
            return found
        found += [each.event.sequence for each in deliveries]
        queue.acknowledge(own, QUEUE, receipts(deliveries))


@proves("D5 of what a queue has dealt")
@pytest.mark.parametrize("order", ["none", "key"])
def test_what_is_gone_is_skipped_and_not_handed_out(
    db: ContractDatabase, tmp_path: Path, order: str
) -> None:
    """Guard: drop_removed; a claim that somebody has stays good."""
    own = db.connect()
    held = _passed_over(own, Target("one", str(tmp_path)), order)
    assert [each.event.sequence for each in held] == ([1, 2, 3, 4] if order == "none" else [1])
    begun = _all_that_comes(own)
    queue.acknowledge(own, QUEUE, receipts(held))
    assert sorted(begun + _all_that_comes(own)) == list(range(11, 31))
    assert (count(own, "queue_ranges"), count(own, "queue_keys")) == (0, 0)
    assert stream.position(own, QUEUE, TOPIC) == {0: 30}
    assert queue.statistics(own, QUEUE).dead == 0
    (skip,) = subscriptions.skips(own, QUEUE)
    assert (skip.first_sequence, skip.last_sequence) == (1, 10)


@proves("D5 of what a queue has dealt", guard="drop_removed")
def test_without_that_claims_of_nothing_are_in_flight(db: ContractDatabase, tmp_path: Path) -> None:
    """Mutant: they come back when their time is over, as often as the policy says."""
    own = db.connect()
    held = _passed_over(own, Target("one", str(tmp_path)), "none")
    without(db, KEPT)
    queue.acknowledge(own, QUEUE, receipts(held))
    found = _all_that_comes(own)  # as long as MySQL has the rows, it hands them out
    assert found[0] < 11 or queue.statistics(own, QUEUE).in_flight > 0
