"""Subscriptions on every engine: where they begin, what they read, and what is refused."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock import database, log, subscriptions
from penstock.errors import (
    BelowLowSequence,
    BeyondHighWatermark,
    InvalidArgument,
    InvalidName,
    InvalidPartition,
    PenstockError,
    SubscriptionNotFound,
    TopicNotFound,
    WrongIsolation,
)
from penstock.subscriptions import stream
from penstock.topics import names
from tests.contract.databases import ContractDatabase
from tests.contract.kit import count, open_transaction
from tests.kit.cleaning import clean_unread
from tests.kit.log import topic
from tests.kit.stream import (
    STREAM,
    SUBSCRIPTION,
    filled,
    member_with_lease,
    more,
    short_leases,
    stored,
)


@pytest.mark.parametrize(
    ("start", "position"), [("earliest", 0), ("latest", 10), (1, 0), (7, 6), (11, 10)]
)
def test_where_a_subscription_begins(db: ContractDatabase, start: str | int, position: int) -> None:
    """The whole log, what comes, or a sequence."""
    own = db.connect()
    filled(own, partitions=2)
    assert stream.subscribe(own, "other", [STREAM], start) == 1
    assert stream.position(own, "other", STREAM) == {0: position, 1: position}


@pytest.mark.parametrize(
    ("start", "error"),
    [
        (12, BeyondHighWatermark),
        (0, InvalidArgument),
        (-1, InvalidArgument),
        ("middle", InvalidArgument),
        ("7x", InvalidArgument),
        ("", InvalidArgument),
    ],
)
def test_where_it_cannot_begin(
    db: ContractDatabase, start: str | int, error: type[PenstockError]
) -> None:
    """Typed, and nothing of the subscription is left."""
    own = db.connect()
    filled(own)
    with pytest.raises(error):
        stream.subscribe(own, "other", [STREAM], start)
    with pytest.raises(error):
        stream.seek(own, SUBSCRIPTION, STREAM, 0, start)
    assert count(db, "subscriptions") == 1
    assert stored(own) == 0


def test_below_the_low_sequence_it_cannot_begin(db: ContractDatabase) -> None:
    """Guard: require_readable; "earliest" is the low sequence."""
    own = db.connect()
    filled(own)
    db.run("UPDATE penstock.partitions SET low_sequence = 4")
    with pytest.raises(BelowLowSequence):
        stream.subscribe(own, "other", [STREAM], 3)
    assert stream.subscribe(own, "other", [STREAM], "earliest") == 1
    assert stream.position(own, "other", STREAM) == {0: 3}


def test_topics_are_added_once(db: ContractDatabase) -> None:
    """Answers how many were new; the position of what was read already stays."""
    own = db.connect()
    filled(own)
    topic(own, 2, "tests/second")
    member, lease = member_with_lease(own, "a")
    stream.commit(own, member, [(lease, 4)])
    assert stream.subscribe(own, SUBSCRIPTION, [STREAM, "tests/second", STREAM]) == 1
    assert stream.subscribe(own, SUBSCRIPTION, ["tests/second"]) == 0
    assert stored(own) == 4
    assert [(each.topic, each.partition) for each in subscriptions.lag(own, SUBSCRIPTION)] == [
        ("tests/second", 0),
        ("tests/second", 1),
        (STREAM, 0),
    ]


def test_an_unknown_topic_leaves_nothing(db: ContractDatabase) -> None:
    """All topics or none, also where the connection commits every statement."""
    own = db.connect()
    topic(own, 1, STREAM)
    with pytest.raises(TopicNotFound):
        stream.subscribe(own, SUBSCRIPTION, [STREAM, "tests/zzz"])
    assert (count(db, "subscriptions"), count(db, "leases"), count(db, "positions")) == (0, 0, 0)
    with pytest.raises(InvalidArgument):
        stream.subscribe(own, SUBSCRIPTION, [])
    with pytest.raises(InvalidName):
        stream.subscribe(own, "n" * 501, [STREAM])


def test_names_are_compared_exactly(db: ContractDatabase) -> None:
    """Case and trailing blanks count."""
    own = db.connect()
    filled(own)
    for name in (SUBSCRIPTION.upper(), SUBSCRIPTION + " "):
        with pytest.raises(SubscriptionNotFound):
            stream.position(own, name, STREAM)
    stream.subscribe(own, "größe/ß", [STREAM])
    assert stream.position(own, "größe/ß", STREAM) == {0: 0}


def test_unsubscribed_it_is_gone(db: ContractDatabase) -> None:
    """And its name can begin anew."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    stream.commit(own, member, [(lease, 4)])
    stream.unsubscribe(own, SUBSCRIPTION)
    assert (count(db, "leases"), count(db, "consumers")) == (0, 0)
    verbs: list[Callable[[], object]] = [
        lambda: stream.unsubscribe(own, SUBSCRIPTION),
        lambda: stream.check_in(own, member),
        lambda: stream.poll(own, member, [lease]),
        lambda: stream.commit(own, member, [(lease, 5)]),
    ]
    for verb in verbs:
        with pytest.raises(SubscriptionNotFound):
            verb()
    stream.subscribe(own, SUBSCRIPTION, [STREAM])
    assert stored(own) == 0


