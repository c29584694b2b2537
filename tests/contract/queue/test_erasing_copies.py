"""An erasure of what a queue has copied, while a worker buries or finishes the copies."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from penstock import database
from penstock.database import calls
from penstock.subscriptions import dead_letters, queue
from tests.contract.databases import ContractDatabase
from tests.kit.log import Connection, drain, put
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, TOPIC, filled, mutated, receive


def _copies(own: Connection, count: int) -> list[queue.Delivery]:
    """Events of one key that were rejected once, so that a queue has copies; handed out again."""
    filled(own, 0, max_failures=2)
    for number in range(count):
        put(own, f"secret {number}", key="k", name=TOPIC)
    drain(own)
    held = receive(own, count)
    queue.reject(own, QUEUE, [each.receipt for each in held], delay_seconds=0)
    return receive(own, count)


def _begun(own: Connection, count: int) -> str:
    """An erasure of the key whose events are erased, and whose copies are not."""
    begun = database.call(
        own, "begin_erasure", topic=TOPIC, event_id=None, key="k", reason="why", replace_key=False
    )
    database.call(
        own, "erase_events", erasure=begun[0][0], partition=0,
        sequences=list(range(1, count + 1)), old_checksum=None, checksum=None,
    )  # fmt: skip
    return str(begun[0][0])


def _erased_while(
    db: ContractDatabase,
    erasure: str,
    first: Callable[[Connection], object],
    then: Callable[[Connection], object],
) -> int:
    """How many letters and copies an erasure finds that begins between two steps of a worker."""

    def erase(eraser: Connection) -> int:
        rows = database.call(eraser, "erase_letters", erasure=erasure, key="k", max_rows=10)
        eraser.commit()
        return int(rows[0][0])

    # In a transaction of its own a call is not tried again after a deadlock.
    with closing(db.connect(autocommit=False)) as eraser, ThreadPoolExecutor(1) as threads:
        with closing(db.connect(autocommit=False)) as worker:
            first(worker)
            erasing = threads.submit(erase, eraser)
            db.wait_until_blocked(eraser)
            then(worker)
            worker.commit()
        return erasing.result()


def _buried_meanwhile(db: ContractDatabase, own: Connection) -> tuple[int, list[bytes]]:
    """A worker has buried a copy and not committed when the erasure looks for it."""
    (held,) = _copies(own, 1)
    erasure = _begun(own, 1)
    found = _erased_while(
        db,
        erasure,
        lambda worker: queue.reject(worker, QUEUE, [held.receipt], reason="secret"),
        lambda _: None,
    )
    letters = dead_letters.dead_letters(own, QUEUE)
    return found, [_payload(own, each.id) for each in letters]


def _payload(own: Connection, letter: int) -> bytes:
    found = dead_letters.dead_letter(own, QUEUE, letter)
    assert found is not None
    return found.payload


@proves("an erasure in queues and dead letters")
def test_what_is_just_being_buried_is_erased(db: ContractDatabase, own: Connection) -> None:
    """Guard: erase_letters waits for who is burying, and then looks."""
    assert _buried_meanwhile(db, own) == (1, [b""])


@proves("an erasure in queues and dead letters", guard="await_erasures")
def test_without_the_wait_a_letter_keeps_the_secret(db: ContractDatabase, own: Connection) -> None:
    """Mutant: it looks where the copy is no more and where the letter is not yet."""
    calls = {
        "postgres": ("PERFORM stop_copies(held.topic_id);", ""),
        "mysql": ("CALL stop_copies(source_id);", ""),
    }
    mutated(db, {dialect: ("erase_letters", [text]) for dialect, text in calls.items()})
    assert _buried_meanwhile(db, own)[1] == [b"secret 0"]


def _finished_meanwhile(db: ContractDatabase, own: Connection) -> tuple[int, list[bytes]]:
    """In one transaction a worker finishes a copy, and buries another when the erasure waits."""
    done, failed = _copies(own, 2)
    erasure = _begun(own, 2)
    found = _erased_while(
        db,
        erasure,
        lambda worker: queue.acknowledge(worker, QUEUE, [done.receipt]),
        lambda worker: queue.reject(worker, QUEUE, [failed.receipt]),
    )
    letters = dead_letters.dead_letters(own, QUEUE)
    return found, [_payload(own, each.id) for each in letters]


@proves("an erasure in queues and dead letters")
def test_a_worker_and_an_erasure_wait_in_one_order(db: ContractDatabase, own: Connection) -> None:
    """Guard: who deletes a copy takes the lock that an erasure takes before it looks at copies."""
    assert _finished_meanwhile(db, own) == (1, [b""])


def _comes_later(db: ContractDatabase, own: Connection, waits: bool) -> int:
    """What an erasure finds that waits for one worker when a second one comes."""
    here, later = _copies(own, 2)
    erasure = _begun(own, 2)
    with (
        closing(db.connect()) as eraser,
        ThreadPoolExecutor(2) as threads,
        closing(db.connect(autocommit=False)) as second,
        closing(db.connect(autocommit=False)) as first,
    ):
        queue.acknowledge(first, QUEUE, [here.receipt])
        erasing = threads.submit(
            database.call, eraser, "erase_letters", erasure=erasure, key="k", max_rows=10
        )
        db.wait_until_blocked(eraser)
        working = threads.submit(queue.acknowledge, second, QUEUE, [later.receipt])
        if waits:
            db.wait_until_blocked(second)
        else:
            working.result()
        first.commit()
        if waits:
            erasing.result()
        else:
            db.wait_until_blocked(eraser)
        working.result()
        second.commit()
        return int(erasing.result()[0][0])


@proves("an erasure in queues and dead letters")
def test_who_comes_later_lets_an_erasure_pass(db: ContractDatabase, own: Connection) -> None:
    """Guard: let_erasures_pass; MySQL and MariaDB give locks in the order of asking."""
    assert _comes_later(db, own, waits=True) == 1


@proves("an erasure in queues and dead letters", guard="stop_copies")
@pytest.mark.parametrize("db", ["postgres"], indirect=True)
def test_without_that_workers_that_overlap_pass_it(db: ContractDatabase, own: Connection) -> None:
    """Mutant: as long as one has begun before the last one ends, the erasure waits."""
    db.without_guard("await_erasures", "PERFORM let_erasures_pass(topic_ids);", "NULL;")
    assert _comes_later(db, own, waits=False) == 0


@proves("an erasure in queues and dead letters", guard="the order of the locks")
def test_without_that_order_they_wait_for_each_other(db: ContractDatabase, own: Connection) -> None:
    """Mutant: one of the two ends in a deadlock."""
    call = (
        "PERFORM await_erasures((SELECT w.subscription_id FROM queue_waiting AS w"
        " WHERE w.id = ids[1]), pieces);"
    )
    texts = {
        "postgres": ("drop_copies", [(call, "")]),
        "mysql": ("acknowledge", [("CALL await_erasures(owner_id, pieces);", "")]),
    }
    mutated(db, texts)
    with pytest.raises(Exception, match=r"(?i)deadlock"):
        _finished_meanwhile(db, own)


def _purged_beside(db: ContractDatabase, own: Connection) -> int:
    """A purge and an erasure wait for the first of two copies; what the erasure finds."""
    _copies(own, 2)
    erasure = _begun(own, 2)
    with (
        closing(db.connect()) as eraser,
        closing(db.connect()) as operator,
        ThreadPoolExecutor(2) as threads,
        closing(db.connect(autocommit=False)) as other,
    ):
        ((first,),) = database.execute(other, "SELECT min(id) FROM penstock.queue_waiting")
        lock = f"SELECT id FROM penstock.queue_waiting WHERE id = {first} FOR UPDATE"
        database.execute(other, lock)
        erasing = threads.submit(
            database.call, eraser, "erase_letters", erasure=erasure, key="k", max_rows=10
        )
        db.wait_until_blocked(eraser)
        purging = threads.submit(queue.purge, operator, QUEUE)
        db.wait_until_blocked(operator)
        other.rollback()
        purging.result()
        return int(erasing.result()[0][0])


@proves("a purge beside workers")
def test_a_purge_and_an_erasure_lock_copies_in_one_order(
    db: ContractDatabase, own: Connection
) -> None:
    assert _purged_beside(db, own) == 2
    assert queue.statistics(own, QUEUE).size == 0


@proves("a purge beside workers", guard="the order")
@pytest.mark.parametrize("db", ["postgres"], indirect=True)
def test_without_that_order_one_of_them_ends(
    db: ContractDatabase, own: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the purge begins with the last one, as a DELETE may."""
    monkeypatch.setattr(calls, "_TRIES", 1)
    db.without_guard("purge", "ORDER BY w.id FOR UPDATE", "ORDER BY w.id DESC FOR UPDATE")
    with pytest.raises(Exception, match=r"(?i)deadlock"):
        _purged_beside(db, own)
