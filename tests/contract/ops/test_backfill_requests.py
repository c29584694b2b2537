"""Backfill requests: claimed by one runner at a time, fenced by the attempt, their ranges fixed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ops.backfill import requests as requests
from ops.backfill.requests import BackfillClaim, BackfillUnit, Window
from ops.seal import log_epochs, seal
from penstock import database
from penstock.errors import InvalidArgument, InvalidPartition, StaleAttempt, TopicNotFound
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from tests.contract.databases import ContractDatabase
from tests.contract.kit import count, open_transaction
from tests.contract.stream_kit import Guard, without
from tests.kit.cleaning import clean_unread
from tests.kit.log import drain, topic
from tests.kit.proof import proves
from tests.kit.stream import STREAM

NO_FENCE: Guard = {
    "postgres": ("hold_backfill", "OR held.attempts IS DISTINCT FROM attempt", ""),
    "mysql": ("hold_backfill", "AND r.attempts = attempt", ""),
}
NO_STATE: Guard = {
    "postgres": ("hold_backfill", "held.state IS DISTINCT FROM 'running' OR", ""),
    "mysql": ("hold_backfill", "AND r.state = 'running'", ""),
}
NO_SKIP: Guard = {
    "postgres": ("claim_backfill", "FOR NO KEY UPDATE SKIP LOCKED", ""),
    "mysql": ("lock_due_backfill", "FOR UPDATE SKIP LOCKED", ""),
}
PAST = "2020-01-01 00:00:00"


def _sealed(connection: Any, partitions: int = 1, epochs: int = 3, tail: int = 0) -> None:
    """Log epochs of ten events in each partition, and a tail that is not sealed."""
    topic(connection, partitions, STREAM)
    for part in range(partitions):
        batch = [Message(STREAM, b"x", partition=part)] * (10 * epochs + tail)
        publish_batch(connection, batch)
    drain(connection)
    seal(connection, STREAM, max_events=10)


def _ask(connection: Any, kind: str = "copy", target: str = "a", **window: Any) -> int:
    return requests.request_backfill(connection, STREAM, kind, target, Window(**window)).request


def _claim(connection: Any, run: str = "one", **options: Any) -> BackfillClaim:
    found = requests.claim_backfill(connection, run, **options)
    assert found is not None
    return found


def _units(connection: Any, claim: BackfillClaim) -> list[BackfillUnit]:
    return requests.open_units(connection, claim, None, 1_000)


def _places(units: list[BackfillUnit]) -> list[tuple[int, int, int]]:
    return [(each.partition, each.first_sequence, each.last_sequence) for each in units]


def _state(connection: Any, request: int) -> tuple[str, int, int]:
    (found,) = requests.list_backfills(connection, request=request)
    return found.state, found.done_units, found.done_events


def _silent(db: ContractDatabase) -> None:
    """As if the runners had been silent for as long as they may be."""
    db.run(
        "UPDATE penstock.backfill_requests SET deadline = %(past)s WHERE state = 'running'",
        {"past": PAST},
    )


def _at_once(db: ContractDatabase) -> None:
    """As if the pause after a failed attempt were over."""
    db.run("UPDATE penstock.backfill_requests SET not_before = %(past)s", {"past": PAST})


def test_a_request_is_worked_off_range_by_range(db: ContractDatabase) -> None:
    """It keeps count, and ends only when nothing is left."""
    own = db.connect()
    _sealed(own, partitions=2)
    asked = requests.request_backfill(own, STREAM, "copy", "a")
    assert (asked.units, asked.total_events) == (6, 60)
    claim = _claim(own)
    assert (claim.request, claim.attempt, claim.topic) == (asked.request, 1, STREAM)
    units = _units(own, claim)
    assert _places(units)[:4] == [(0, 1, 10), (0, 11, 20), (0, 21, 30), (1, 1, 10)]
    sealed = {(each.partition, each.log_epoch): each.checksum for each in log_epochs(own, STREAM)}
    assert {(each.partition, each.log_epoch): each.checksum for each in units} == sealed
    assert all(each.is_hot for each in units)
    assert requests.open_units(own, claim, units[3], 1) == [units[4]]
    assert requests.progress(own, claim, units[0]) == 10
    assert requests.progress(own, claim, units[0]) == 10
    with pytest.raises(InvalidArgument, match="5 ranges"):
        requests.finish(own, claim)
    for unit in units[1:]:
        requests.progress(own, claim, unit)
    requests.finish(own, claim)
    assert _state(own, asked.request) == ("done", 6, 60)
    assert [each.done_by for each in requests.ranges(own, asked.request)] == [1] * 6
    assert requests.claim_backfill(own, "two") is None


def test_two_claimers_never_get_the_same_request(db: ContractDatabase) -> None:
    """The second takes the next one while the first has not committed, and then nothing."""
    own = db.connect()
    _sealed(own)
    first, second = _ask(own), _ask(own)
    with open_transaction(db) as one, open_transaction(db) as two:
        assert _claim(one, "one").request == first
        assert _claim(two, "two").request == second
        assert requests.claim_backfill(own, "three") is None
        one.commit()
        two.commit()
    assert [each.run for each in requests.list_backfills(own)] == ["two", "one"]


@proves("a range is brought once", guard="the lock in claim_backfill")
def test_without_the_lock_two_runners_get_the_same_request(db: ContractDatabase) -> None:
    """Mutant: the claim of the second waits for the first one's, and takes what that one has."""
    own = db.connect()
    _sealed(own)
    asked = _ask(own)
    without(db, NO_SKIP)
    with (
        open_transaction(db) as one,
        open_transaction(db) as two,
        ThreadPoolExecutor(max_workers=1) as pool,
    ):
        assert _claim(one, "one").request == asked
        second = pool.submit(_claim, two, "two")
        db.wait_until_blocked(two)
        one.commit()
        assert second.result().request == asked


