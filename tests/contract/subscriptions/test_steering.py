"""Subscriptions as an operator controls them: start, pause, reset, and what the views show."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from penstock import database, subscriptions
from penstock.errors import (
    BelowLowSequence,
    InvalidArgument,
    PenstockError,
    StaleLease,
    SubscriptionNotFound,
    TopicNotFound,
    UnknownConsumer,
)
from penstock.publishing.publish import publish
from penstock.records import Lease, as_time
from penstock.subscriptions import stream
from penstock.topics import names
from tests.contract.databases import ContractDatabase
from tests.contract.kit import count, open_transaction
from tests.contract.stream_guards import SEEK_LEAVES_THE_LEASE
from tests.contract.stream_kit import (
    PAST,
    Guard,
    check_in_rounds,
    end_lease,
    join,
    merge_six,
    pass_time,
    without,
)
from tests.kit.log import drain, part, topic
from tests.kit.proof import proves
from tests.kit.stream import (
    STREAM,
    SUBSCRIPTION,
    filled,
    holders,
    member_with_lease,
    more,
    stored,
)

SECOND = "tests/second"

IGNORES_WHAT_IS_GONE: Guard = {
    "postgres": ("position_since", "IF wanted < low_sequence OR (", "IF false AND ("),
    "mysql": ("position_since", "IF first_wanted < low OR", "IF FALSE AND"),
}
CHECK_INS_GO_ON: Guard = {
    "postgres": ("check_in", "IF is_paused(owner.id) THEN", "IF false THEN"),
    "mysql": ("check_in", "IF paused THEN", "IF FALSE THEN"),
}
POLLS_GO_ON: Guard = {
    "postgres": ("poll", "IF owner.paused_at IS NOT NULL THEN", "IF false THEN"),
    "mysql": ("poll", "AND s.paused_at IS NULL", ""),
}


def _now(db: ContractDatabase) -> datetime:
    """The database's clock, which the sequencer uses, too."""
    now = "clock_timestamp()" if db.engine == "postgres" else "UTC_TIMESTAMP(6)"
    ((found,),) = db.run(f"SELECT {now}")
    return as_time(found)


def test_at_a_time_begins_what_was_sequenced_then(db: ContractDatabase) -> None:
    """Guard: the comparison with the chunk's time; whatever the zone it is written in."""
    own = db.connect()
    filled(own, partitions=2)
    between = _now(db)
    more(own, partitions=2, start=11)
    starts: list[stream.Start] = [
        between,
        between.astimezone(timezone(timedelta(hours=-5, minutes=-30))),
        between.isoformat().replace("+00:00", "Z"),
    ]
    for number, start in enumerate(starts):
        name = f"since {number}"
        stream.subscribe(own, name, [STREAM], start)
        assert stream.position(own, name, STREAM) == {0: 10, 1: 10}
    stream.subscribe(own, "all", [STREAM], between - timedelta(hours=1))
    assert stream.position(own, "all", STREAM) == {0: 0, 1: 0}
    stream.subscribe(own, "rest", [STREAM], _now(db))
    assert stream.position(own, "rest", STREAM) == {0: 20, 1: 20}
    assert stream.seek(own, "rest", STREAM, 1, between) == 10


@proves("a start at a time")
def test_at_a_time_a_late_commit_is_not_missed(db: ContractDatabase) -> None:
    """Guard: the time is that of sequencing; the event was published before it."""
    own = db.connect()
    topic(own, 1, STREAM)
    with open_transaction(db) as late:
        publish(late, STREAM, b"late")
        publish(own, STREAM, b"early")
        drain(own)
        between = _now(db)
        late.commit()
    drain(own)
    stream.subscribe(own, SUBSCRIPTION, [STREAM], between)
    assert stored(own) == 1
    member, lease = member_with_lease(own, "a")
    ((_, (event,)),) = stream.poll(own, member, [lease])
    assert event.payload == b"late"
    assert event.created_at < between <= event.sequenced_at


def test_within_a_merged_chunk_each_event_has_its_time(db: ContractDatabase) -> None:
    """Guard: sequenced_ats, which a chunk of several passes has."""
    own = db.connect()
    filled(own, events=3)
    more(own, events=3, start=4)
    merge_six(db)
    ((first,), *_) = db.run("SELECT sequenced_at FROM penstock.chunks")
    stream.subscribe(own, "since", [STREAM], as_time(first))
    assert stream.position(own, "since", STREAM) == {0: 3}


