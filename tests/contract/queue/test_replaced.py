"""Receipts whose rows were replaced: by the sweep while somebody waits, and by another history."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from penstock import database
from penstock.errors import StaleReceipt
from penstock.log import histories
from penstock.subscriptions import queue
from tests.contract.databases import ContractDatabase
from tests.kit.log import Connection
from tests.kit.proof import proves
from tests.kit.queue import (
    QUEUE,
    filled,
    more,
    mutated,
    pass_time,
    receipts,
    receive,
    rows,
    texts,
)

#: The sweep of a queue that a test ends itself; moving takes what is far below the first free row.
SWEEPS = {
    "postgres": {
        "end": "SELECT end_claims(q, 0, clock_timestamp()) FROM queues AS q",
        "move": "SELECT move_claims(q.subscription_id, t, '-infinity')"
        " FROM queues AS q, queue_turns AS t WHERE t.id = (SELECT max(id) FROM queue_turns)",
    },
    "mysql": {
        "end": "CALL end_claims({owner}, 0, UTC_TIMESTAMP(6), @has_more)",
        "move": "CALL move_claims({owner}, 0, '2000-01-01')",
    },
}


def _sweep(connection: Connection, what: str) -> None:
    kind = database.dialect_of(connection)
    if kind == "postgres":
        database.execute(connection, "SET LOCAL search_path = penstock, public")
    else:
        database.execute(connection, "USE penstock")
    owner = rows(connection, "SELECT subscription_id FROM penstock.queues")[0][0]
    database.execute(connection, SWEEPS[kind][what].format(owner=owner))


def _late_while_it_is_swept(db: ContractDatabase, own: Connection) -> list[bool]:
    """The answers for a claim that was moved, and is freed while its acknowledgement waits."""
    filled(own, 3)
    held = receive(own, 2, visibility_seconds=10)
    # A server has given out more ids for the tests before this one than a new queue knows of.
    highest = "(SELECT max(r.id) FROM penstock.queue_ranges AS r)"
    database.execute(own, f"UPDATE penstock.queue_turns SET free_id = {highest} + 6000")
    answers: list[bool] = []
    with closing(db.connect(autocommit=False)) as sweeper, closing(db.connect()) as late:
        _sweep(sweeper, "move")
        sweeper.commit()
        pass_time(own, 20)
        _sweep(sweeper, "end")
        given = receipts(held)

        def acknowledge() -> None:
            try:
                answers.extend(queue.acknowledge(late, QUEUE, given))
            except StaleReceipt:
                answers.extend([False] * len(given))

        waiting = threading.Thread(target=acknowledge)
        waiting.start()
        db.wait_until_blocked(late)
        sweeper.commit()
        waiting.join()
    return answers


@proves("receipts whose rows were replaced")
def test_a_late_receipt_outlives_the_sweep_of_a_moved_claim(
    db: ContractDatabase, own: Connection
) -> None:
    """Guard: who waited looks again, because what it waited for was written anew."""
    assert _late_while_it_is_swept(db, own) == [True, True]


@proves("receipts whose rows were replaced", guard="another look")
def test_without_another_look_it_is_refused(db: ContractDatabase, own: Connection) -> None:
    """Mutant: one look."""
    change = [("FOR look IN 1..3", "FOR look IN 1..1")]
    tries = [("OR tries >= 10", "OR TRUE")]
    mutated(db, {"postgres": ("lock_receipts", change), "mysql": ("lock_receipts", tries)})
    assert _late_while_it_is_swept(db, own) == [False, False]


def _of_two_histories(db: ContractDatabase, own: Connection) -> list[tuple[str, str]]:
    """What two receipts of one sequence were for, and what their extended ones finish."""
    filled(own, 1)
    more(own, 1, start=2)
    held = receive(own, 2)
    queue.reject(own, QUEUE, [held[1].receipt], delay_seconds=1)
    db.run("DELETE FROM penstock.chunks WHERE first_sequence = 2")
    db.run("DELETE FROM penstock.events WHERE payload = '2'")
    histories.reconcile(own, "the last commit was lost")
    more(own, 1, start=7)
    pass_time(own, 20)
    two = [each for _ in range(3) for each in receive(own, 5) if each.event.sequence == 2]
    assert sorted(texts(two)) == ["2", "7"]
    new = queue.extend(own, QUEUE, receipts(two), 100)
    found = []
    for delivery, receipt in zip(two, new, strict=True):
        before = {each.event.payload for each in queue.peek(own, QUEUE)}
        queue.acknowledge(own, QUEUE, [receipt])
        (gone,) = before - {each.event.payload for each in queue.peek(own, QUEUE)}
        found.append((delivery.event.payload.decode(), gone.decode()))
    return found


@proves("receipts whose rows were replaced")
def test_receipts_of_two_histories_are_not_mixed_up(db: ContractDatabase, own: Connection) -> None:
    """After a restore a copy and another event have one sequence.  Guard: the copy is compared."""
    assert sorted(_of_two_histories(db, own)) == [("2", "2"), ("7", "7")]


@proves("receipts whose rows were replaced", guard="the copy")
def test_without_the_copy_they_are(db: ContractDatabase, own: Connection) -> None:
    """Mutant: the sequence alone."""
    of_postgres = [("AND p.waiting_id IS NOT DISTINCT FROM n.waiting_id", "")]
    of_mysql = [("AND p.waiting_id = n.waiting_id", "")]
    mutated(db, {"postgres": ("extend", of_postgres), "mysql": ("claim_pieces", of_mysql)})
    with pytest.raises((AssertionError, ValueError, StaleReceipt)):
        assert sorted(_of_two_histories(db, own)) == [("2", "2"), ("7", "7")]
