"""A handler that takes long in one partition: what the consumer's other partitions do meanwhile."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock.records import Event
from tests.contract.databases import ContractDatabase
from tests.contract.poison_kit import new_consumer
from tests.kit.log import wait_until
from tests.kit.stream import filled, running, stored


@pytest.mark.parametrize(
    ("options", "waits"),
    [
        ({"handler": True}, True),
        ({"batch_handler": True}, True),
        ({"handler": True, "concurrency": 2}, False),
        ({"batch_handler": True, "concurrency": 2}, False),
    ],
)
def test_a_slow_partition_holds_up_the_others_of_a_consumer_without_concurrency(
    db: ContractDatabase, options: dict[str, Any], waits: bool
) -> None:
    """By default one handler runs at a time, in the loop's thread (consumers.md)."""
    own = db.connect()
    filled(own, partitions=2, events=2)
    others, slow = threading.Event(), list[int]()
    seen: list[bool] = []

    def handle(event: Event) -> None:
        if not slow:
            slow.append(event.partition)
            seen.append(others.wait(0.3 if waits else 20))
        elif event.partition != slow[0]:
            others.set()

    def handle_batch(batch: Any) -> None:
        for event in batch:
            handle(event)

    functions = {"handler": handle, "batch_handler": handle_batch}
    given = {name: functions.get(name, value) for name, value in options.items()}
    with running(new_consumer(db, **given)):
        wait_until(lambda: [stored(own, each) for each in (0, 1)] == [2, 2], "all are handled")
    assert seen == [not waits]
