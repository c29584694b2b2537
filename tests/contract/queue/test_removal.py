"""A removed queue: its name is free at once, and its rows go in bounded batches (C-F15)."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import pytest

from penstock import database, subscriptions
from penstock.doctor.findings import Finding, Limits
from penstock.doctor.removals import examine_removals
from penstock.errors import InvalidArgument, StaleReceipt, SubscriptionNotFound
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.subscriptions import dead_letters, queue, stream
from penstock.upkeep.sweeping import sweep
from tests import command
from tests.contract.databases import ContractDatabase
from tests.kit.log import Connection, drain
from tests.kit.proof import proves
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


@proves("a removed queue leaves nothing")
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


@proves("a removed queue leaves nothing")
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


@proves("a removed queue leaves nothing")
def test_what_a_worker_still_writes_goes_too(db: ContractDatabase, own: Connection) -> None:
    """Guard: the look in end_removal, by one statement."""
    assert stays_locked(db, own) == 0
    assert count(own, "removals") == 0


@proves("a removed queue leaves nothing", guard="the look in end_removal")
@pytest.mark.long_on("mariadb")
def test_without_the_look_it_stays(db: ContractDatabase, own: Connection) -> None:
    """Mutant: a removal ends although rows are left."""
    mutated(db, GUARD)
    assert stays_locked(db, own) > 0


def _standing(db: ContractDatabase, own: Connection) -> list[Finding]:
    """Findings on a removal that a worker holds up, an hour after the last row was deleted."""
    filled(own, 3)
    held = receive(own, 3)
    assert (subscriptions.removals(own), examine_removals(own, Limits())) == ([], [])
    with closing(db.connect(autocommit=False)) as worker:
        queue.acknowledge(worker, QUEUE, [held[1].receipt])
        stream.unsubscribe(own, QUEUE)
        (left,) = subscriptions.removals(own)
        assert (left.subscription, left.rows_left) == (QUEUE, 1)
        assert examine_removals(own, Limits()) == []
        _an_hour_passes(own)
        assert leftovers(own, 100) == 0
        found = examine_removals(own, Limits())
        worker.rollback()
    return found


def _an_hour_passes(own: Connection) -> None:
    ago = "clock_timestamp() - interval '1 hour'"
    if database.dialect_of(own) == "mysql":
        ago = "UTC_TIMESTAMP(6) - INTERVAL 1 HOUR"
    database.execute(own, f"UPDATE penstock.removals SET moved_at = {ago}, removed_at = {ago}")


@proves("a removed queue leaves nothing", how="one that stands still is told")
def test_what_is_being_removed_is_shown(
    db: ContractDatabase, own: Connection, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """How much is left, and that it stands still; the command that the doctor names ends that."""
    (finding,) = _standing(db, own)
    assert finding.check == "removal"
    assert "stands still for 60 minutes, and 1 of its rows are left: nobody sweeps" in finding.what
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", db.url)
    run = partial(command.run, capsys)
    (shown,) = run("subscription", "removals", "-o", "json").json
    assert (shown["subscription"], shown["rows_left"]) == (QUEUE, 1)
    _, *arguments = finding.command.partition("  #")[0].split()
    assert run(*arguments).code == 0
    assert subscriptions.removals(own) == []


@proves("a removed queue leaves nothing", how="one that stands still is told")
def test_a_removal_that_moves_on_is_no_finding(own: Connection) -> None:
    """Guard: remove_leftovers notes when it has deleted something.  Rows are counted to 1,000."""
    filled(own, 2 * FIRST + 20, max_failures=1)
    while held := receive(own, 500):
        queue.reject(own, QUEUE, receipts(held))
    stream.unsubscribe(own, QUEUE)
    _an_hour_passes(own)
    assert len(examine_removals(own, Limits())) == 1
    assert leftovers(own, 5) == 5
    (left,) = subscriptions.removals(own)
    assert (left.rows_left, examine_removals(own, Limits())) == (1000, [])


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
