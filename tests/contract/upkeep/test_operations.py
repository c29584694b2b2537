"""How long calls of the database took is measured when somebody asks for it, and only then."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from penstock.database import timings
from penstock.errors import BeyondHighWatermark
from penstock.publishing.publish import publish, publish_batch
from penstock.records import Message
from penstock.subscriptions import stream
from penstock.upkeep import operations
from tests.contract.databases import ContractDatabase
from tests.kit.stream import STREAM, filled, member_with_lease


@pytest.fixture(autouse=True)
def unobserved() -> Iterator[None]:
    """Nobody measures before, and nobody after."""
    before, timings.observer = timings.observer, None
    yield
    timings.observer = before


def counts() -> dict[str, int]:
    """How many calls were measured, by kind."""
    metrics = operations.page().decode()
    found = re.findall(r'operation_seconds_count{operation="(\w+)"} (\d+)', metrics)
    return {name: int(count) for name, count in found}


def test_publish_poll_and_commit_are_measured(db: ContractDatabase) -> None:
    """Guard: the observer in calls.py."""
    own = db.connect()
    filled(own)
    assert operations.figures() == {}
    operations.record()
    before = counts()
    publish(own, STREAM, b"one", partition=0)
    publish_batch(own, [Message(STREAM, b"1"), Message(STREAM, b"2")])
    member, lease = member_with_lease(own, "one")
    ((_, events),) = stream.poll(own, member, [lease], 10)
    stream.commit(own, member, [(lease, events[-1].sequence)])
    more = {name: counts()[name] - before[name] for name in before}
    assert more == {"commit": 1, "poll": 1, "publish": 1, "publish_batch": 1}


def test_a_call_that_fails_is_measured_too(db: ContractDatabase) -> None:
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "one")
    operations.record()
    before = counts()["commit"]
    with pytest.raises(BeyondHighWatermark):
        stream.commit(own, member, [(lease, 1_000_000)])
    assert counts()["commit"] == before + 1
