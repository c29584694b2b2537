"""What was published for later is in no count of a queue but its own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.subscriptions import queue
from penstock.subscriptions.scheduled import scheduled
from tests.contract.databases import ContractDatabase
from tests.kit.log import Connection, drain, topic, wait_until
from tests.kit.queue import QUEUE, TOPIC, filled, mutated

_OTHER = "tests/others"
_OWN = ("d.partition_id = l.partition_id AND", "")
_MOST = ("LIMIT 20000", "LIMIT 2")


def _publish(connection: Connection, address: str, count: int, seconds: float) -> None:
    due = datetime.now(UTC) + timedelta(seconds=seconds)
    publish_batch(connection, [Message(address, b"x", not_before=due)] * count)
    drain(connection)


def test_it_counts_what_is_to_come_into_its_topics(db: ContractDatabase, own: Connection) -> None:
    """Until it is due.  Mutant: of all topics."""
    filled(own, 2)
    topic(own, 1, _OTHER)
    assert scheduled(own, QUEUE) == 0
    _publish(own, TOPIC, 3, 600)
    _publish(own, _OTHER, 1, 300)
    _publish(own, TOPIC, 1, 0.2)
    assert scheduled(own, QUEUE) >= 3
    assert queue.statistics(own, QUEUE).delayed == 0

    def is_over() -> bool:
        drain(own)
        return scheduled(own, QUEUE) == 3

    wait_until(is_over, "one is due")
    assert queue.statistics(own, QUEUE).size == 3
    mutated(db, dict.fromkeys(("postgres", "mysql"), ("queue_scheduled", [_OWN])))
    assert scheduled(own, QUEUE) > 3


def test_what_others_have_sent_for_earlier_takes_no_room(
    db: ContractDatabase, own: Connection
) -> None:
    """Only events of its own topics are looked at, and it counts no further than it says."""
    filled(own, 0)
    topic(own, 1, _OTHER)
    _publish(own, TOPIC, 3, 600)
    _publish(own, _OTHER, 3, 300)
    mutated(db, dict.fromkeys(("postgres", "mysql"), ("queue_scheduled", [_MOST])))
    assert scheduled(own, QUEUE) == 2
