"""The database's clock was set back: what leases and their sharing have stored lies ahead."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import database
from penstock.subscriptions import stream
from penstock.subscriptions.stream import Membership
from penstock.upkeep.sweeping import sweep
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import Guard, pass_time, without
from tests.kit.log import drain
from tests.kit.proof import proves
from tests.kit.stream import STREAM, SUBSCRIPTION, filled, member_with_lease, more

HOUR = 3600

#: A heartbeat that lies ahead keeps a consumer alive until then.
ANY_DEADLINE: Guard = {
    "postgres": ("collect_dead", "PERFORM mend_deadlines(collect_dead.subscription_id, now);", ""),
    "mysql": ("collect_dead", "CALL mend_deadlines(owner_id, present);", ""),
}
#: What a survey found an hour ahead is believed.
ANY_SURVEY: Guard = {
    "postgres": ("survey", "AND v.made_at <= now", ""),
    "mysql": ("survey", "BETWEEN since AND present", ">= since"),
}


def _ahead(db: ContractDatabase, table: str, *columns: str, seconds: int = HOUR) -> None:
    number = f"'{seconds}'" if db.engine == "postgres" else str(seconds)
    changes = ", ".join(f"{each} = {each} + INTERVAL {number} SECOND" for each in columns)
    db.run(f"UPDATE penstock.{table} SET {changes}")


def _taken_over(db: ContractDatabase, own: Any, by: str) -> bool:
    """Whether a dead consumer whose heartbeat lies an hour ahead loses its lease in lease time."""
    filled(own)
    member_with_lease(own, "a")
    _ahead(db, "consumers", "heartbeat_at", "deadline", "check_in_at")
    successor = stream.join(own, SUBSCRIPTION, "b")
    assert stream.check_in(own, successor) == []
    if by == "the sweep":
        sweep(own)
    pass_time(db, 11)
    stream.leave(own, successor)
    successor = stream.join(own, SUBSCRIPTION, "b")
    return len(stream.check_in(own, successor)) == 1


@proves("D8, and queues, after the clock was set back")
@pytest.mark.parametrize("by", ["a check-in", "the sweep"])
def test_a_dead_consumer_is_replaced_within_its_lease(db: ContractDatabase, by: str) -> None:
    """Guard: mend_deadlines; its time begins anew when somebody looks."""
    assert _taken_over(db, db.connect(), by)


@proves("D8, and queues, after the clock was set back", guard="mend_deadlines")
def test_without_that_it_holds_for_the_hour(db: ContractDatabase) -> None:
    """Mutant."""
    without(db, ANY_DEADLINE)
    assert not _taken_over(db, db.connect(), "the sweep")


def test_the_sweep_alone_looks(db: ContractDatabase) -> None:
    """Where nobody checks in, and the same consumer would be refused as running."""
    own = db.connect()
    filled(own)
    member_with_lease(own, "a")
    _ahead(db, "consumers", "heartbeat_at", "deadline")
    sweep(own)
    pass_time(db, 11)
    assert sweep(own).expired_consumers == 1


def test_a_live_consumer_keeps_its_lease(db: ContractDatabase) -> None:
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    _ahead(db, "consumers", "heartbeat_at", "deadline", "check_in_at")
    sweep(own)
    pass_time(db, 6)
    stream.heartbeat(own, member)
    pass_time(db, 6)
    assert sweep(own).expired_consumers == 0
    assert [each.lease_epoch for each in stream.held_leases(own, member)] == [lease.lease_epoch]


@proves("D8, and queues, after the clock was set back")
def test_a_lease_that_has_to_be_released_is_freed(db: ContractDatabase) -> None:
    own = db.connect()
    filled(own)
    member, _ = member_with_lease(own, "a")
    db.run("UPDATE penstock.leases SET state = 'RELEASING'")
    now = "clock_timestamp()" if db.engine == "postgres" else "UTC_TIMESTAMP(6)"
    db.run(f"UPDATE penstock.leases SET release_deadline = {now}")
    _ahead(db, "leases", "release_deadline")
    sweep(own)
    pass_time(db, 11)
    stream.heartbeat(own, member)
    sweep(own)
    assert db.run("SELECT state FROM penstock.leases") == [("AVAILABLE",)]


def _found_new(db: ContractDatabase, own: Any) -> int:
    """How many partitions a check-in takes whose survey lies an hour ahead."""
    filled(own, events=0)
    member = stream.join(own, SUBSCRIPTION, "a")
    assert stream.check_in(own, member) == []
    _ahead(db, "surveys", "made_at")
    more(own, events=1)
    drain(own)
    return len(stream.check_in(own, member, fresh=False))


@proves("D8, and queues, after the clock was set back")
def test_a_survey_that_lies_ahead_is_made_anew(db: ContractDatabase) -> None:
    """Else nobody would find new events in a partition that had none."""
    assert _found_new(db, db.connect()) == 1


@proves("D8, and queues, after the clock was set back", guard="made_at")
def test_without_that_new_events_wait(db: ContractDatabase) -> None:
    """Mutant."""
    without(db, ANY_SURVEY)
    assert _found_new(db, db.connect()) == 0


def _check_in_after(own: Any, member: Membership) -> float:
    (beat,) = stream.heartbeats(own, [member])
    return beat.check_in_seconds


@proves("D8, and queues, after the clock was set back")
def test_check_ins_go_on(db: ContractDatabase) -> None:
    """The next one, and the turn of those that are called."""
    own = db.connect()
    filled(own)
    member, _ = member_with_lease(own, "a")
    _ahead(db, "consumers", "check_in_at")
    assert _check_in_after(own, member) == 0
    now = "clock_timestamp()" if db.engine == "postgres" else "UTC_TIMESTAMP(6)"
    db.run(f"UPDATE penstock.surveys SET called_until = {now}")
    _ahead(db, "surveys", "called_until")
    assert _check_in_after(own, member) == 0


@proves("D8, and queues, after the clock was set back")
def test_a_backfill_of_a_lost_run_is_claimed(db: ContractDatabase) -> None:
    """And one that waits for its next attempt: an hour is the longest pause, a day the lease."""
    own = db.connect()
    filled(own)
    request = {
        "topic": STREAM, "kind": "relay", "target": "t", "partition": None, "from_sequence": 1,
        "to_sequence": 5, "from_time": None, "to_time": None, "dry_run": False, "priority": 0,
        "max_attempts": 5,
    }  # fmt: skip
    database.call(own, "request_backfill", **request)
    claim = {"run": "r", "lease_seconds": 60, "request": None, "kinds": None}
    _ahead(db, "backfill_requests", "not_before", seconds=7200)
    assert len(database.call(own, "claim_backfill", **claim)) == 1
    assert database.call(own, "claim_backfill", **claim) == []
    _ahead(db, "backfill_requests", "deadline", seconds=90_000)
    assert len(database.call(own, "claim_backfill", **claim)) == 1