def test_priority_comes_first_and_kinds_are_left_out(db: ContractDatabase) -> None:
    own = db.connect()
    _sealed(own)
    low = _ask(own)
    high = requests.request_backfill(own, STREAM, "copy", "a", priority=5).request
    assert requests.claim_backfill(own, "one", kinds=["relay"]) is None
    assert requests.claim_backfill(own, "one", request=high + 1) is None
    assert [_claim(own, kinds=["copy"]).request, _claim(own).request] == [high, low]


@proves("a range is brought once")
def test_who_lost_its_attempt_can_change_nothing(db: ContractDatabase) -> None:
    """Guard: the attempt in `hold_backfill`."""
    own = db.connect()
    _sealed(own)
    asked = _ask(own)
    lost = _claim(own, "lost")
    unit, other, _ = _units(own, lost)
    requests.progress(own, lost, unit)
    assert requests.claim_backfill(own, "early") is None
    _silent(db)
    present = _claim(own, "present")
    assert (present.request, present.attempt, present.done_units) == (asked, 2, 1)
    calls = (
        lambda: requests.progress(own, lost, other),
        lambda: requests.extend(own, lost),
        lambda: requests.open_units(own, lost, None, 10),
        lambda: requests.finish(own, lost),
        lambda: requests.fail(own, lost, "late"),
    )
    for call in calls:
        with pytest.raises(StaleAttempt, match="attempt 1"):
            call()
    assert _places(_units(own, present)) == [(0, 11, 20), (0, 21, 30)]
    assert _state(own, asked) == ("running", 1, 10)
    without(db, NO_FENCE)
    requests.progress(own, lost, other)
    assert _state(own, asked) == ("running", 2, 20)


def test_progress_and_a_new_claim_follow_each_other(db: ContractDatabase) -> None:
    """A step that is not committed yet keeps the request: nobody claims it meanwhile."""
    own = db.connect()
    _sealed(own)
    _ask(own)
    claim = _claim(own)
    unit, *_ = _units(own, claim)
    _silent(db)
    with open_transaction(db) as one:
        requests.progress(one, claim, unit)
        assert requests.claim_backfill(own, "two") is None
        one.commit()
    assert requests.claim_backfill(own, "two") is None  # it has said that it is alive
    _silent(db)
    assert len(_units(own, _claim(own, "two"))) == 2


@pytest.mark.mariadb_differs("what calls fail_backfill there")
def test_what_failed_is_tried_again_after_a_pause_and_not_for_ever(db: ContractDatabase) -> None:
    """The pause doubles; what is done stays done; the last attempt is the last."""
    own = db.connect()
    _sealed(own)
    asked = requests.request_backfill(own, STREAM, "copy", "a", max_attempts=2).request
    claim = _claim(own)
    requests.progress(own, claim, _units(own, claim)[0])
    assert requests.fail(own, claim, "disk full", base_seconds=600) == "waiting"
    assert requests.claim_backfill(own, "two") is None
    (found,) = requests.list_backfills(own)
    assert found.error == "disk full"
    pause = (found.not_before - found.changed_at).total_seconds()
    assert pause == pytest.approx(600, abs=1)
    _at_once(db)
    claim = _claim(own)
    assert (claim.attempt, len(_units(own, claim))) == (2, 2)
    assert requests.fail(own, claim, "disk full again") == "failed"
    _at_once(db)
    assert requests.claim_backfill(own, "three") is None
    assert _state(own, asked) == ("failed", 1, 10)


