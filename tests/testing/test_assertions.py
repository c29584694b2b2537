"""The assertions, and what they say when they fail."""

from __future__ import annotations

import psycopg
import pytest

import penstock
from penstock.consumer.stream.consumer import Consumer
from penstock.subscriptions import dead_letters, stream
from penstock.testing import (
    MemoryConnection,
    MemoryDatabase,
    assert_dead_lettered,
    assert_handled,
    assert_nothing_published,
    assert_published,
    published,
)
from tests.testing.conftest import ORDERS


def _two(connection: MemoryConnection) -> None:
    penstock.publish(connection, ORDERS, b"1", key="Ada", type="placed", headers={"a": 1, "b": 2})
    penstock.publish(connection, ORDERS, b"2", key="Ada", type="paid")


def test_what_was_published_is_found(connection: MemoryConnection) -> None:
    assert_nothing_published(connection)
    assert_nothing_published(connection, ORDERS)
    _two(connection)
    (event,) = assert_published(connection, ORDERS, key="Ada", type="placed", headers={"a": 1})
    assert event.payload == b"1"
    assert len(assert_published(connection, ORDERS, key="Ada", times=2)) == 2
    assert assert_published(connection, ORDERS, payload=b"2", headers={}) == [
        published(connection, ORDERS)[1]
    ]


def test_what_was_not_is_said_with_what_was(connection: MemoryConnection) -> None:
    with pytest.raises(AssertionError, match=r"no event of shop/orders .*holds no event .*commit"):
        assert_published(connection, ORDERS)
    _two(connection)
    with pytest.raises(AssertionError) as told:
        assert_published(connection, ORDERS, key="Bob", headers={"a": 3})
    assert "with key='Bob', headers={'a': 3}" in str(told.value)
    assert "/1 key='Ada' type='placed' headers={'a': 1, 'b': 2} payload=b'1'" in str(told.value)
    with pytest.raises(AssertionError, match="2 and not 1 events of shop/orders"):
        assert_published(connection, ORDERS, key="Ada", times=1)
    with pytest.raises(AssertionError, match=r"shop/orders holds:\n.*placed"):
        assert_nothing_published(connection)


def test_what_was_handled(db: MemoryDatabase, connection: MemoryConnection) -> None:
    """Guard: the position of the subscription."""
    _two(connection)
    with pytest.raises(AssertionError, match=r"billing stands at 0/0, 1/0 and has not handled:"):
        assert_handled(connection, "billing", ORDERS, key="Ada")
    db.run_until_idle(Consumer(db.url, "billing", handler=lambda event: None))
    assert len(assert_handled(connection, "billing", ORDERS, key="Ada")) == 2
    with pytest.raises(AssertionError, match="no event of shop/orders with key='Bob'"):
        assert_handled(connection, "billing", ORDERS, key="Bob")


def test_what_was_given_up(db: MemoryDatabase, connection: MemoryConnection) -> None:
    _two(connection)
    db.run_until_idle()
    with pytest.raises(AssertionError, match="billing has given up: nothing"):
        assert_dead_lettered(connection, "billing", ORDERS)
    member = stream.join(connection, "billing", "a")
    (lease,) = stream.check_in(connection, member)
    dead_letters.give_up(connection, member, lease, 1, "no such customer", attempts=3)
    (letter,) = assert_dead_lettered(connection, "billing", ORDERS, key="Ada", reason="customer")
    assert (letter.sequence, letter.attempts, letter.state) == (1, 3, "dead")
    with pytest.raises(AssertionError, match=r"/1 key='Ada' type='placed' dead after 3: no such"):
        assert_dead_lettered(connection, "billing", ORDERS, key="Bob")


def test_many_are_not_all_listed(connection: MemoryConnection) -> None:
    penstock.publish_batch(connection, [penstock.Message(ORDERS, b"x")] * 30)
    with pytest.raises(AssertionError, match="and 20 more"):
        assert_nothing_published(connection)


def test_while_a_pass_is_open_nobody_can_say(
    db: MemoryDatabase, connection: MemoryConnection
) -> None:
    with db.connect(autocommit=False) as other:
        penstock.sequence(other)
        with pytest.raises(penstock.PenstockError, match="has the sequencer"):
            published(connection, ORDERS)


def test_on_a_real_database_too(connection: MemoryConnection, database_url: str) -> None:
    """They ask nothing but the functions that everybody has."""
    with psycopg.connect(database_url, autocommit=True) as real:
        penstock.create_topic(real, ORDERS, 2, create_namespaces=True)
        penstock.subscribe(real, "billing", [ORDERS])
        _two(real)  # type: ignore[arg-type]
        assert len(assert_published(real, ORDERS, key="Ada")) == 2
        Consumer(database_url, "billing", handler=lambda event: None).run_until_idle()
        assert len(assert_handled(real, "billing", ORDERS)) == 2
