"""Heartbeats and check-ins are separate calls: what a heartbeat returns, whom a check-in calls."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import database
from penstock.errors import InvalidArgument, StaleLease, UnknownConsumer
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.subscriptions import stream
from penstock.subscriptions.stream import Beat, Membership
from tests.contract.databases import ContractDatabase
from tests.contract.kit import open_transaction
from tests.contract.stream_kit import Guard, check_in_rounds, end_lease, join, without
from tests.kit.log import drain, topic
from tests.kit.proof import proves
from tests.kit.stream import STREAM, SUBSCRIPTION, filled, holders, member_with_lease, more

pytestmark = pytest.mark.mariadb_differs("limits of transactions are each server's own")

WAITS_FOR_A_ROW: Guard = {
    "postgres": ("heartbeats", "FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE"),
    "mysql": ("heartbeats", "FOR UPDATE SKIP LOCKED", "FOR UPDATE"),
}
ANY_SESSION: Guard = {
    "postgres": (
        "heartbeats",
        "AND m.session = sessions[at]\n            FOR",
        "\n            FOR",
    ),
    "mysql": ("heartbeats", "AND c.session = run\n", "\n"),
}
NOBODY_IS_CALLED: Guard = {
    "postgres": (
        "share_out",
        "IF cardinality(mine.short) > 0 OR cardinality(mine.ample) > 0",
        "IF false",
    ),
    "mysql": ("share_out", "IF concerned > 0 THEN", "IF FALSE THEN"),
}
ALL_AT_ONCE: Guard = {
    "postgres": ("call_consumers", "GREATEST(t.at, now)", "now"),
    "mysql": (
        "call_consumers",
        "first_turn + INTERVAL turn * called - 1000000 MICROSECOND",
        "present",
    ),
}
NOTHING_IS_PUT_OFF: Guard = {
    "postgres": ("heartbeats", "c.check_in_at <= now AND NOT c.called AND", "false AND"),
    "mysql": ("heartbeats", "c.check_in_at <= present AND NOT c.called AND", "FALSE AND"),
}
NEVER_FRESH: Guard = {
    "postgres": ("check_in", "CASE WHEN fresh THEN", "CASE WHEN false THEN"),
    "mysql": ("check_in", "IF(fresh, asked_at,", "IF(FALSE, asked_at,"),
}
EACH_LOOKS: Guard = {
    "postgres": ("survey", "IF known.made_at >= since THEN", "IF false THEN"),
    "mysql": ("survey", "AND v.made_at BETWEEN since AND present", "AND FALSE"),
}


def _standings(connection: Any, members: list[Membership]) -> list[str]:
    return [beat.standing for beat in stream.heartbeats(connection, members)]


def _due(beats: list[Beat]) -> list[bool]:
    return [beat.check_in_seconds == 0 for beat in beats]


def _busy(connection: Any, partitions: int, *, target_qps: float = 10) -> None:
    """Unread events everywhere, and times that no test waits for."""
    topic(connection, partitions, STREAM)
    publish_batch(connection, [Message(STREAM, b"x", partition=n) for n in range(partitions)])
    drain(connection)
    stream.subscribe(connection, SUBSCRIPTION, [STREAM])
    stream.configure_subscription(
        connection, SUBSCRIPTION, heartbeat_seconds=60, lease_seconds=180, release_seconds=60
    )
    database.execute(
        connection, "UPDATE penstock.subscriptions SET target_qps = %(qps)s", {"qps": target_qps}
    )


def _mixed(db: ContractDatabase) -> tuple[Any, list[Membership]]:
    """A member, one that was collected, one of another session, one of no subscription."""
    own = db.connect()
    filled(own)
    alive, dead, twice = join(own, 3)
    end_lease(db, dead.consumer)
    stream.check_in(own, alive)
    stranger = Membership(SUBSCRIPTION, twice.consumer, alive.session, 3, 10)
    nowhere = Membership("nobody", alive.consumer, alive.session, 3, 10)
    return own, [nowhere, stranger, dead, alive, twice]


@proves("leases side by side")
def test_one_that_is_gone_disturbs_no_other(db: ContractDatabase) -> None:
    """Guard: an answer for each, in the order of the call, and no error."""
    own, members = _mixed(db)
    assert _standings(own, members) == ["gone", "gone", "gone", "member", "member"]
    assert _standings(own, members[::-1]) == ["member", "member", "gone", "gone", "gone"]
    assert _standings(own, []) == []


@proves("leases side by side", guard="the session")
def test_without_the_session_another_run_is_kept_alive(db: ContractDatabase) -> None:
    """Mutant: a heartbeat of the same id counts, whoever runs under it."""
    own, members = _mixed(db)
    without(db, ANY_SESSION)
    db.run("UPDATE penstock.consumers SET heartbeat_at = joined_at, deadline = '2000-01-01'")
    stream.heartbeats(own, members[:2])
    found = db.run("SELECT id FROM penstock.consumers WHERE deadline > '2000-01-02'")
    assert found == [(members[1].consumer,)]


def test_a_heartbeat_keeps_the_leases(db: ContractDatabase) -> None:
    """Guard: the deadline moves; a commit after it is accepted, one without it is not."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    end_lease(db, "a")
    with pytest.raises(StaleLease):
        stream.commit(own, member, [(lease, 1)])
    assert _standings(own, [member]) == ["member"]
    stream.commit(own, member, [(lease, 1)])


