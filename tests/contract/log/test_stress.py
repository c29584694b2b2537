"""Many topics, partitions and consumers at once (Boxy's stress test, which never ran)."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from penstock.consumer.stream.consumer import Consumer
from penstock.publishing.publish import publish_batch
from penstock.records import Event, Message
from penstock.subscriptions import stream
from penstock.topics import names
from tests.contract.databases import ContractDatabase
from tests.kit.log import drain, wait_until
from tests.kit.stream import SUBSCRIPTION, running

EVERYDAY = 10, 4, 6, 1_000
FULL = 100, 8, 24, 10_000


@pytest.mark.parametrize(
    ("topics", "partitions", "consumers", "events"),
    [EVERYDAY, pytest.param(*FULL, marks=[pytest.mark.long, pytest.mark.timeout(1800)])],
)
def test_each_event_is_handled_and_keys_keep_their_order(
    db: ContractDatabase, topics: int, partitions: int, consumers: int, events: int
) -> None:
    """Guards: shares, fences and the log, all together."""
    own = db.connect()
    addresses = [f"tests/topic{n}" for n in range(topics)]
    names.create_namespace(own, "tests")
    for address in addresses:
        names.create_topic(own, address, partitions)
    stream.subscribe(own, SUBSCRIPTION, addresses)
    handled: list[tuple[str, int]] = []  # appended to by all threads, which is atomic

    def handle(event: Event) -> None:
        handled.append((f"{event.topic}/{event.key}", int(event.payload)))

    made = [
        Consumer(db.url, SUBSCRIPTION, handler=handle, consumer_id=f"c{n}", idle_seconds=0.05)
        for n in range(consumers)
    ]
    with ExitStack() as stack:
        for consumer in made:
            stack.enter_context(running(consumer))
        for first in range(0, events, 500):
            numbers = range(first, min(first + 500, events))
            publish_batch(
                own,
                [Message(addresses[n % topics], b"%d" % n, key=str(n % 37)) for n in numbers],
            )
            drain(own)
        wait_until(lambda: len(handled) >= events, "all are handled", seconds=1200)
    assert {number for _, number in handled} == set(range(events))
    first_times = dict.fromkeys(handled)  # a lease that moved may bring events again
    last: dict[str, int] = {}
    for key, number in first_times:
        assert number > last.get(key, -1)
        last[key] = number
    assert sum(consumer.stats.failures for consumer in made) == 0
