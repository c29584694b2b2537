"""Copies of dead letters: how long they are known, the order of locks, and what a topic refuses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import penstock
from ops.erase import What, erase
from penstock.database import calls
from penstock.errors import NotRedriven
from penstock.publishing.publish import publish
from penstock.subscriptions import dead_letters, forwarding, queue, stream
from penstock.subscriptions.queue import Delivery
from penstock.upkeep.sweeping import sweep
from tests.contract.databases import ContractDatabase
from tests.contract.failure_kit import keyed
from tests.contract.kit import count, open_transaction
from tests.contract.stream_kit import Guard, without
from tests.kit import queue as kit
from tests.kit.log import drain, topic
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, TOPIC
from tests.kit.stream import SUBSCRIPTION, member_with_lease

pytestmark = pytest.mark.mariadb_differs("the order of locks")

DEAD, OTHER = "tests/dead", "tests/other"
HOSPITAL = "hospital"

LOOKED_FOR: Guard = {
    "postgres": ("forget_letter_copies", "AND NOT j.is_there", ""),
    "mysql": ("forget_letter_copies", "ELSEIF is_there THEN", "ELSEIF FALSE THEN"),
}
IN_ORDER: Guard = {
    "postgres": (
        "lock_letters",
        "ORDER BY d.partition_id, d.sequence,",
        "ORDER BY CASE WHEN letter_ids IS NULL THEN d.sequence ELSE -d.sequence END,",
    ),
    "mysql": (
        "lock_letters",
        "f.id ORDER BY f.partition_id, f.sequence, f.history",
        "f.id ORDER BY f.id",
    ),
}
OWNER_FIRST: Guard = {
    "postgres": (
        "move_letters",
        "PERFORM lock_letters_of(copies, topic IS NOT NULL, asked_by);",
        "",
    ),
    "mysql": ("move_letters", "CALL lock_letters_of(pieces, topic IS NOT NULL, asked_by);", ""),
}


def _buried(db: ContractDatabase, *payloads: bytes) -> Any:
    """Events of a queue died in the reverse of their order, and their copies lie in DEAD."""
    own = db.connect()
    kit.filled(own, 0, max_failures=1)
    topic(own, 1, DEAD)
    topic(own, 1, OTHER)
    queue.subscribe(own, HOSPITAL, [DEAD])
    forwarding.set_dead_letters_to(own, QUEUE, DEAD)
    for payload in payloads:
        publish(own, TOPIC, payload, key="k")
    drain(own)
    kit.pass_time(own, 1)
    held = queue.receive(own, QUEUE, len(payloads))
    for each in sorted(held, key=lambda each: -each.event.sequence):
        queue.reject(own, QUEUE, [each.receipt], reason="no")
    return own


def _copies(own: Any) -> list[Delivery]:
    drain(own)
    kit.pass_time(own, 1)
    return queue.receive(own, HOSPITAL, 10)


def _are_due(db: ContractDatabase) -> None:
    db.run("UPDATE penstock.letter_copies SET look_at = '2000-01-01'")


@proves("dead letters that go on")
def test_what_is_known_of_a_copy_goes_after_the_copy(db: ContractDatabase) -> None:
    """Not while the log has it, or a reader of its topic; some at a time."""
    own = _buried(db, b"1", b"2")
    assert sweep(own).forgotten_copies == 0
    _are_due(db)
    assert sweep(own).forgotten_copies == 0
    assert db.run("SELECT COUNT(*) FROM penstock.letter_copies WHERE look_at < '2001-01-01'") == [
        (0,)
    ]
    copies = _copies(own)
    queue.reject(own, HOSPITAL, kit.receipts(copies), delay_seconds=60)
    db.run("DELETE FROM penstock.events WHERE partition_id >= 2 * 65536")
    _are_due(db)
    assert sweep(own).forgotten_copies == 0
    kit.pass_time(own, 100)
    queue.acknowledge(own, HOSPITAL, kit.receipts(queue.receive(own, HOSPITAL, 10)))
    _are_due(db)
    assert [sweep(own, 1).forgotten_copies for _ in range(3)] == [1, 1, 0]
    assert count(db, "letter_copies") == 0


@proves("dead letters that go on", guard="the look before a copy is forgotten")
def test_without_the_look_an_erasure_does_not_find_it(db: ContractDatabase) -> None:
    """Mutant: what is due goes, and the copy stays."""
    own = _buried(db, b"1")
    drain(own)
    without(db, LOOKED_FOR)
    _are_due(db)
    sweep(own)
    assert count(db, "letter_copies") == 0
    assert erase(db.url, What(TOPIC, key="k"), "art. 17", []).copies == 0


def test_a_copy_whose_letter_waits_again_can_be_ended(db: ContractDatabase) -> None:
    """It was read again and waits behind its key: the letter does not point to the copy."""
    own = keyed(db, "a1 a2")
    topic(own, 1, DEAD)
    queue.subscribe(own, HOSPITAL, [DEAD])
    forwarding.set_dead_letters_to(own, SUBSCRIPTION, DEAD)
    member, lease = member_with_lease(own, "a")
    stream.commit(own, member, [(lease, 1)])
    dead_letters.give_up(own, member, lease, 2, "no", attempts=1)
    stream.leave(own, member)
    stream.seek(own, SUBSCRIPTION, lease.topic, lease.partition, "earliest")
    member, lease = member_with_lease(own, "b")
    dead_letters.give_up(own, member, lease, 1, "no", attempts=1, park=True)
    dead_letters.commit_parking(own, member, lease, 2, after=1, sequences=[2])
    old, new = sorted(
        _copies(own), key=lambda each: -each.event.headers["penstock-letter-sequence"]
    )
    assert forwarding.move(own, HOSPITAL, [old.receipt]) == 1
    assert dead_letters.counts(own, SUBSCRIPTION)[0].parked == 2
    assert forwarding.move(own, HOSPITAL, [new.receipt]) == 1
    assert dead_letters.counts(own, SUBSCRIPTION)[0].redriven == 2


def _crossed(db: ContractDatabase, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A move and a redrive of three letters, while somebody holds the second; what became of it."""
    monkeypatch.setattr(calls, "_TRIES", 1)
    own = _buried(db, b"1", b"2", b"3")
    copies = _copies(own)
    middle = sorted(each.id for each in dead_letters.dead_letters(own, QUEUE))[1]
    with ThreadPoolExecutor(2) as pool:
        mine, other = db.connect(), db.connect()
        with open_transaction(db) as first:
            dead_letters.drop(first, QUEUE, [middle])
            move = pool.submit(forwarding.move, mine, HOSPITAL, kit.receipts(copies))
            db.wait_until_blocked(mine)
            redrive = pool.submit(dead_letters.redrive, other, QUEUE)
            db.wait_until_blocked(other)
            first.rollback()
        found: list[object] = [each.exception() or each.result() for each in (move, redrive)]
        mine.close()
        other.close()
    return found


