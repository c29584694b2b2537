"""Calls as people write them by mistake: the error says in Python what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import penstock
from penstock.consumer.queue.consumer import QueueConsumer
from penstock.consumer.running.async_consumer import AsyncConsumer, AsyncQueueConsumer
from penstock.consumer.stream.consumer import Consumer
from penstock.errors import (
    InvalidArgument,
    InvalidName,
    NamespaceNotFound,
    PenstockError,
    SubscriptionNotFound,
    TopicNotFound,
)
from penstock.subscriptions import queue, stream
from tests.contract.databases import ContractDatabase
from tests.kit.log import TOPIC, drain, topic

URL = "postgresql://me:secret@host/name"
Make = Callable[..., Any]


def _told(kind: type[PenstockError], call: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        call()
    assert "SELECT" not in str(caught.value) and "secret" not in str(caught.value)
    return str(caught.value)


def test_what_is_missing_is_named_with_the_call_that_makes_it(db: ContractDatabase) -> None:
    """On PostgreSQL the hint was SQL, on the others "Subscribe first".  Guard: _IN_PYTHON."""
    own = db.connect()
    told = _told(NamespaceNotFound, lambda: penstock.create_topic(own, "no/such"))
    assert "create_namespaces=True" in told
    topic(own)
    told = _told(TopicNotFound, lambda: stream.subscribe(own, "billing", ["tests/nothing"]))
    assert "penstock.create_topic(...)" in told
    consumer = Consumer(db.url, "billing", handler=print)
    assert "penstock.subscribe(connection" in _told(SubscriptionNotFound, consumer.run_until_idle)
    told = _told(SubscriptionNotFound, lambda: queue.receive(own, "billing"))
    assert "penstock.queue.subscribe" in told


def test_a_setting_that_a_queue_lacks_is_named(db: ContractDatabase) -> None:
    """Guard: the look at the names in configure; the database says only what is wrong."""
    own = db.connect()
    topic(own)
    queue.subscribe(own, "mails", [TOPIC])
    told = _told(InvalidArgument, lambda: queue.configure(own, "mails", visibility=60))
    assert "a queue has no visibility. did you mean visibility_seconds?" in told
    assert "max_in_flight" in told


async def _by_task(event: Any) -> None:
    """A handler."""


@pytest.mark.parametrize("kind", [Consumer, QueueConsumer, AsyncConsumer, AsyncQueueConsumer])
def test_a_consumer_says_what_it_takes(kind: Make) -> None:
    """Guards: _require_place and options_of."""
    told = _told(InvalidArgument, lambda: kind(object(), "billing", handler=_by_task))
    assert "the address of a consumer's database is a object" in told and "give the URL" in told
    told = _told(InvalidArgument, lambda: kind("billing", URL, handler=_by_task))
    assert "the address comes first" in told
    told = _told(InvalidArgument, lambda: kind(URL, "billing", _by_task))
    assert "by name" in told
    told = _told(InvalidArgument, lambda: kind(URL, "billing", handler=_by_task, concurency=2))
    assert "a consumer has no concurency. did you mean concurrency?" in told


def test_a_declared_consumer_says_the_same() -> None:
    """It has the same options."""
    app = penstock.App()
    told = _told(InvalidArgument, lambda: app.consumer("billing", topic=[TOPIC]))
    assert "did you mean topics?" in told
    told = _told(InvalidArgument, lambda: app.queue("mails", visibility=60))
    assert "did you mean visibility_seconds?" in told


def test_swapped_arguments_are_named(db: ContractDatabase) -> None:
    """Guards: _order_of, _instead_of."""
    own: Any = db.connect()
    wrong: Any = TOPIC
    told = _told(InvalidName, lambda: penstock.publish(wrong, own, b"x"))
    assert "the connection comes before the topic" in told
    swapped: Any = b"x"
    told = _told(InvalidName, lambda: penstock.publish(own, swapped, wrong))
    assert "the topic comes before the payload" in told
    told = _told(InvalidArgument, lambda: queue.receive(wrong, own))
    assert "the connection comes first" in told
    payload: Any = {"order": 1}
    told = _told(InvalidArgument, lambda: penstock.publish(own, TOPIC, payload))
    assert "json.dumps" in told


def test_an_event_shows_how_its_payload_begins(db: ContractDatabase) -> None:
    """And no more than fits into a line."""
    own = db.connect()
    topic(own)
    penstock.publish_batch(
        own, [penstock.Message(TOPIC, b'{"order": 1}'), penstock.Message(TOPIC, b"x" * 1_000)]
    )
    drain(own)
    short, long = map(repr, penstock.fetch(own, TOPIC, 0, 1))
    assert """payload=<12 bytes: b'{"order": 1}'>""" in short
    assert f"payload=<1000 bytes: b'{'x' * 40}'...>" in long