def test_a_request_whose_runners_are_lost_again_and_again_has_failed(db: ContractDatabase) -> None:
    own = db.connect()
    _sealed(own)
    asked = requests.request_backfill(own, STREAM, "copy", "a", max_attempts=1).request
    after = _ask(own)
    _claim(own, "lost")
    _silent(db)
    assert _claim(own, "two").request == after
    (_, found) = requests.list_backfills(own)
    assert (found.request, found.state) == (asked, "failed")
    assert found.error == 'the run "lost" was lost in the last of 1 attempts'


def test_a_cancelled_request_stops_its_runner(db: ContractDatabase) -> None:
    """Guard: the state in `hold_backfill`."""
    own = db.connect()
    _sealed(own)
    asked = _ask(own)
    claim = _claim(own)
    unit, other, *_ = _units(own, claim)
    requests.progress(own, claim, unit)
    assert requests.cancel(own, asked)
    assert not requests.cancel(own, asked)
    with pytest.raises(StaleAttempt):
        requests.progress(own, claim, other)
    assert _state(own, asked) == ("cancelled", 1, 10)
    _silent(db)
    assert requests.claim_backfill(own, "two") is None
    without(db, NO_STATE)
    requests.progress(own, claim, other)
    assert _state(own, asked) == ("cancelled", 2, 20)
    with pytest.raises(InvalidArgument, match="no backfill request"):
        requests.cancel(own, asked + 1)


def test_a_dry_run_counts_what_the_request_does(db: ContractDatabase) -> None:
    """It is recorded, done, and has no ranges."""
    own = db.connect()
    _sealed(own, partitions=2, tail=5)
    for kind, target in (("copy", "a"), ("rehydrate", ""), ("relay", "jsonl:/nowhere")):
        window = Window(partition=1, from_sequence=15)
        dry = requests.request_backfill(own, STREAM, kind, target, window, dry_run=True)
        assert _state(own, dry.request) == ("done", 0, 0)
        assert requests.ranges(own, dry.request) == []
        real = requests.request_backfill(own, STREAM, kind, target, window)
        assert (dry.units, dry.total_events) == (real.units, real.total_events)
        if real.units:
            claim = _claim(own)
            for unit in _units(own, claim):
                requests.progress(own, claim, unit)
            requests.finish(own, claim)
        assert _state(own, real.request) == ("done", dry.units, dry.total_events)
    assert requests.claim_backfill(own, "one") is None


def test_a_copy_is_of_what_the_target_lacks(db: ContractDatabase) -> None:
    """Whole log epochs that overlap the window."""
    own = db.connect()
    _sealed(own, tail=5)
    _, there, _ = log_epochs(own, STREAM)
    _record(own, there)
    _ask(own)
    assert _places(_units(own, _claim(own))) == [(0, 1, 10), (0, 21, 30)]
    _ask(own, target="b", from_sequence=10, to_sequence=11)
    assert _places(_units(own, _claim(own))) == [(0, 1, 10), (0, 11, 20)]


def test_a_rehydration_is_of_what_was_dropped(db: ContractDatabase) -> None:
    own = db.connect()
    _sealed(own)
    first, second, _ = log_epochs(own, STREAM)
    given = {"minimum_age_seconds": 0, "copies": 1, "origin": "hand", "targets": ["a"]}
    database.call(own, "set_retention", max_bytes=None, topic=STREAM, **given)
    for epoch in (first, second):
        _record(own, epoch)
    clean_unread(own, STREAM)
    _ask(own, "rehydrate", "", from_sequence=12)
    units = _units(own, _claim(own))
    assert _places(units) == [(0, 11, 20)]
    assert not units[0].is_hot


def _record(connection: Any, epoch: Any, target: str = "a") -> None:
    database.call(
        connection, "record_copy", topic=STREAM, partition=epoch.partition,
        log_epoch=epoch.log_epoch, target=target, location="nowhere",
        event_count=epoch.event_count, checksum=epoch.checksum, layout=1, first_row=0,
    )  # fmt: skip


