"""Consumers on a log in memory, in the thread of the test."""

from __future__ import annotations

import threading

import pytest

import penstock
from penstock.consumer.handlers.failures import HandlerFailed
from penstock.consumer.stream.consumer import Batch, Consumer
from penstock.records import Event
from penstock.subscriptions import policies
from penstock.testing import (
    MemoryConnection,
    MemoryDatabase,
    assert_dead_lettered,
    assert_handled,
    published,
)
from tests.testing.conftest import ORDERS


def test_inline_what_is_published_is_handled_at_once(
    db: MemoryDatabase, connection: MemoryConnection
) -> None:
    """In this thread, after the commit, and what a handler publishes too."""
    seen: list[tuple[str, bytes, int]] = []
    penstock.create_topic(connection, "shop/bills")
    penstock.subscribe(connection, "mail", ["shop/bills"])

    def bill(event: Event) -> None:
        seen.append(("bill", event.payload, threading.get_ident()))
        penstock.publish(connection, "shop/bills", b"for " + event.payload)

    def mail(event: Event) -> None:
        seen.append(("mail", event.payload, threading.get_ident()))

    me = threading.get_ident()
    penstock.publish(connection, ORDERS, b"0", key="Ada")
    # The one that reads what the other publishes is asked first: nothing depends on the order.
    with db.inline(
        Consumer(db.url, "mail", handler=mail), Consumer(db.url, "billing", handler=bill)
    ):
        assert seen == [("bill", b"0", me), ("mail", b"for 0", me)]
        seen.clear()
        with connection.transaction():
            penstock.publish(connection, ORDERS, b"1", key="Ada")
            assert seen == []
        assert seen == [("bill", b"1", me), ("mail", b"for 1", me)]
        seen.clear()
    penstock.publish(connection, ORDERS, b"2", key="Ada")
    assert seen == []


def test_inline_a_handler_that_fails_raises_where_it_was_published(
    db: MemoryDatabase, connection: MemoryConnection
) -> None:
    def broken(event: Event) -> None:
        raise LookupError("no such customer")

    with (
        db.inline(Consumer(db.url, "billing", handler=broken)),
        pytest.raises(HandlerFailed, match="no such customer"),
    ):
        penstock.publish(connection, ORDERS, b"1")
    assert len(published(connection, ORDERS)) == 1, "the publisher has committed"


def test_run_until_idle_counts_and_can_be_repeated(
    db: MemoryDatabase, connection: MemoryConnection
) -> None:
    """Guard: a keeper clears the stop of the block before, or its second block ends at once."""
    handled: list[int] = []

    def handle(batch: Batch) -> None:
        with batch.transaction():
            handled.extend(event.sequence for event in batch)

    consumer = Consumer(db.url, "billing", batch_handler=handle, batch_size=3)
    for round_number in range(1, 4):
        penstock.publish_batch(connection, [penstock.Message(ORDERS, b"x", partition=1)] * 7)
        assert db.run_until_idle(consumer) == 7
        assert handled == list(range(1, 7 * round_number + 1))
    assert db.run_until_idle(consumer) == 0
    assert len(assert_handled(connection, "billing", ORDERS)) == 21


def test_two_runs_do_the_same() -> None:
    """Guard: chance is seeded for each log, and no time passes that decides about a commit."""

    def run() -> list[tuple[int, int, bytes]]:
        db = MemoryDatabase()
        connection = db.connect()
        penstock.create_topic(connection, ORDERS, 8, create_namespaces=True)
        penstock.subscribe(connection, "billing", [ORDERS])
        for number in range(40):
            penstock.publish(connection, ORDERS, b"%d" % number)
        seen: list[tuple[int, int, bytes]] = []
        consumer = Consumer(
            db.url,
            "billing",
            handler=lambda event: seen.append((event.partition, event.sequence, event.payload)),
            batch_size=2,
            clock=db.clock.monotonic,
        )
        assert db.run_until_idle(consumer) == 40
        return seen

    assert run() == run()


def test_the_pause_before_another_attempt_passes_on_the_virtual_clock(
    db: MemoryDatabase, connection: MemoryConnection
) -> None:
    """And after the last one the event is a dead letter."""
    policies.set_policy(
        connection,
        "retry",
        {"max_attempts": 3, "first_backoff_seconds": 5, "longest_backoff_seconds": 60},
        scope="subscription",
        name="billing",
    )
    tried: list[int] = []

    def broken(event: Event) -> None:
        tried.append(event.sequence)
        raise LookupError("no such customer")

    consumer = Consumer(db.url, "billing", handler=broken, clock=db.clock.monotonic)
    penstock.publish(connection, ORDERS, b"1", partition=0)
    for pause, expected in ((0, 1), (1, 1), (10, 2), (60, 3)):
        db.clock.advance(pause)
        with pytest.raises(HandlerFailed, match="no such customer"):
            db.run_until_idle(consumer)
        assert len(tried) == expected
    db.run_until_idle(consumer)
    assert tried == [1, 1, 1]
    assert_dead_lettered(connection, "billing", ORDERS, reason="no such customer")