def test_arrays_of_different_lengths_are_refused(db: ContractDatabase) -> None:
    """Guard: the check of the arguments."""
    own = db.connect()
    with pytest.raises(InvalidArgument):
        database.call(own, "heartbeats", subscriptions=["a"], consumers=[], sessions=[])


@proves("leases side by side")
def test_a_row_that_somebody_holds_delays_no_other(db: ContractDatabase) -> None:
    """Guard: SKIP LOCKED. One's open transaction would let all leases of its process end."""
    own = db.connect()
    filled(own)
    members = join(own, 3)
    with open_transaction(db) as slow:
        stream.heartbeat(slow, members[1])
        assert _standings(own, members) == ["member", "locked", "member"]
    assert _standings(own, members) == ["member"] * 3


@proves("leases side by side", guard="SKIP LOCKED")
def test_without_that_the_heartbeat_waits(db: ContractDatabase) -> None:
    """Mutant: the row is waited for."""
    without(db, WAITS_FOR_A_ROW)
    own = db.connect()
    filled(own)
    members = join(own, 3)
    impatient = (
        "SET lock_timeout = '50ms'"
        if db.engine == "postgres"
        else ("SET innodb_lock_wait_timeout = 1")
    )
    database.execute(own, impatient)
    with open_transaction(db) as slow:
        stream.heartbeat(slow, members[1])
        with pytest.raises(Exception, match=r"(?i)lock"):
            stream.heartbeats(own, members)


@proves("the pace of check-ins")
def test_the_next_check_in_is_a_heartbeat_or_the_pace_away(db: ContractDatabase) -> None:
    """B-F37: however many consumers there are, they make target_qps check-ins a second."""
    own = db.connect()
    _busy(own, 4, target_qps=0.1)
    members = join(own, 3)
    assert _due(stream.heartbeats(own, members)) == [True] * 3
    check_in_rounds(own, members, 3)
    for beat in stream.heartbeats(own, members):
        assert beat.pace_seconds == pytest.approx(30)
        assert 50 < beat.check_in_seconds <= 66
    members += join(own, 17, first=3)
    check_in_rounds(own, members, 3)
    for beat in stream.heartbeats(own, members):
        assert beat.pace_seconds == pytest.approx(200)
        assert 170 < beat.check_in_seconds <= 220


def _called(db: ContractDatabase) -> list[bool]:
    """Of four that hold all, who is due after a fifth has joined and checked in."""
    own = db.connect()
    _busy(own, 64)
    members = join(own, 4)
    check_in_rounds(own, members, 3)
    assert not any(_due(stream.heartbeats(own, members)))
    members += join(own, 1, first=4)
    stream.check_in(own, members[-1])
    return _due(stream.heartbeats(own, members))


@proves("the pace of check-ins")
def test_who_is_concerned_is_called(db: ContractDatabase) -> None:
    """Guard: a check-in that finds surplus elsewhere calls for it; all get their share."""
    assert _called(db) == [True, True, True, True, False]
    own = db.connect()
    assert database.execute(own, "SELECT COUNT(*) FROM penstock.consumers WHERE called") == [(4,)]


@proves("the pace of check-ins", guard="calls")
def test_without_calls_a_newcomer_waits_for_the_others_turns(db: ContractDatabase) -> None:
    """Mutant: nobody is called."""
    without(db, NOBODY_IS_CALLED)
    assert _called(db) == [False] * 5


def test_a_free_partition_calls_only_as_many_as_it_needs(db: ContractDatabase) -> None:
    """Guard: the number of free partitions; the check-in of who was called takes it."""
    own = db.connect()
    _busy(own, 6)
    members = join(own, 4)
    check_in_rounds(own, members, 3)
    gone = members.pop()
    stream.leave(own, gone)
    stream.check_in(own, members[0])
    due = _due(stream.heartbeats(own, members))
    assert due[0] is False
    for member, is_due in zip(members, due, strict=True):
        if is_due:
            stream.check_in(own, member, fresh=False)
    assert len(holders(own)) == 6
    assert not any(_due(stream.heartbeats(own, members)))


