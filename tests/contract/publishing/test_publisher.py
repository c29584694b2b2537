"""A publisher is `publish`, prepared: the same events, the same errors, the same transaction."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import penstock
from penstock import database
from penstock.errors import BackPressure, PenstockError, TopicNotFound
from tests.contract.databases import ContractDatabase
from tests.contract.kit import open_transaction
from tests.kit.log import drain, read, texts, topic

TOPIC = "bank/one"

#: What is refused, as options of the event, and its payload.
BAD: tuple[tuple[bytes | str, dict[str, Any]], ...] = (
    (bytes(1_048_577), {}),
    ("text", {}),
    (b"x", {"partition": 4}),
    (b"x", {"key": "k" * 256}),
    (b"x", {"headers": {"a": float("nan")}}),
    (b"x", {"not_before": datetime(2026, 1, 1)}),
    (b"x", {"event_id": "7"}),
    (b"x", {"max_attempts": 0}),
)


def _refusal(publish: Callable[..., Any], payload: Any, options: dict[str, Any]) -> Any:
    with pytest.raises(PenstockError) as caught:
        publish(payload, **options)
    return type(caught.value), str(caught.value)


@pytest.mark.long_on("mysql")
def test_it_publishes_and_refuses_as_publish_does(db: ContractDatabase) -> None:
    """Guard: _call, by which all but the one statement goes the ordinary way."""
    own = db.connect()
    topic(own, 1, TOPIC)
    publisher = penstock.publisher(own, TOPIC)
    own_id = uuid.uuid4()
    assert publisher.publish(
        b"1", key="Ä%s'", type="t", content_type="text/plain", headers={"a": [1, None]},
        event_id=own_id, partition=0, max_attempts=3,
    ) == own_id  # fmt: skip
    first = publisher.publish_once(b"2", dedup_key="d")
    again = publisher.publish_once(b"2", dedup_key="d")
    assert (first.duplicate, again.duplicate, again.event_id) == (False, True, first.event_id)
    publisher.publish(b"later", not_before=datetime.now(UTC) + timedelta(hours=1))
    penstock.publisher(own, TOPIC, strict=True).publish(b"3", key="k")
    for payload, options in BAD:
        expected = _refusal(lambda given, **more: penstock.publish(own, TOPIC, given, **more),
                            payload, options)  # fmt: skip
        assert _refusal(publisher.publish, payload, options) == expected
    drain(own)
    events = read(own, 0, TOPIC)
    assert [event.payload for event in events] == [b"1", b"2", b"3"]
    assert (events[0].event_id, events[0].key, events[0].type) == (own_id, "Ä%s'", "t")
    assert events[0].content_type == "text/plain"
    assert events[0].headers == {"a": [1, None], "penstock-max-attempts": 3}


@pytest.mark.long_on("mariadb")
def test_it_stays_in_the_transaction_that_is_open(db: ContractDatabase) -> None:
    """It begins none: a topic that does not exist is found when the first event is published."""
    topic(db.connect(), 1, TOPIC)
    with open_transaction(db) as own:
        publisher = penstock.publisher(own, TOPIC)
        unknown = penstock.publisher(own, "bank/nothing")
        publisher.publish(b"1")
        database.execute(own, "SAVEPOINT a")
        publisher.publish(b"undone")
        database.execute(own, "ROLLBACK TO SAVEPOINT a")
        with pytest.raises(TopicNotFound, match="'bank/nothing'"):
            unknown.publish(b"x")
        own.commit()
        publisher.publish(b"rolled back")
        own.rollback()
        publisher.publish(b"2")
        own.commit()
    other = db.connect()
    drain(other)
    assert texts(other, 0, TOPIC) == ["1", "2"]


@pytest.mark.long_on("mysql", "mariadb")
def test_what_happens_to_the_topic_is_seen(db: ContractDatabase) -> None:
    """Guards: the topic is forgotten when the database refuses, and errors are typed."""
    own, other = db.connect(), db.connect()
    topic(own, 1, TOPIC)
    publisher = penstock.publisher(own, TOPIC)
    publisher.publish(b"1")
    limit = {"topic": TOPIC, "max_bytes": None}
    database.call(other, "set_backpressure", max_events=1, **limit)
    with pytest.raises(BackPressure):
        publisher.publish(b"2")
    database.call(other, "set_backpressure", max_events=None, **limit)
    publisher.publish(b"2")
    drain(other)
    penstock.delete_topic(other, TOPIC)
    drain(other)
    for _ in range(2):
        with pytest.raises(TopicNotFound):
            publisher.publish(b"3")
    topic(other, 1, TOPIC)
    publisher.publish(b"4")
    drain(other)
    assert texts(other, 0, TOPIC) == ["4"]