def test_a_seek_needs_a_partition_that_is_read(db: ContractDatabase) -> None:
    """Typed errors for what is not there."""
    own = db.connect()
    filled(own)
    topic(own, 1, "tests/second")
    with pytest.raises(InvalidPartition):
        stream.seek(own, SUBSCRIPTION, STREAM, 1, "earliest")
    with pytest.raises(TopicNotFound):
        stream.seek(own, SUBSCRIPTION, "tests/zzz", 0, "earliest")
    with pytest.raises(SubscriptionNotFound):
        stream.seek(own, SUBSCRIPTION, "tests/second", 0, "earliest")
    with pytest.raises(SubscriptionNotFound):
        stream.seek(own, "nobody", STREAM, 0, "earliest")


def test_lag_tells_who_is_behind(db: ContractDatabase) -> None:
    """Position, high watermark, age and holder."""
    own = db.connect()
    filled(own, partitions=2)
    member = stream.join(own, SUBSCRIPTION, "a")
    first, _ = stream.check_in(own, member)
    stream.commit(own, member, [(first, 10)])
    done, waiting = subscriptions.lag(own)
    assert (done.position, done.high_watermark, done.lag_events, done.lag_seconds) == (
        10, 10, 0, 0,
    )  # fmt: skip
    assert (waiting.position, waiting.lag_events, waiting.holder) == (0, 10, "a")
    assert (waiting.state, waiting.lease_epoch) == ("ACTIVE", 1)
    assert 0 < waiting.lag_seconds < 60
    assert subscriptions.lag(own, "nobody") == []


@pytest.mark.parametrize("seconds", [(0, 10), (3, 8), (1, 90_000), (math.nan, 10), (3, math.inf)])
def test_times_that_cannot_be_are_refused(
    db: ContractDatabase, seconds: tuple[float, float]
) -> None:
    """A lease lasts three heartbeats at least and less than a day."""
    own = db.connect()
    filled(own)
    heartbeat, lease = seconds
    with pytest.raises(InvalidArgument):
        stream.configure_subscription(
            own, SUBSCRIPTION, heartbeat_seconds=heartbeat, lease_seconds=lease
        )
    assert count(db, "policies") == 0
    short_leases(own, 3)
    member = stream.join(own, SUBSCRIPTION, "a")
    assert (member.heartbeat_seconds, member.lease_seconds) == (1, 3)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_what_relies_on_a_lock_refuses_an_old_snapshot(db: ContractDatabase, level: str) -> None:
    """Guard: require_read_committed."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    verbs: list[Callable[[Any], object]] = [
        lambda other: stream.commit(other, member, [(lease, 1)]),
        lambda other: stream.subscribe(other, "another", [STREAM]),
        lambda other: stream.seek(other, SUBSCRIPTION, STREAM, 0, "earliest"),
        lambda other: database.call(other, "clean", topic=STREAM, run=None),
        lambda other: database.call(
            other, "release_rehydrated", topic=STREAM, older_than_seconds=0, max_epochs=1
        ),
        lambda other: database.call(
            other,
            "begin_erasure",
            topic=STREAM,
            event_id=None,
            key="a",
            reason="asked",
            replace_key=False,
        ),
    ]
    for verb in verbs:
        other = db.connect()
        # Of the session, because MySQL's START TRANSACTION names no level.
        database.execute(
            other,
            f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}"
            if db.engine == "postgres"
            else f"SET SESSION TRANSACTION ISOLATION LEVEL {level}",
        )
        with pytest.raises(WrongIsolation):
            verb(other)


def test_subscribe_waits_for_a_drop_that_is_under_way(db: ContractDatabase) -> None:
    """Guard: both lock the topic's row, so that "earliest" never points below the low sequence."""
    own = db.connect()
    filled(own)
    with open_transaction(db) as dropping:
        clean_unread(dropping, STREAM)
        database.execute(dropping, "UPDATE penstock.partitions SET low_sequence = 6")
        thread = threading.Thread(target=stream.subscribe, args=(own, "other", [STREAM]))
        thread.start()
        db.wait_until_blocked(own)
        dropping.commit()
        thread.join(30)
    assert stream.position(own, "other", STREAM) == {0: 5}


def test_what_is_read_is_not_locked(db: ContractDatabase) -> None:
    """Guard: SELECT .. INTO. A reader stops no sequencer, no heartbeat and no subscriber."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    with open_transaction(db) as reader:
        stream.commit(reader, member, [(lease, 4)])
        stream.position(reader, SUBSCRIPTION, STREAM)
        subscriptions.lag(reader, SUBSCRIPTION)
        stream.poll(reader, member, [lease])
        log.fetch(reader, STREAM, 0, 1)
        names.describe_topic(reader, STREAM)
        more(own, start=11)  # publishes and sequences
        stream.heartbeat(own, member)
        stream.subscribe(own, "other", [STREAM])
        clean_unread(own, STREAM)
        reader.commit()
    assert stored(own) == 4
