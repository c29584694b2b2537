"""Legal holds: what is held stays, whatever retention says; nothing else stays because of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import penstock
from ops.retention.clean import drop_slices
from ops.retention.storage import SliceState
from ops.seal import log_epochs, seal
from penstock import database, log
from penstock.errors import (
    AlreadyExists,
    EmptyName,
    EmptySegment,
    InUse,
    InvalidArgument,
    InvalidPartition,
    TopicNotFound,
)
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.topics import holds
from tests.contract.databases import ContractDatabase, MySQLDatabase
from tests.contract.kit import open_transaction
from tests.contract.mysql_kit import cut_events
from tests.contract.ops.test_guarded_drops import record
from tests.contract.stream_kit import Guard, without
from tests.kit.cleaning import clean_unread
from tests.kit.log import drain, topic
from tests.kit.proof import proves

TOPIC = "bank/accounts"
OTHER = "bank/cards"

NO_HOLD: Guard = {
    "postgres": ("retention_hold", "WHEN held_by IS NOT NULL", "WHEN false"),
    "mysql": ("retention_hold", "WHEN held_by IS NOT NULL", "WHEN FALSE"),
}
ANY_RANGE: Guard = {
    "postgres": ("find_hold_over", "AND h.first_sequence <= find_hold_over.last_sequence", ""),
    "mysql": ("find_hold_over", "AND h.first_sequence <= last_sequence", ""),
}
NO_HOLD_OF_TOPICS: Guard = {
    "postgres": ("drop_topics", "IF FOUND THEN", "IF false THEN"),
    "mysql": ("drop_topics", "IF held_by IS NOT NULL THEN", "IF FALSE THEN"),
}
NO_LOCK: Guard = {
    "postgres": ("lock_topic", "FOR NO KEY UPDATE;", ";"),
    "mysql": ("lock_topic", "    FOR UPDATE;", "    ;"),
}


def _due(connection: Any, name: str = TOPIC, partitions: int = 1, events: int = 4) -> None:
    """Log epochs of two events that nothing holds, in each partition."""
    topic(connection, partitions, name)
    messages = [Message(name, b"x", partition=n % partitions) for n in range(events * partitions)]
    publish_batch(connection, messages)
    drain(connection)
    _let_go(connection, name)


def _let_go(connection: Any, name: str = TOPIC) -> None:
    for epoch in seal(connection, name, max_events=2, max_age_seconds=0):
        record(connection, epoch, "a")
    policy = {"minimum_age_seconds": 0, "copies": 1, "origin": "hand", "targets": ["a"]}
    database.call(connection, "set_retention", max_bytes=None, topic=name, **policy)


def _clean(connection: Any, name: str = TOPIC) -> list[tuple[int, str]]:
    """The low sequence of each partition, and what holds the rest."""
    return [(low, reason) for _, _, low, reason in clean_unread(connection, name)]


def _said(epoch: int, name: str = "case 17") -> str:
    return f'legal hold "{name}" covers log epoch {epoch}'


GONE = "nothing sealed is left"


@proves("D9 under a legal hold")
def test_a_topic_is_held_until_its_hold_is_released(db: ContractDatabase) -> None:
    """Guard: the hold's line in `retention_hold`; the record says who, when and why."""
    own = db.connect()
    _due(own, partitions=2)
    assert holds.place_hold(own, TOPIC, "case 17", "a claim") == 0
    assert _clean(own) == [(1, _said(1))] * 2
    assert [each.dropped_at for each in log_epochs(own, TOPIC)] == [None] * 4
    (found,) = holds.list_holds(own, TOPIC)
    assert (found.topic, found.name, found.reason) == (TOPIC, "case 17", "a claim")
    assert (found.partition, found.first_sequence, found.last_sequence) == (None, 1, None)
    assert found.placed_by
    assert holds.release_hold(own, TOPIC, "case 17", "the claim was dropped")
    assert not holds.release_hold(own, TOPIC, "case 17", "again")
    assert holds.list_holds(own) == []
    (over,) = holds.list_holds(own, TOPIC, with_released=True)
    assert (over.placed_at, over.release_reason) == (found.placed_at, "the claim was dropped")
    assert over.released_at is not None
    assert over.released_by == over.placed_by
    assert over.released_at >= over.placed_at
    assert _clean(own) == [(5, GONE)] * 2