@proves("dead letters that go on")
def test_a_move_and_a_redrive_take_letters_in_one_order(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: the order of lock_letters.  Whoever comes second finds nothing left to redrive."""
    assert _crossed(db, monkeypatch) == [3, 0]


@proves("dead letters that go on", guard="one order of locks")
def test_without_that_order_they_are_in_a_deadlock(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: letters that are named are locked in another order than all."""
    without(db, IN_ORDER)
    found = _crossed(db, monkeypatch)
    assert any("eadlock" in str(each) for each in found), found


@proves("dead letters that go on", guard="one order of locks")
def test_without_the_owner_first_a_deletion_meets_a_move(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the move looks at letters before the deletion has ended; they are in a deadlock."""
    without(db, OWNER_FIRST)
    refused, _ = _deleted_at_once(db, monkeypatch)
    assert not isinstance(refused, NotRedriven)


def _deleted_at_once(db: ContractDatabase, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The topic of the letters is deleted, with its readers, while a move takes a letter back."""
    monkeypatch.setattr(calls, "_TRIES", 1)
    own = _buried(db, b"1", b"2")
    copies = _copies(own)
    letters = {each.sequence: each.id for each in dead_letters.dead_letters(own, QUEUE)}
    (last,) = [
        each.receipt for each in copies if each.event.headers["penstock-letter-sequence"] == 2
    ]
    with ThreadPoolExecutor(2) as pool:
        mine, other = db.connect(), db.connect()
        with open_transaction(db) as first:
            dead_letters.drop(first, QUEUE, [letters[1]])
            deletion = pool.submit(penstock.delete_topic, other, TOPIC, with_subscriptions=True)
            db.wait_until_blocked(other)
            move = pool.submit(forwarding.move, mine, HOSPITAL, [last])
            db.wait_until_blocked(mine)
            first.rollback()
        found: list[object] = [move.exception() or move.result(), deletion.exception()]
        mine.close()
        other.close()
    return found


def test_a_move_waits_for_a_deletion_before_it_has_a_letter(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: the subscription comes first.  Then the letter is gone, and the copy stays."""
    refused, none = _deleted_at_once(db, monkeypatch)
    assert isinstance(refused, NotRedriven)
    assert none is None


@proves("dead letters that go on")
def test_one_copy_that_a_topic_does_not_take_stays_alone(db: ContractDatabase) -> None:
    """It is put back, the rest goes on, and the result says how many stayed, and why."""
    own = _buried(db, b"1", b"too large", b"3")
    drain(own)
    kit.pass_time(own, 1)
    db.run(f"UPDATE penstock.topics SET max_payload_bytes = 4 WHERE address = '{OTHER}'")
    done = forwarding.move_all(own, HOSPITAL, to=OTHER)
    assert (done.moved, done.left) == (2, 1)
    (reason,) = done.reasons
    assert "the limit is 4" in reason
    (left,) = queue.receive(own, HOSPITAL, 10)
    assert (left.event.payload, left.deliveries) == (b"too large", 1)