def test_a_relay_is_of_the_exact_window_and_of_what_is_not_sealed(db: ContractDatabase) -> None:
    own = db.connect()
    _sealed(own, tail=5)
    _ask(own, "relay", "jsonl:/nowhere", from_sequence=5, to_sequence=33)
    units = _units(own, _claim(own))
    assert _places(units) == [(0, 5, 10), (0, 11, 20), (0, 21, 30), (0, 31, 33)]
    assert [each.log_epoch for each in units] == [1, 2, 3, None]
    assert [each.checksum is None for each in units] == [True, False, False, True]
    _ask(own, "relay", "jsonl:/nowhere", from_time=datetime(2020, 1, 1, tzinfo=UTC))
    assert len(_units(own, _claim(own))) == 3


def test_times_choose_log_epochs_by_when_they_were_sealed(db: ContractDatabase) -> None:
    """from_time belongs to the window, to_time does not."""
    own = db.connect()
    _sealed(own)
    noon = datetime(2024, 5, 1, 12, tzinfo=UTC)
    for number in (1, 2, 3):
        at = (noon + timedelta(hours=number)).strftime("%Y-%m-%d %H:%M:%S")
        zone = "+00" if db.engine == "postgres" else ""
        db.run(
            f"UPDATE penstock.log_epochs SET sealed_at = '{at}{zone}' WHERE log_epoch = {number}"
        )
    hour = timedelta(hours=1)
    _ask(own, from_time=noon + 2 * hour, to_time=noon + 3 * hour)
    assert [each.log_epoch for each in _units(own, _claim(own))] == [2]


BAD: dict[str, dict[str, Any]] = {
    "kind": {"kind": "other"},
    "no target": {"target": ""},
    "a target for nothing": {"kind": "rehydrate"},
    "a long target": {"target": "x" * 1001},
    "backwards": {"from_sequence": 5, "to_sequence": 4},
    "zero": {"from_sequence": 0},
    "beyond": {"to_sequence": 31},
    "from beyond": {"from_sequence": 31},
    "partition": {"partition": 1},
    "times": {
        "from_time": datetime(2024, 1, 2, tzinfo=UTC),
        "to_time": datetime(2024, 1, 2, tzinfo=UTC),
    },
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_is_refused_before_anything_is_written(
    db: ContractDatabase, name: str
) -> None:
    own = db.connect()
    _sealed(own)
    with pytest.raises((InvalidArgument, InvalidPartition)) as refused:
        _ask(own, **BAD[name])
    assert refused.value.hint
    assert count(db, "backfill_requests") == 0


@pytest.mark.mariadb_differs("what calls extend_backfill there")
def test_bad_options_are_refused(db: ContractDatabase) -> None:
    own = db.connect()
    _sealed(own)
    bad: list[dict[str, Any]] = [{"priority": 1001}, {"max_attempts": 0}, {"max_attempts": 101}]
    for options in bad:
        with pytest.raises(InvalidArgument):
            requests.request_backfill(own, STREAM, "copy", "a", **options)
    with pytest.raises(TopicNotFound):
        requests.request_backfill(own, "tests/nobody", "copy", "a")
    assert count(db, "backfill_requests") == 0
    asked = _ask(own)
    for run, seconds in (("", 60.0), ("x" * 256, 60.0), ("one", 0.5), ("one", 90_000.0)):
        with pytest.raises(InvalidArgument):
            requests.claim_backfill(own, run, lease_seconds=seconds)
    claim = _claim(own)
    with pytest.raises(InvalidArgument, match="no range"):
        requests.progress(own, claim, BackfillUnit(0, 1, 2, 10, None, True))
    with pytest.raises(InvalidArgument):
        requests.fail(own, claim, "x", base_seconds=-1)
    assert _state(own, asked) == ("running", 0, 0)
    requests.extend(own, claim, 3600)


def test_a_request_without_anything_to_do_is_done(db: ContractDatabase) -> None:
    own = db.connect()
    _sealed(own)
    asked = requests.request_backfill(own, STREAM, "rehydrate")
    assert (asked.units, asked.total_events) == (0, 0)
    assert _state(own, asked.request) == ("done", 0, 0)


def test_old_requests_are_forgotten(db: ContractDatabase) -> None:
    """Those that ended more than 30 days ago, with their ranges."""
    own = db.connect()
    _sealed(own)
    old, waiting = _ask(own), _ask(own)
    requests.cancel(own, old)
    db.run("UPDATE penstock.backfill_requests SET changed_at = %(past)s", {"past": PAST})
    present = _ask(own)
    assert [each.request for each in requests.list_backfills(own)] == [present, waiting]
    assert count(db, "backfill_units") == 6