#: No zone, no such day, hour or zone, no time, one that has not come.
NO_TIMES = (
    "2026-01-31T09:30:00", "2026-02-31T09:30:00Z", "2026-01-31T25:30:00Z", "2026-01-31", "now",
    "2026-01-31T09:30:00+99:00", "2026-01-31 09:30:00 Z", "9999-01-31T09:30:00Z", "",
)  # fmt: skip


def test_a_time_that_cannot_be_is_refused(db: ContractDatabase) -> None:
    """Typed, by every verb that starts; nothing has moved."""
    own = db.connect()
    filled(own)
    for start in NO_TIMES:
        with pytest.raises(InvalidArgument):
            stream.subscribe(own, "other", [STREAM], start)
        with pytest.raises(InvalidArgument):
            stream.seek(own, SUBSCRIPTION, STREAM, 0, start)
        with pytest.raises(InvalidArgument):
            stream.reset(own, SUBSCRIPTION, start)
    assert (count(db, "subscriptions"), count(db, "positions")) == (1, 1)
    with pytest.raises(InvalidArgument, match="no zone"):
        stream.reset(own, SUBSCRIPTION, datetime(2026, 1, 31))


def _start_behind_a_drop(db: ContractDatabase) -> None:
    own = db.connect()
    filled(own)
    between = _now(db)
    more(own, start=11)
    db.run("UPDATE penstock.partitions SET low_sequence = 14")
    stream.subscribe(own, "other", [STREAM], between)


@proves("a start at a time")
def test_a_time_of_which_something_was_dropped(db: ContractDatabase) -> None:
    """Guard: the comparison with the low sequence; the rest is "earliest"."""
    with pytest.raises(BelowLowSequence):
        _start_behind_a_drop(db)
    own = db.connect()
    stream.subscribe(own, "other", [STREAM], "earliest")
    assert stream.position(own, "other", STREAM) == {0: 13}


@proves("a start at a time", guard="the low sequence")
def test_without_the_guard_what_was_dropped_is_passed_over(db: ContractDatabase) -> None:
    """Mutant: a position below the low sequence is taken."""
    without(db, IGNORES_WHAT_IS_GONE)
    _start_behind_a_drop(db)
    assert stream.position(db.connect(), "other", STREAM) == {0: 10}


@proves("a start at a time")
def test_a_time_before_what_nobody_knows_any_more(db: ContractDatabase) -> None:
    """Guard: the time of the last event that was dropped; its chunk went, too."""
    own = db.connect()
    filled(own)
    between = _now(db)
    more(own, start=11)
    db.run("UPDATE penstock.partitions SET low_sequence = 11")
    stream.subscribe(own, "exact", [STREAM], between)
    assert stream.position(own, "exact", STREAM) == {0: 10}
    db.run("DELETE FROM penstock.chunks WHERE first_sequence = 1")
    with pytest.raises(BelowLowSequence):
        stream.subscribe(own, "other", [STREAM], between)


def test_earliest_of_partitions_that_a_resize_adds(db: ContractDatabase) -> None:
    """A subscription reads them from their beginning; a later one, too."""
    own = db.connect()
    filled(own)
    names.resize_topic(own, STREAM, 3)
    more(own, partitions=3, events=2)
    stream.subscribe(own, "later", [STREAM], "earliest")
    assert stream.position(own, SUBSCRIPTION, STREAM) == {0: 0, 1: 0, 2: 0}
    assert stream.position(own, "later", STREAM) == {0: 0, 1: 0, 2: 0}


def _two_topics(own: Any) -> None:
    filled(own, partitions=2)
    topic(own, 1, SECOND)
    more(own, name=SECOND)
    stream.subscribe(own, SUBSCRIPTION, [SECOND])


