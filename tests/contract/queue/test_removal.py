"""A removed queue: its name is free at once, and its rows go in bounded batches (C-F15)."""

from __future__ import annotations

from contextlib import closing

import pytest

from penstock import database
from penstock.errors import InvalidArgument, StaleReceipt, SubscriptionNotFound
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.subscriptions import dead_letters, queue, stream
from penstock.upkeep.sweeping import sweep
from tests.contract.databases import ContractDatabase
from tests.kit.log import Connection, drain
from tests.kit.queue import (
    QUEUE,
    TOPIC,
    acknowledge,
    count,
    filled,
    mutated,
    receipts,
    receive,
    rows,
    texts,
)

#: How many rows unsubscribe itself deletes.
FIRST = 1000

#: The look for ranges; nothing else is left in these tests.
GUARD = {
    "postgres": (
        "end_removal",
        [("AND NOT EXISTS (SELECT FROM queue_ranges AS r WHERE r.subscription_id = owner_id)", "")],
    ),
    "mysql": ("end_removal", [("IF NOT is_left THEN", "IF TRUE THEN")]),
}


def leftovers(own: Connection, max_rows: int) -> int:
    """One batch; returns how many rows it deleted."""
    ((removed,),) = database.call(own, "remove_leftovers", max_rows=max_rows)
    return int(removed)


def test_a_large_queue_goes_in_batches(own: Connection) -> None:
    """Its name is free at once, the new queue keeps what it has, old receipts are refused."""
    filled(own, FIRST + 220, max_failures=1)
    held: list[queue.Delivery] = []
    while more := receive(own, 500):
        held += more
    queue.reject(own, QUEUE, receipts(held[:10]))
    queue.configure(own, QUEUE, max_failures=5)
    queue.reject(own, QUEUE, receipts(held[20:]), delay_seconds=1000)
    assert (count(own, "dead_letters"), count(own, "queue_waiting")) == (10, FIRST + 200)
    stream.unsubscribe(own, QUEUE)
    left = count(own, "queue_waiting") + count(own, "dead_letters")
    assert 200 <= left < FIRST
    with pytest.raises(SubscriptionNotFound):
        queue.statistics(own, QUEUE)
    queue.subscribe(own, QUEUE, [TOPIC])
    (first, second) = receive(own, 2)
    assert texts([first, second]) == ["1", "2"]
    queue.reject(own, QUEUE, [first.receipt], delay_seconds=1000)
    with pytest.raises(StaleReceipt):
        acknowledge(own, held[10:11])
    assert dead_letters.dead_letters(own, QUEUE) == []
    assert [leftovers(own, left - 50), leftovers(own, 100), leftovers(own, 100)] == [
        left - 50, 50, 0,
    ]  # fmt: skip
    assert (count(own, "removals"), count(own, "queue_waiting")) == (0, 1)
    acknowledge(own, [second])
    assert queue.statistics(own, QUEUE) == queue.QueueStatistics(FIRST + 219, FIRST + 218, 0, 1, 0)


def test_a_sweep_removes_what_is_left(own: Connection) -> None:
    """Batch by batch until nothing is left."""
    filled(own, FIRST + 30, max_failures=1)
    while held := receive(own, 500):
        queue.reject(own, QUEUE, receipts(held))
    left = count(own, "dead_letters") - FIRST
    stream.unsubscribe(own, QUEUE)
    assert (count(own, "dead_letters"), left) == (left, 30)
    assert (sweep(own, 7).leftover_rows, count(own, "removals")) == (left, 0)
    assert sweep(own, 7).leftover_rows == 0
    with pytest.raises(InvalidArgument):
        leftovers(own, 0)


def stays_locked(db: ContractDatabase, own: Connection) -> int:
    """A worker finishes one of three events while its queue goes: how many rows stay for good."""
    filled(own, 3)
    held = receive(own, 3)
    with closing(db.connect(autocommit=False)) as worker:
        queue.acknowledge(worker, QUEUE, [held[1].receipt])
        stream.unsubscribe(own, QUEUE)  # waits for nobody
        assert leftovers(own, 100) == 0
        worker.commit()
    leftovers(own, 100)
    return count(own, "queue_ranges")


def test_what_a_worker_still_writes_goes_too(db: ContractDatabase, own: Connection) -> None:
    """Guard: the look in end_removal, by one statement."""
    assert stays_locked(db, own) == 0
    assert count(own, "removals") == 0


@pytest.mark.long_on("mariadb")
def test_without_the_look_it_stays(db: ContractDatabase, own: Connection) -> None:
    """Mutant: a removal ends although rows are left."""
    mutated(db, GUARD)
    assert stays_locked(db, own) > 0


def test_a_key_order_goes_whole(own: Connection) -> None:
    """The keys of a queue, and the record of its purges."""
    filled(own, 0)
    queue.configure(own, QUEUE, order="key")
    _keyed(own, 40)
    receive(own, 5)
    queue.purge(own, QUEUE)
    _keyed(own, 20)
    receive(own, 5)
    assert count(own, "queue_keys") and count(own, "queue_purges")
    stream.unsubscribe(own, QUEUE)
    sweep(own)
    for table in ("queue_ranges", "queue_keys", "queue_purges", "removals"):
        assert count(own, table) == 0, table
    assert rows(own, "SELECT name FROM penstock.subscriptions") == []


def _keyed(own: Connection, events: int) -> None:
    publish_batch(own, [Message(TOPIC, b"x", key=f"{number % 3}") for number in range(events)])
    drain(own)