@proves("D9 under a legal hold", guard="retention_hold")
def test_without_the_guard_what_is_held_goes(db: ContractDatabase) -> None:
    """Mutant: retention does not ask for holds."""
    own = db.connect()
    _due(own)
    holds.place_hold(own, TOPIC, "case 17", "a claim")
    without(db, NO_HOLD)
    assert _clean(own) == [(5, GONE)]


@proves("D9 under a legal hold")
def test_a_partition_is_held_and_the_others_go(db: ContractDatabase) -> None:
    """Also those of another topic; a partition that comes later is held by a hold of the topic."""
    own = db.connect()
    _due(own, partitions=2)
    _due(own, OTHER)
    holds.place_hold(own, TOPIC, "case 17", "a claim", partition=1)
    assert _clean(own) == [(5, GONE), (1, _said(1))]
    assert _clean(own, OTHER) == [(5, GONE)]
    holds.place_hold(own, TOPIC, "case 18", "another claim")
    penstock.resize_topic(own, TOPIC, 3)
    publish_batch(own, [Message(TOPIC, b"x", partition=2)])
    drain(own)
    _let_go(own)
    assert _clean(own)[2] == (1, _said(1, "case 18"))


@proves("D9 under a legal hold")
def test_a_range_holds_the_log_epochs_that_it_touches(db: ContractDatabase) -> None:
    """What lies before it goes; a log epoch goes as one, and the low sequence is one number."""
    own = db.connect()
    _due(own, events=8)
    holds.place_hold(
        own, TOPIC, "case 17", "a claim", partition=0, first_sequence=4, last_sequence=5
    )
    assert _clean(own) == [(3, _said(2))]
    holds.place_hold(own, TOPIC, "case 18", "a claim", partition=0, first_sequence=6)
    holds.release_hold(own, TOPIC, "case 17", "over")
    assert _clean(own) == [(5, _said(3, "case 18"))]
    holds.release_hold(own, TOPIC, "case 18", "over")
    # Nothing is left of the first one, and two of four are left of the next.
    gone = [
        holds.place_hold(
            own, TOPIC, f"case {first}", "late", partition=0, first_sequence=first, last_sequence=6
        )
        for first in (1, 4, 5)
    ]
    assert gone == [4, 1, 0]


@proves("D9 under a legal hold", guard="the range")
def test_without_the_bound_a_range_holds_what_lies_before_it(db: ContractDatabase) -> None:
    """Mutant: every log epoch below the end of a hold is held."""
    own = db.connect()
    _due(own, events=8)
    holds.place_hold(own, TOPIC, "case 17", "a claim", partition=0, first_sequence=4)
    without(db, ANY_RANGE)
    assert _clean(own) == [(1, _said(1))]


def test_what_cannot_be_held_is_refused(db: ContractDatabase) -> None:
    """Typed errors, and nothing is written."""
    own = db.connect()
    _due(own)
    for error, changes in (
        (TopicNotFound, {"topic": "bank/nothing"}),
        (InvalidPartition, {"partition": 1}),
        (InvalidArgument, {"first_sequence": 1}),
        (InvalidArgument, {"partition": 0, "first_sequence": 0}),
        (InvalidArgument, {"partition": 0, "first_sequence": 3, "last_sequence": 2}),
        (InvalidArgument, {"partition": 0, "last_sequence": 0}),
        (InvalidArgument, {"partition": "0"}),
        (InvalidArgument, {"partition": 0, "first_sequence": True}),
        (InvalidArgument, {"reason": " "}),
        (InvalidArgument, {"reason": "x" * 1001}),
        (EmptyName, {"name": ""}),
        (EmptySegment, {"name": "a/b"}),
    ):
        given: dict[str, Any] = {"topic": TOPIC, "name": "case 17", "reason": "a claim"} | changes
        with pytest.raises(error):
            holds.place_hold(own, **given)
    assert holds.list_holds(own) == []
    holds.place_hold(own, TOPIC, "case 17", "a claim")
    with pytest.raises(AlreadyExists):
        holds.place_hold(own, TOPIC, "case 17", "a claim")
    with pytest.raises(InvalidArgument):
        holds.release_hold(own, TOPIC, "case 17", "")
    holds.release_hold(own, TOPIC, "case 17", "over")
    holds.place_hold(own, TOPIC, "case 17", "again")
    assert len(holds.list_holds(own, with_released=True)) == 2


