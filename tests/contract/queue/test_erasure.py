"""An erasure and a worker that puts its event back: what is erased does not come again."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from penstock import database
from penstock.subscriptions import dead_letters, queue
from tests.contract.databases import ContractDatabase
from tests.kit.log import Connection, drain, put
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, TOPIC, filled, mutated, pass_time, receive


def _secret(own: Connection) -> queue.Delivery:
    """The one event of a queue, handed out."""
    filled(own, 0)
    put(own, "secret", key="k", name=TOPIC)
    drain(own)
    (held,) = receive(own, visibility_seconds=1000)
    return held


def _erase(own: Connection) -> None:
    """Both steps of an erasure of the key, and its end."""
    begun = database.call(
        own, "begin_erasure", topic=TOPIC, event_id=None, key="k", reason="why", replace_key=False
    )
    erasure = begun[0][0]
    database.call(
        own, "erase_events", erasure=erasure, partition=0, sequences=[1], old_checksum=None,
        checksum=None,
    )  # fmt: skip
    database.call(own, "erase_letters", erasure=erasure, key="k", max_rows=10)
    database.call(own, "finish_erasure", erasure=erasure)


def _all_that_comes(own: Connection) -> list[bytes]:
    pass_time(own, 2000)
    return [each.event.payload for each in receive(own, 5)]


def _rejected_meanwhile(db: ContractDatabase, own: Connection) -> list[bytes]:
    """A worker has rejected the event and not committed when the erasure begins."""
    held = _secret(own)
    with closing(db.connect(autocommit=False)) as worker, closing(db.connect()) as eraser:
        queue.reject(worker, QUEUE, [held.receipt], reason="secret", delay_seconds=10)
        erasing = threading.Thread(target=_erase, args=(eraser,))
        erasing.start()
        erasing.join(0.5)
        worker.commit()
        erasing.join()
    return _all_that_comes(own)


@proves("an erasure in queues and dead letters")
def test_a_reject_that_races_an_erasure(db: ContractDatabase, own: Connection) -> None:
    """Guard: the erasure waits for who is just copying the event, and finds the copy."""
    assert _rejected_meanwhile(db, own) == [b""]


@proves("an erasure in queues and dead letters", guard="stop_copies")
def test_without_the_fence_the_secret_comes_again(db: ContractDatabase, own: Connection) -> None:
    """Mutant: nobody waits."""
    mutated(
        db,
        {
            "postgres": ("stop_copies", [("    FOR NO KEY UPDATE;", ";")]),
            "mysql": ("stop_copies", [("    FOR UPDATE;", ";")]),
        },
    )
    assert _rejected_meanwhile(db, own) == [b"secret"]


def _erased_meanwhile(db: ContractDatabase, own: Connection) -> list[bytes]:
    """An erasure is not committed when a worker rejects the event."""
    held = _secret(own)
    with closing(db.connect(autocommit=False)) as eraser, closing(db.connect()) as worker:
        _erase(eraser)
        work = threading.Thread(target=queue.reject, args=(worker, QUEUE, [held.receipt]))
        work.start()
        work.join(0.5)
        eraser.commit()
        work.join()
    return _all_that_comes(own)


@proves("an erasure in queues and dead letters")
def test_an_erasure_that_races_a_reject(db: ContractDatabase, own: Connection) -> None:
    """Guard: who copies an event waits for the erasure, and copies what it has left."""
    assert _erased_meanwhile(db, own) == [b""]


@proves("an erasure in queues and dead letters", guard="await_erasures")
def test_without_the_wait_the_secret_is_copied(db: ContractDatabase, own: Connection) -> None:
    """Mutant: nobody waits."""
    mutated(
        db,
        {
            "postgres": ("await_erasures", [("    FOR SHARE;", ";")]),
            "mysql": ("await_erasures", [("    LOCK IN SHARE MODE;", ";")]),
        },
    )
    assert _erased_meanwhile(db, own) == [b"secret"]


def _put_back_after(own: Connection) -> tuple[list[bytes], str]:
    """What comes, and the reason of its death, when a worker still has what was erased."""
    held = _secret(own)
    _erase(own)
    queue.extend(own, QUEUE, [held.receipt], 0, body=b"secret")
    found = receive(own)
    queue.configure(own, QUEUE, max_failures=1)
    queue.reject(own, QUEUE, [found[0].receipt], reason="secret")
    (letter,) = dead_letters.dead_letters(own, QUEUE)
    return [each.event.payload for each in found], letter.reason


@proves("an erasure in queues and dead letters")
def test_what_is_erased_takes_no_body_and_no_reason(own: Connection) -> None:
    """Guard: is_tombstone."""
    assert _put_back_after(own) == ([b""], "")


@proves("an erasure in queues and dead letters", guard="stop_copies")
def test_without_that_a_worker_brings_it_back(db: ContractDatabase, own: Connection) -> None:
    """Mutant: nothing is a tombstone."""
    mutated(
        db,
        {
            "postgres": ("is_tombstone", [("is_tombstone.payload = ''", "false")]),
            "mysql": ("is_tombstone", [("payload_length = 0", "FALSE")]),
        },
    )
    with pytest.raises(AssertionError):
        assert _put_back_after(own) == ([b""], "")
