"""A topic is deleted while workers of a queue have its events."""

from __future__ import annotations

import threading
from contextlib import closing
from functools import partial

import pytest

from penstock.subscriptions import queue
from penstock.topics import names
from tests.contract.databases import ContractDatabase
from tests.kit.log import Connection, topic
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, TOPIC, count, filled, mutated, receipts, receive


def _left_of_it(db: ContractDatabase, own: Connection) -> list[int]:
    """How many rows there are, when a worker puts events back and rejects some meanwhile."""
    filled(own, 3, max_failures=1)
    topic(own, 1, "tests/other")
    queue.subscribe(own, QUEUE, ["tests/other"])
    held = receipts(receive(own, 2))
    with closing(db.connect(autocommit=False)) as worker, closing(db.connect()) as operator:
        queue.release(worker, QUEUE, held[:1])
        queue.reject(worker, QUEUE, held[1:])
        delete = partial(names.delete_topic, operator, TOPIC, with_subscriptions=True)
        deleting = threading.Thread(target=delete)
        deleting.start()
        deleting.join(0.5)
        assert deleting.is_alive(), "it waits for the worker"
        worker.commit()
        deleting.join()
    return [count(own, table) for table in ("queue_ranges", "queue_waiting", "dead_letters")]


@proves("a deleted topic leaves nothing in queues")
def test_what_a_worker_puts_back_meanwhile_goes_too(db: ContractDatabase, own: Connection) -> None:
    """It would be handed out without a topic.  Guards: the second look, and letters at the end."""
    assert _left_of_it(db, own) == [0, 0, 0]
    assert receive(own, 5) == []


@proves("a deleted topic leaves nothing in queues", guard="forget_queue")
@pytest.mark.long_on("mysql", "mariadb")
def test_without_a_second_look_it_stays(db: ContractDatabase, own: Connection) -> None:
    """Mutant: what showed at the beginning is deleted."""
    mutated(db, {
        "postgres": ("forget_queue", [("EXIT WHEN NOT EXISTS (", "EXIT WHEN true OR EXISTS (")]),
        "mysql": ("forget_queue", [("SELECT EXISTS (", "SELECT FALSE AND EXISTS (")]),
    })  # fmt: skip
    assert _left_of_it(db, own)[0] == 1
