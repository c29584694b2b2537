"""Queues in memory: a virtual clock, workers in the thread of a test, transactions with an end."""

from __future__ import annotations

import pytest

import penstock
from penstock import queue, stream
from penstock.consumer.handlers.failures import HandlerFailed
from penstock.errors import DatabaseUnavailable, StaleReceipt, WrongMode
from penstock.testing import MemoryConnection, MemoryDatabase, NotInMemory

TOPIC, QUEUE = "shop/mails", "mails"


def filled(db: MemoryDatabase, events: int) -> MemoryConnection:
    """A queue with some events."""
    connection = db.connect()
    penstock.create_topic(connection, TOPIC, create_namespaces=True)
    queue.subscribe(connection, QUEUE, [TOPIC])
    for number in range(1, events + 1):
        penstock.publish(connection, TOPIC, b"%d" % number)
    db.run_until_idle()
    return connection


def test_time_is_virtual() -> None:
    """Hidden, back after its time, and after its backoff."""
    db = MemoryDatabase()
    connection = filled(db, 1)
    queue.configure(connection, QUEUE, jitter=0, first_backoff_seconds=2)
    (first,) = queue.receive(connection, QUEUE)
    db.clock.advance(29.9)
    assert queue.receive(connection, QUEUE) == []
    db.clock.advance(0.1)
    (second,) = queue.receive(connection, QUEUE)
    with pytest.raises(StaleReceipt):
        queue.acknowledge(connection, QUEUE, [first.receipt])
    queue.reject(connection, QUEUE, [second.receipt], reason="not now")
    for pause, found in ((1.9, 0), (0.2, 1)):
        db.clock.advance(pause)
        assert len(queue.receive(connection, QUEUE)) == found


def test_an_acknowledgement_is_a_part_of_the_transaction() -> None:
    """It goes with a rollback, and while the transaction is open nobody gets the event."""
    db = MemoryDatabase()
    connection = filled(db, 1)
    (held,) = queue.receive(connection, QUEUE, visibility_seconds=5)
    other = db.connect()
    with pytest.raises(ValueError, match="no"), other.transaction():
        queue.acknowledge(other, QUEUE, [held.receipt])
        db.clock.advance(6)
        assert queue.receive(connection, QUEUE) == []
        raise ValueError("no")
    (again,) = queue.receive(connection, QUEUE)
    with pytest.raises(DatabaseUnavailable), other.transaction():
        queue.acknowledge(other, QUEUE, [again.receipt])
        db.clock.advance(31)  # longer than the claim
    assert queue.statistics(connection, QUEUE).size == 1


def test_a_worker_runs_in_the_thread_of_a_test() -> None:
    """With its own transactions, verdicts and dead letters."""
    db = MemoryDatabase()
    connection = filled(db, 5)
    penstock.create_topic(connection, "shop/sent")
    queue.configure(connection, QUEUE, max_failures=1)

    def handle(delivery: penstock.QueueDelivery) -> None:
        with delivery.transaction() as own:
            penstock.publish(own, "shop/sent", delivery.payload)
            if delivery.payload == b"3":
                raise ValueError("bad address")

    worker = penstock.QueueConsumer(db.url, QUEUE, handler=handle)
    with pytest.raises(HandlerFailed, match="bad address"):
        db.run_until_idle(worker)
    db.run_until_idle()
    sent = [event.payload for event in penstock.fetch(connection, "shop/sent", 0, 1, 10)]
    assert sent == [b"1", b"2", b"4", b"5"]
    assert queue.statistics(connection, QUEUE) == queue.QueueStatistics(0, 0, 0, 0, 1)
    assert queue.redrive(connection, QUEUE) == 1
    assert queue.receive(connection, QUEUE)[0].event.payload == b"3"


def test_modes_bodies_and_what_is_not_there() -> None:
    """A subscription keeps its mode; a body stays with its event; a purge; no pointers."""
    db = MemoryDatabase()
    connection = filled(db, 3)
    with pytest.raises(WrongMode):
        stream.subscribe(connection, QUEUE, [TOPIC])
    with pytest.raises(WrongMode):
        stream.join(connection, QUEUE, "one")
    (held,) = queue.receive(connection, QUEUE)
    queue.extend(connection, QUEUE, [held.receipt], 0, body=b"new")
    assert queue.peek(connection, QUEUE, 1)[0].event.payload == b"new"
    (again,) = queue.receive(connection, QUEUE)
    assert (again.event.payload, again.deliveries) == (b"new", 2)
    queue.acknowledge(connection, QUEUE, [again.receipt])
    assert queue.purge(connection, QUEUE) == 2
    assert queue.receive(connection, QUEUE) == []
    with pytest.raises(NotInMemory):
        queue.pointers(connection, QUEUE)
    stream.unsubscribe(connection, QUEUE)
    queue.subscribe(connection, QUEUE, [TOPIC])
    assert len(queue.receive(connection, QUEUE, 10)) == 3
