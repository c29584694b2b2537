"""When events come again that were handed out before: how many at a time, and after which."""

from __future__ import annotations

import pytest

from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.subscriptions import queue
from tests.contract.databases import ContractDatabase
from tests.kit.log import Connection, drain, topic
from tests.kit.proof import proves
from tests.kit.queue import (
    QUEUE,
    TOPIC,
    acknowledge,
    filled,
    mutated,
    pass_time,
    receipts,
    receive,
    texts,
)

#: How many were in hand of workers that died, each with a claim of its own.
HELD = 700
#: One turn takes so few claims that have ended that more are left.
FEW = {
    "postgres": ("end_claims", [
        ("LIMIT 5000", "LIMIT 100"), ("n.before < 5000", "n.before < 100"),
        ("done >= 5000", "done >= 100")]),
    "mysql": ("end_claims", [
        ("LIMIT 5000", "LIMIT 100"), ("o.work_before < 5000", "o.work_before < 100"),
        ("o.work), 0) >= 5000", "o.work), 0) >= 100")]),
}  # fmt: skip


def _after_they_died(own: Connection) -> list[str]:
    """What comes at once after the claims of all workers have ended together."""
    filled(own, HELD)
    held = receive(own, HELD)
    queue.extend(own, QUEUE, receipts(held), 30, apart=True)
    pass_time(own, 60)
    found: list[str] = []
    while came := queue.receive(own, QUEUE, 100, visibility_seconds=1000):
        found += texts(came)
    return found


@proves("what comes back to a queue comes soon")
def test_what_a_dead_fleet_had_comes_back_at_once(own: Connection) -> None:
    """The oldest first.  No turn rests while there is more."""
    assert _after_they_died(own) == [str(number) for number in range(1, HELD + 1)]


@proves("what comes back to a queue comes soon")
def test_no_turn_rests_while_more_has_ended(db: ContractDatabase, own: Connection) -> None:
    mutated(db, FEW)
    assert len(_after_they_died(own)) == HELD


@proves("what comes back to a queue comes soon", guard="the rest")
@pytest.mark.long_on("mariadb")
def test_without_that_they_trickle(db: ContractDatabase, own: Connection) -> None:
    """Mutant: each turn rests.  Between two calls not even the shortest rest is over."""
    mutated(db, FEW)
    mutated(db, {
        "postgres": ("turn_queue", [("WHEN has_more THEN begun", "WHEN false THEN begun")]),
        "mysql": ("turn_queue", [("IF(has_more, present,", "IF(FALSE, present,")]),
    })  # fmt: skip
    assert len(_after_they_died(own)) < HELD


def _before_they_come_again(own: Connection) -> int:
    """How many others come before the last of four events, each put back in another way."""
    filled(own, 1000)
    released, extended, rejected, _ = (receive(own)[0].receipt for _ in range(4))
    queue.release(own, QUEUE, [released])
    queue.extend(own, QUEUE, [extended], 0)
    queue.reject(own, QUEUE, [rejected], delay_seconds=0)
    pass_time(own, 60)
    order: list[int] = []
    while not {1, 2, 3, 4} <= {*order}:
        came = receive(own, 100)
        order += [each.event.sequence for each in came]
        acknowledge(own, came)
    return max(order.index(number) for number in range(1, 5)) - 3


@proves("what comes back to a queue comes soon")
def test_what_comes_back_waits_for_a_bounded_number(own: Connection) -> None:
    """What was dealt by then, which is 400 batches.  Nothing that is dealt later is before it."""
    assert _before_they_come_again(own) <= 400


@proves("what comes back to a queue comes soon", guard="the window")
@pytest.mark.long_on("mariadb")
def test_without_the_bound_it_waits_for_all(db: ContractDatabase, own: Connection) -> None:
    """Mutant: as much is dealt ahead for small batches as for large ones."""
    mutated(db, {
        "postgres": ("turn_queue", [("LEAST(400 * range_size, 20000)", "20000")]),
        "mysql": ("turn_queue", [("LEAST(400 * wanted_size, 20000)", "20000")]),
    })  # fmt: skip
    assert _before_they_come_again(own) > 900


#: One turn brings so few events back that are due, or whose key is free, that more are left.
FEW_LETTERS = {
    "none": {
        "postgres": ("turn_queue", [
            ("queue.max_in_flight - seen.events, 1000)", "queue.max_in_flight - seen.events, 10)"),
            ("brought >= 1000", "brought >= 10")]),
        "mysql": ("turn_queue", [
            ("LEAST(most - events, 1000)", "LEAST(most - events, 10)"),
            ("brought >= 1000", "brought >= 10")]),
    },
    "key": {
        "postgres": ("settle_keys", [
            ("LIMIT 1000)", "LIMIT 10)"), ("settled_keys >= 1000", "settled_keys >= 10")]),
        "mysql": ("settle_keys", [
            ("has_first, 10000, 1000)", "has_first, 10000, 10)"),
            ("ended_keys >= 1000", "ended_keys >= 10")]),
    },
}  # fmt: skip


@proves("what comes back to a queue comes soon")
@pytest.mark.parametrize("order", ["none", "key"])
def test_redriven_letters_come_without_a_rest(
    db: ContractDatabase, own: Connection, order: str
) -> None:
    """Nor does a turn rest while more is due, or while more keys are free, than it takes."""
    mutated(db, FEW_LETTERS[order])
    topic(own, 1, TOPIC)
    queue.subscribe(own, QUEUE, [TOPIC])
    queue.configure(own, QUEUE, order=order, max_failures=1)
    publish_batch(own, [Message(TOPIC, b"", key=str(number)) for number in range(95)])
    drain(own)
    queue.reject(own, QUEUE, receipts(receive(own, 95)))
    assert queue.redrive(own, QUEUE) == 95
    pass_time(own, 60)
    found = 0
    while came := queue.receive(own, QUEUE, 10, visibility_seconds=1000):
        found += len(came)
    assert found == 95