@proves("a reset")
def test_a_reset_moves_every_partition(db: ContractDatabase) -> None:
    """Holders lose their leases, and the ledger and the history of leases say so."""
    own = db.connect()
    _two_topics(own)
    member = stream.join(own, SUBSCRIPTION, "a")
    held = stream.check_in(own, member)
    stream.commit(own, member, [(lease, 4) for lease in held])
    assert stream.reset(own, SUBSCRIPTION, "latest") == {
        (STREAM, 0): 10, (STREAM, 1): 10, (SECOND, 0): 10,
    }  # fmt: skip
    with pytest.raises(StaleLease):
        stream.commit(own, member, [(lease, 5) for lease in held])
    assert stream.reset(own, SUBSCRIPTION, 3, topic=SECOND) == {(SECOND, 0): 2}
    assert [(lag.topic, lag.position, lag.lease_epoch) for lag in subscriptions.lag(own)] == [
        (SECOND, 2, 3), (STREAM, 10, 2), (STREAM, 10, 2),
    ]  # fmt: skip
    for table in ("positions WHERE reason = 'seek'", "lease_history WHERE holder IN ('a', '')"):
        assert count(db, table) >= 4


@proves("a reset")
def test_a_reset_is_all_or_none(db: ContractDatabase) -> None:
    """Guard: one transaction; the second partition has no sequence 8."""
    own = db.connect()
    topic(own, 2, STREAM)
    publish(own, STREAM, b"x", partition=1)
    for _ in range(9):
        publish(own, STREAM, b"x", partition=0)
    drain(own)
    stream.subscribe(own, SUBSCRIPTION, [STREAM])
    with pytest.raises(PenstockError):
        stream.reset(own, SUBSCRIPTION, 8)
    assert stream.position(own, SUBSCRIPTION, STREAM) == {0: 0, 1: 0}
    for arguments, error in (
        ({"subscription": "nobody"}, SubscriptionNotFound),
        ({"topic": "tests/zzz"}, TopicNotFound),
    ):
        with pytest.raises(error):
            stream.reset(own, **{"subscription": SUBSCRIPTION, "start": "latest", **arguments})
    topic(own, 1, SECOND)
    with pytest.raises(SubscriptionNotFound, match="does not read"):
        stream.reset(own, SUBSCRIPTION, "latest", topic=SECOND)


@proves("a reset", guard="lease_epoch")
def test_without_the_epoch_a_reset_stops_nobody(db: ContractDatabase) -> None:
    """Mutant: the lease stays; what was read before the reset is committed after it."""
    without(db, SEEK_LEAVES_THE_LEASE)
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    stream.reset(own, SUBSCRIPTION, "earliest")
    stream.commit(own, member, [(lease, 10)])
    assert stored(own) == 10


def _paused(own: Any) -> tuple[stream.Membership, Any]:
    filled(own)
    held = member_with_lease(own, "a")
    assert subscriptions.pause(own, SUBSCRIPTION, "the ledger is closed")
    return held


@proves("a pause")
def test_paused_nothing_is_handed_out(db: ContractDatabase) -> None:
    """Polls give nothing; what is in hand is committed; check-ins ask for it back."""
    own = db.connect()
    member, lease = _paused(own)
    assert stream.poll(own, member, [lease]) == []
    stream.commit(own, member, [(lease, 4)])
    (asked,) = stream.check_in(own, member)
    assert asked.state == "RELEASING"
    stream.commit(own, member, [(asked, 5)])
    assert stream.release(own, member, [asked]) == 1
    check_in_rounds(own, [member, *join(own, 2)], 3)
    assert holders(own) == {}
    (found,) = subscriptions.list_subscriptions(own)
    assert found.paused_reason == "the ledger is closed"
    assert found.paused_by
    assert found.paused_at is not None
    assert abs(found.paused_at - datetime.now(UTC)) < timedelta(hours=1)
    assert not subscriptions.pause(own, SUBSCRIPTION)
    assert subscriptions.describe_subscription(own, SUBSCRIPTION) == found
    assert not subscriptions.pause(own, SUBSCRIPTION, "again")
    described = subscriptions.describe_subscription(own, SUBSCRIPTION)
    assert described == replace(found, paused_reason="again")
    assert subscriptions.resume(own, SUBSCRIPTION)
    assert not subscriptions.resume(own, SUBSCRIPTION)
    (lease,) = stream.check_in(own, member)
    ((_, events),) = stream.poll(own, member, [lease])
    assert events[0].sequence == 6
    assert subscriptions.describe_subscription(own, SUBSCRIPTION).paused_at is None