def _turns(db: ContractDatabase, count: int = 12) -> list[float]:
    """When each of many consumers that were called at once may check in."""
    own = db.connect()
    _busy(own, 3 * count, target_qps=5)
    members = join(own, count)
    check_in_rounds(own, members, 4)
    db.run("UPDATE penstock.consumers SET called = false")
    db.run("UPDATE penstock.surveys SET called_until = '2000-01-01'")
    stream.check_in(own, stream.join(own, SUBSCRIPTION, "heavy", weight=2 * count))
    return sorted(beat.check_in_seconds for beat in stream.heartbeats(own, members))


@proves("the pace of check-ins")
def test_those_who_are_called_come_one_behind_the_other(db: ContractDatabase) -> None:
    """Guard: target_qps at once, then as many a second, whatever was called before."""
    turns = _turns(db)
    for place, turn in enumerate(turns):
        assert turn <= max(0.0, place / 5 - 1)
    assert turns[-1] > 0.5


@proves("the pace of check-ins", guard="turns")
def test_without_turns_all_come_at_once(db: ContractDatabase) -> None:
    """Mutant: everybody is called for now."""
    without(db, ALL_AT_ONCE)
    assert _turns(db) == [0] * 12


def _beside_the_called(db: ContractDatabase) -> list[float]:
    """Those whose own turn comes while others are called."""
    own = db.connect()
    _busy(own, 4)
    members = join(own, 4)
    check_in_rounds(own, members, 2)
    db.run("UPDATE penstock.consumers SET check_in_at = '2000-01-01'")
    db.run("UPDATE penstock.consumers SET called = true WHERE id = 'c000'")
    later = {"postgres": "clock_timestamp() + INTERVAL '50 seconds'"}
    other = "UTC_TIMESTAMP(6) + INTERVAL 50 SECOND"
    db.run(f"UPDATE penstock.surveys SET called_until = {later.get(db.engine, other)}")
    return [beat.check_in_seconds for beat in stream.heartbeats(own, members)]


@proves("the pace of check-ins")
def test_the_others_put_their_check_ins_off(db: ContractDatabase) -> None:
    """Guard: the sum of both stays at target_qps."""
    called, *others = _beside_the_called(db)
    assert called == 0
    assert min(others) > 20


@proves("the pace of check-ins", guard="putting off")
def test_without_that_both_come(db: ContractDatabase) -> None:
    """Mutant: a turn of one's own is kept."""
    without(db, NOTHING_IS_PUT_OFF)
    assert _beside_the_called(db) == [0] * 4


def _active_later(db: ContractDatabase, *, fresh: bool) -> dict[int, str]:
    own = db.connect()
    topic(own, 2, STREAM)
    stream.subscribe(own, SUBSCRIPTION, [STREAM])
    database.execute(own, "UPDATE penstock.subscriptions SET refresh_seconds = 600")
    (member,) = join(own, 1)
    stream.check_in(own, member)
    more(own, partitions=2, events=1)
    stream.check_in(own, member, fresh=fresh)
    return holders(own)


@proves("a fresh check-in")
def test_a_check_in_that_asks_sees_what_became_active(db: ContractDatabase) -> None:
    """Guard: fresh. Without being asked, a survey is shared for refresh_seconds."""
    assert _active_later(db, fresh=True) == {0: "c000", 1: "c000"}


@proves("a fresh check-in")
def test_a_survey_is_shared(db: ContractDatabase) -> None:
    """Guard: made_at."""
    assert _active_later(db, fresh=False) == {}


@proves("a fresh check-in", guard="fresh")
def test_without_asking_nothing_is_found(db: ContractDatabase) -> None:
    """Mutant: nobody may ask."""
    without(db, NEVER_FRESH)
    assert _active_later(db, fresh=True) == {}


@proves("a fresh check-in", guard="made_at")
def test_without_sharing_each_check_in_looks(db: ContractDatabase) -> None:
    """Mutant: made_at is not looked at."""
    without(db, EACH_LOOKS)
    assert _active_later(db, fresh=False) == {0: "c000", 1: "c000"}


def test_what_was_surveyed_as_cold_and_is_not_any_more_is_kept(db: ContractDatabase) -> None:
    """Guard: the backlog is asked for again before a lease is given up."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    stream.commit(own, member, [(lease, 10)])
    more(own, events=1, start=11)
    db.run("DELETE FROM penstock.active_partitions")
    (still,) = stream.check_in(own, member, fresh=False)
    assert still.state == "ACTIVE"


def test_a_heartbeat_of_somebody_who_left_brings_him_not_back(db: ContractDatabase) -> None:
    """And what he leaves behind is removed with the subscription."""
    own = db.connect()
    filled(own)
    member, _ = member_with_lease(own, "a")
    stream.leave(own, member)
    assert _standings(own, [member]) == ["gone"]
    with pytest.raises(UnknownConsumer):
        stream.heartbeat(own, member)
    stream.unsubscribe(own, SUBSCRIPTION)
    for table in ("consumers", "surveys", "active_partitions"):
        assert database.execute(own, f"SELECT COUNT(*) FROM penstock.{table}") == [(0,)]
