"""What a program keeps about a queue, in the database, with its rights and its end."""

from __future__ import annotations

import pytest

from penstock import database
from penstock.errors import InvalidArgument, SubscriptionNotFound, WrongMode
from penstock.subscriptions import labels, queue, stream
from tests.contract.databases import ContractDatabase
from tests.kit.log import Connection
from tests.kit.queue import QUEUE, TOPIC, count, filled


def test_labels_are_kept_replaced_and_gone_with_their_queue(own: Connection) -> None:
    filled(own, 1)
    assert labels.labels_of(own, QUEUE) == labels.QueueLabels({}, None, None)
    labels.label(own, QUEUE, {"a": [1, "ä", None], "b": {"c": 1.5}})
    first = labels.labels_of(own, QUEUE)
    assert first.labels == {"a": [1, "ä", None], "b": {"c": 1.5}}
    labels.label(own, QUEUE, {"x": "y"})
    second = labels.labels_of(own, QUEUE)
    assert second.labels == {"x": "y"}
    assert first.created_at == second.created_at
    assert first.changed_at is not None and second.changed_at is not None
    assert first.changed_at <= second.changed_at
    stream.unsubscribe(own, QUEUE)
    assert count(own, "queue_labels") == 0
    queue.subscribe(own, QUEUE, [TOPIC])
    assert labels.labels_of(own, QUEUE).labels == {}


def test_labels_that_cannot_be_kept_are_refused(own: Connection) -> None:
    filled(own, 1)
    with pytest.raises(InvalidArgument):
        labels.label(own, QUEUE, {"x": object()})
    with pytest.raises(InvalidArgument):
        labels.label(own, QUEUE, {"x": "y" * 65_536})
    for text in ("[]", "1", "null"):
        with pytest.raises(InvalidArgument):
            database.call(own, "label_queue", subscription=QUEUE, labels=text)
    with pytest.raises(SubscriptionNotFound):
        labels.label(own, "none", {})
    stream.subscribe(own, "reader", [TOPIC])
    with pytest.raises(WrongMode):
        labels.labels_of(own, "reader")


def test_without_the_removal_labels_would_stay(db: ContractDatabase, own: Connection) -> None:
    verb = "DELETE FROM" if db.engine == "postgres" else "DELETE l FROM"
    guard = f"{verb} queue_labels AS l WHERE l.subscription_id = owner_id;"
    db.without_guard("unsubscribe", guard, "")
    filled(own, 1)
    labels.label(own, QUEUE, {"x": "y"})
    stream.unsubscribe(own, QUEUE)
    assert count(own, "queue_labels") == 1


def test_who_only_locks_a_queue_writes_no_row(db: ContractDatabase, own: Connection) -> None:
    """A change of labels locks it by configuring nothing.  MySQL never writes an equal row."""
    if db.engine != "postgres":
        pytest.skip("an equal row has no second version")
    filled(own, 1)

    def versions() -> object:
        return database.execute(own, "SELECT ctid::text, xmin::text FROM penstock.queues")

    before = versions()
    queue.configure(own, QUEUE)
    queue.configure(own, QUEUE, visibility_seconds=queue.describe(own, QUEUE).visibility_seconds)
    assert versions() == before
    queue.configure(own, QUEUE, visibility_seconds=7)
    assert versions() != before