@proves("a pause")
@pytest.mark.mariadb_differs("what calls claim there")
def test_paused_nobody_claims(db: ContractDatabase) -> None:
    """Guard: is_paused in claim, by which consumers with a leader take partitions."""
    own = db.connect()
    filled(own)
    member = stream.join(own, SUBSCRIPTION, "a")
    subscriptions.pause(own, SUBSCRIPTION)
    wanted = {
        "subscription": SUBSCRIPTION, "consumer": "a", "session": member.session,
        "partition_id": part(own, 0, STREAM), "lease_epoch": 0,
    }  # fmt: skip
    assert database.call(own, "claim", **wanted) == [(None,)]
    subscriptions.resume(own, SUBSCRIPTION)
    assert database.call(own, "claim", **wanted) == [(0,)]


def test_what_is_not_given_back_in_a_pause_is_taken(db: ContractDatabase) -> None:
    """Guard: the release deadline; who wakes up later can commit nothing."""
    own = db.connect()
    member, lease = _paused(own)
    stream.check_in(own, member)
    db.run("UPDATE penstock.leases SET release_deadline = %(past)s", {"past": PAST})
    assert stream.check_in(own, member) == []
    with pytest.raises(StaleLease):
        stream.commit(own, member, [(lease, 4)])


@proves("a pause", guard="the look of check-in and poll")
def test_without_the_guards_a_pause_is_none(db: ContractDatabase) -> None:
    """Mutants: polls go on, check-ins hand out."""
    for guard in (CHECK_INS_GO_ON, POLLS_GO_ON):
        without(db, guard)
    own = db.connect()
    member, lease = _paused(own)
    assert len(stream.poll(own, member, [lease])) == 1
    assert [each.state for each in stream.check_in(own, member)] == ["ACTIVE"]


def _check_in_behind_a_pause(db: ContractDatabase) -> list[Lease]:
    own = db.connect()
    filled(own)
    member = stream.join(own, SUBSCRIPTION, "a")
    with open_transaction(db) as pausing, ThreadPoolExecutor(1) as pool:
        subscriptions.pause(pausing, SUBSCRIPTION)
        held = pool.submit(stream.check_in, own, member)
        db.wait_until_blocked(own)
        pausing.commit()
        return held.result(30)


@proves("a pause")
def test_a_check_in_that_waits_for_a_pause_hands_out_nothing(db: ContractDatabase) -> None:
    """Guard: the look under the lock of the subscription's row."""
    assert _check_in_behind_a_pause(db) == []


@proves("a pause", guard="the look behind the lock")
@pytest.mark.parametrize("db", ["postgres"], indirect=True)
def test_with_a_look_before_the_lock_it_does(db: ContractDatabase) -> None:
    """Mutant: the row as it was read before.  On MySQL nothing is read before the lock."""
    db.without_guard(
        "check_in", "IF is_paused(owner.id) THEN", "IF owner.paused_at IS NOT NULL THEN"
    )
    assert len(_check_in_behind_a_pause(db)) == 1


def test_what_cannot_be_paused_is_told(db: ContractDatabase) -> None:
    own = db.connect()
    filled(own)
    verbs: list[Callable[[], object]] = [
        lambda: subscriptions.pause(own, "nobody"),
        lambda: subscriptions.resume(own, "nobody"),
        lambda: subscriptions.describe_subscription(own, "nobody"),
    ]
    for verb in verbs:
        with pytest.raises(SubscriptionNotFound):
            verb()
    with pytest.raises(InvalidArgument):
        subscriptions.pause(own, SUBSCRIPTION, "x" * 1_001)
    assert subscriptions.describe_subscription(own, SUBSCRIPTION).paused_at is None


def test_subscriptions_are_listed_and_described(db: ContractDatabase) -> None:
    """Created, found and gone; the others stay as they are."""
    own = db.connect()
    _two_topics(own)
    stream.subscribe(own, "other", [SECOND])
    other, found = subscriptions.list_subscriptions(own)
    assert (found.name, found.topics, found.mode) == (SUBSCRIPTION, (SECOND, STREAM), "stream")
    assert (found.heartbeat_seconds, found.lease_seconds, found.max_consumers) == (3, 10, 1_024)
    assert (other.name, other.topics) == ("other", (SECOND,))
    stream.unsubscribe(own, SUBSCRIPTION)
    assert subscriptions.list_subscriptions(own) == [other]