@proves("D9 under a legal hold")
def test_a_topic_under_a_hold_is_not_deleted(db: ContractDatabase) -> None:
    """Guard: drop_topics asks for holds; neither alone nor with its namespace."""
    own = db.connect()
    _due(own)
    holds.place_hold(own, TOPIC, "case 17", "a claim", partition=0)
    with pytest.raises(InUse, match="case 17"):
        penstock.delete_topic(own, TOPIC)
    with pytest.raises(InUse, match="case 17"):
        penstock.delete_namespace(own, "bank", with_topics=True)
    assert len(log.fetch(own, TOPIC, 0, 1)) == 4
    without(db, NO_HOLD_OF_TOPICS)
    penstock.delete_topic(own, TOPIC)


@proves("D9 under a legal hold")
def test_a_hold_that_comes_during_a_clean_waits_for_it(db: ContractDatabase) -> None:
    """Guard: both lock the topic: a hold that was placed names what is really left."""
    assert _placed_during_a_clean(db, waits=True) == 4


@proves("D9 under a legal hold", guard="the lock on the topic")
def test_without_the_lock_it_promises_what_is_gone(db: ContractDatabase) -> None:
    """Mutant: nobody locks the topic."""
    without(db, NO_LOCK)
    assert _placed_during_a_clean(db, waits=False) == 0


def _placed_during_a_clean(db: ContractDatabase, *, waits: bool) -> int:
    """How much a hold that is placed meanwhile finds gone already."""
    own, other = db.connect(), db.connect()
    _due(own)
    with ThreadPoolExecutor(1) as pool, open_transaction(db) as cleaner:
        assert _clean(cleaner) == [(5, GONE)]
        placed = pool.submit(holds.place_hold, other, TOPIC, "case 17", "a claim")
        if waits:
            db.wait_until_blocked(other)
        else:
            placed.result(30)
        cleaner.commit()
        return placed.result(30)


@proves("D9 under a legal hold")
@pytest.mark.long_on("mysql")
def test_the_storage_of_what_is_held_is_all_that_stays(db: ContractDatabase) -> None:
    """The slice goes, with the events of another topic; the held ones are read as before.

    Guard: what is above a low sequence is copied before its slice is dropped.
    """
    own = db.connect()
    topic(own, name=TOPIC)
    topic(own, name=OTHER)
    publish_batch(
        own, [Message(TOPIC if n % 30 == 0 else OTHER, str(n).encode()) for n in range(900)]
    )
    drain(own)
    if isinstance(db, MySQLDatabase):
        cut_events(db)
    else:
        db.run("SELECT setval('penstock.events_id', 10001)")
    publish_batch(own, [Message(OTHER, b"next")])
    drain(own)
    for name in (TOPIC, OTHER):
        _let_go(own, name)
    holds.place_hold(own, TOPIC, "case 17", "a claim")
    before = log.fetch(own, TOPIC, 0, 1)
    assert _clean(own) == [(1, _said(1))]
    assert _clean(own, OTHER) == [(872, GONE)]
    states = {each.state for each in drop_slices(db.url) if each.parent == "events"}
    assert states == {SliceState.KEPT if isinstance(db, MySQLDatabase) else SliceState.DROPPED}
    assert len(before) == 30
    assert log.fetch(own, TOPIC, 0, 1) == before
    kept = "events PARTITION (old)" if isinstance(db, MySQLDatabase) else "events_kept"
    assert db.run(f"SELECT COUNT(*) FROM penstock.{kept}") == [(30,)]