def test_the_views_show_what_is_held_and_what_can_be(db: ContractDatabase) -> None:
    """Guard: lag_events > 0; what can be leased is exactly what has unread events."""
    own = db.connect()
    topic(own, 4, STREAM)
    for number in (1, 2):
        publish(own, STREAM, b"x", partition=number)
    drain(own)
    stream.subscribe(own, SUBSCRIPTION, [STREAM])
    free = subscriptions.unleased_cursors(own)
    assert [(each.partition, each.lag_events) for each in free] == [(1, 1), (2, 1)]
    assert subscriptions.leased_cursors(own) == []
    member = stream.join(own, SUBSCRIPTION, "a", weight=2)
    held = stream.check_in(own, member)
    assert subscriptions.unleased_cursors(own, SUBSCRIPTION) == []
    first, second = subscriptions.leased_cursors(own, SUBSCRIPTION)
    assert (first.partition, first.holder, first.state, first.lease_epoch) == (1, "a", "ACTIVE", 1)
    assert (second.partition, second.position, second.lag_events) == (2, 0, 1)
    assert first.acquired_at <= _now(db) < (first.deadline or first.acquired_at)
    stream.commit(own, member, [(held[0], 1)])
    (figures,) = subscriptions.statistics(own)
    assert (figures.active_partitions, figures.active_consumers, figures.active_weight) == (1, 1, 2)
    assert (figures.heartbeat_seconds, figures.moves, figures.take_overs) == (3, 0, 0)
    assert figures.changed_at == first.acquired_at
    assert subscriptions.unleased_cursors(own, "nobody") == []
    assert subscriptions.leased_cursors(own, "nobody") == []
    assert subscriptions.statistics(own, "nobody") == []


def test_moves_and_take_overs_of_the_last_hour_are_counted(db: ContractDatabase) -> None:
    """A lease that its holder gave back, and one that he lost."""
    own = db.connect()
    filled(own)
    member_with_lease(own, "a")
    end_lease(db, "a")
    b, lease = member_with_lease(own, "b")
    (figures,) = subscriptions.statistics(own, SUBSCRIPTION)
    assert (figures.moves, figures.take_overs) == (0, 1)
    heavy = stream.join(own, SUBSCRIPTION, "heavy", weight=3)
    stream.release(own, b, [lease])
    stream.check_in(own, heavy)
    (figures,) = subscriptions.statistics(own)
    assert (figures.moves, figures.take_overs, figures.active_weight) == (1, 1, 4)
    pass_time(db, 3_700)
    (figures,) = subscriptions.statistics(own, SUBSCRIPTION)
    assert (figures.active_consumers, figures.moves, figures.take_overs) == (0, 0, 0)


def test_the_last_error_of_a_consumer_is_kept(db: ContractDatabase) -> None:
    """Overwritten, cut, seen beside its consumer, and gone with it."""
    own = db.connect()
    filled(own)
    member, _ = member_with_lease(own, "a")
    stream.report_error(own, member, "first")
    stream.report_error(own, member, "ü" * 3_000)
    (found,) = subscriptions.members(own, SUBSCRIPTION)
    assert (found.consumer, found.weight, found.leases, found.live) == ("a", 1.0, 1, True)
    assert found.last_error == "ü" * 2_000
    assert found.last_error_at is not None
    assert found.joined_at <= found.heartbeat_at <= found.last_error_at < found.deadline
    for stranger in (replace(member, consumer="b"), replace(member, session=uuid.uuid4())):
        with pytest.raises(UnknownConsumer):
            stream.report_error(own, stranger, "x")
    # An earlier run of the same id has told what it died of.
    end_lease(db, "a")
    again = stream.join(own, SUBSCRIPTION, "a")
    assert subscriptions.members(own)[0].last_error == "ü" * 2_000
    stream.leave(own, again)
    assert (count(db, "consumer_errors"), subscriptions.members(own)) == (0, [])
