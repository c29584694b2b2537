"""What policies let go early: without a copy, before it was read, dead letters by their age."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ops.policies import file as policy_file, policy
from ops.seal import due_log_epochs, seal
from penstock import database, log, subscriptions
from penstock.doctor.retention import examine_skips
from penstock.errors import BelowLowSequence, InvalidArgument
from penstock.subscriptions import dead_letters, policies, stream
from penstock.topics import holds
from penstock.upkeep.sweeping import sweep
from tests.contract.databases import ContractDatabase
from tests.contract.ops.test_guarded_drops import record
from tests.contract.stream_kit import Guard, without
from tests.kit.cleaning import clean_unread
from tests.kit.proof import proves
from tests.kit.stream import STREAM, SUBSCRIPTION, filled, member_with_lease

DAY = 86_400.0
GONE = "nothing sealed is left"

ANY_LAG: Guard = {
    "postgres": ("lowest_position", "s.max_lag_seconds = 0", "false"),
    "mysql": ("lowest_position", "OR s.max_lag_seconds = 0", ""),
}
ANY_AGE: Guard = {
    "postgres": (
        "lowest_position",
        "lowest_position.sealed_at > clock_timestamp() - make_interval(secs => s.max_lag_seconds)",
        "false",
    ),
    "mysql": ("lowest_position", "OR age < s.max_lag_seconds", ""),
}
NO_RECORD: Guard = {
    "postgres": ("clean_partition", "PERFORM record_skips(epoch, policy, run.run, size_then);", ""),
    "mysql": (
        "clean_partition",
        "CALL record_skips(part_id, epoch, first, last, policy_version, token, max_bytes,",
        "DO (",
    ),
}
NO_TARGET: Guard = {
    "postgres": ("retention_hold", "policy.targets = '{}' AND policy.copies > 0", "false"),
    "mysql": ("retention_hold", "JSON_LENGTH(targets) = 0 AND copies > 0", "FALSE"),
}
HELD_LETTERS: Guard = {
    "postgres": (
        "expire_dead_letters",
        "AND find_hold_over(d.partition_id, d.sequence, d.sequence) IS NULL",
        "",
    ),
    "mysql": ("find_expired_letters", "AND h.first_sequence <= d.sequence", "AND FALSE"),
}
PARKED_LETTERS: Guard = {
    "postgres": ("expire_dead_letters", "AND NOT d.parked", ""),
    "mysql": ("find_expired_letters", "AND NOT d.parked", ""),
}


def _keep(connection: Any, *targets: str, copies: int = 1) -> None:
    policy = {"minimum_age_seconds": 0, "copies": copies, "origin": "hand"}
    database.call(
        connection, "set_retention", max_bytes=None, topic=STREAM, targets=list(targets), **policy
    )


def _sealed(db: ContractDatabase, connection: Any, seconds_ago: int = 0) -> None:
    """Two log epochs of five unread events, sealed so long ago, with a copy."""
    filled(connection, events=10)
    for epoch in seal(connection, STREAM, max_events=5):
        record(connection, epoch, "a")
    _keep(connection, "a")
    if seconds_ago:
        ago = f"INTERVAL '{seconds_ago}' SECOND"
        db.run(f"UPDATE penstock.log_epochs SET sealed_at = sealed_at - {ago}")


def skipped_stream(db: ContractDatabase, connection: Any) -> None:
    """A subscription that retention has passed over by ten events."""
    _sealed(db, connection, seconds_ago=3600)
    _lag(connection, 1800)
    assert _clean(connection) == (11, GONE)


def _clean(connection: Any) -> tuple[int, str]:
    ((_, _, low, reason),) = clean_unread(connection, STREAM)
    return low, reason


def _lag(connection: Any, seconds: float, **where: str) -> None:
    where = where or {"scope": "subscription", "name": SUBSCRIPTION}
    policies.set_policy(connection, "keep", {"max_lag_seconds": seconds}, **where)


def _skipped(connection: Any) -> list[tuple[int, int, bool]]:
    found = subscriptions.skips(connection, SUBSCRIPTION)
    return [(each.first_sequence, each.last_sequence, each.unread) for each in found]


HELD = f'subscription "{SUBSCRIPTION}" stands at 0, log epoch 1 ends at 5'


@proves("D5, D9 by policy")
def test_retention_waits_as_long_as_the_policy_says(db: ContractDatabase) -> None:
    """Guard: the time in `lowest_position`. Then it goes, and the skip is recorded."""
    own = db.connect()
    _sealed(db, own, seconds_ago=3600)
    assert _clean(own) == (1, HELD)
    _lag(own, 7200)
    assert _clean(own) == (1, HELD)
    _lag(own, 1800)
    assert _clean(own) == (11, GONE)
    assert _skipped(own) == [(1, 5, True), (6, 10, True)]
    (first, _) = subscriptions.skips(own)
    assert (first.subscription, first.topic, first.partition) == (SUBSCRIPTION, STREAM, 0)
    assert (first.log_epoch, first.max_lag_seconds) == (1, 1800)
    assert db.run("SELECT DISTINCT lowest_position FROM penstock.retention_drops") == [(0,)]


@proves("D5, D9 by policy")
def test_a_policy_that_is_inherited_counts_and_one_of_its_own_comes_first(
    db: ContractDatabase,
) -> None:
    """A subscription that may never be passed over holds back what others do not."""
    own = db.connect()
    _sealed(db, own, seconds_ago=3600)
    _lag(own, 1800, scope="topic", name=STREAM)
    _lag(own, 0)
    assert _clean(own) == (1, HELD)
    stream.seek(own, SUBSCRIPTION, STREAM, 0, 6)
    stream.subscribe(own, "slow", [STREAM], "earliest")
    assert _clean(own)[0] == 6
    assert _skipped(own) == []
    (skip,) = subscriptions.skips(own)
    assert (skip.subscription, skip.first_sequence, skip.last_sequence) == ("slow", 1, 5)


@proves("D5, D9 by policy")
def test_what_is_read_in_part_is_skipped_from_there(db: ContractDatabase) -> None:
    """The row says which events the subscription never got."""
    own = db.connect()
    _sealed(db, own, seconds_ago=3600)
    stream.seek(own, SUBSCRIPTION, STREAM, 0, 4)
    _lag(own, 1800)
    assert _clean(own) == (11, GONE)
    assert _skipped(own) == [(4, 5, True), (6, 10, True)]


@proves("D5, D9 by policy")
def test_who_comes_back_gets_an_error_that_says_so(db: ContractDatabase) -> None:
    """D5: a typed error, a finding of the doctor, and the row stays when it reads on."""
    own = db.connect()
    _sealed(db, own, seconds_ago=3600)
    member, lease = member_with_lease(own, "a")
    assert examine_skips(own) == []
    _lag(own, 1800)
    _clean(own)
    with pytest.raises(BelowLowSequence, match="max_lag_seconds"):
        stream.poll(own, member, [lease])
    with pytest.raises(BelowLowSequence, match=r"low sequence 11(?!.*max_lag)"):
        log.fetch(own, STREAM, 0, 1)
    (finding,) = examine_skips(own)
    assert "10 events" in finding.what
    assert finding.command.startswith(f"penstock subscription seek {SUBSCRIPTION} {STREAM}")
    stream.seek(own, SUBSCRIPTION, STREAM, 0, "earliest")
    assert examine_skips(own) == []
    assert _skipped(own) == [(1, 5, False), (6, 10, False)]


@proves("D5, D9 by policy", guard="lowest_position")
@pytest.mark.parametrize("guard", [ANY_LAG, ANY_AGE])
def test_without_the_guards_nobody_is_waited_for(db: ContractDatabase, guard: Guard) -> None:
    """Mutants: a policy that says nothing lets all go; one that says something lets it go now."""
    own = db.connect()
    _sealed(db, own)
    _lag(own, DAY if guard is ANY_AGE else 0)
    assert _clean(own) == (1, HELD)
    without(db, guard)
    assert _clean(own) == (11, GONE)


@proves("D5, D9 by policy", guard="record_skips")
def test_without_the_record_it_is_skipped_in_silence(db: ContractDatabase) -> None:
    """Mutant: what D5 forbids."""
    own = db.connect()
    _sealed(db, own, seconds_ago=3600)
    _lag(own, 1800)
    without(db, NO_RECORD)
    assert _clean(own) == (11, GONE)
    assert _skipped(own) == []


# Without an archive.


@proves("D5, D9 by policy")
def test_without_a_copy_only_what_a_policy_says(db: ContractDatabase) -> None:
    """`archive: none`: no copy is asked for, none is read back, and the drop says so."""
    own = db.connect()
    filled(own, events=5)
    stream.unsubscribe(own, SUBSCRIPTION)
    seal(own, STREAM, max_events=5)
    _keep(own)
    assert _clean(own) == (1, "the retention policy names no archive target")
    _keep(own, copies=0)
    assert [each.targets for each in due_log_epochs(own, STREAM, 10)] == [()]
    assert _clean(own) == (6, GONE)
    assert db.run("SELECT copies FROM penstock.retention_drops") == [(0,)]


def test_without_the_guard_a_policy_without_targets_lets_all_go(db: ContractDatabase) -> None:
    """Mutant: the copies and the readings hold it all the same."""
    own = db.connect()
    filled(own, events=5)
    stream.unsubscribe(own, SUBSCRIPTION)
    seal(own, STREAM, max_events=5)
    _keep(own)
    without(db, NO_TARGET)
    assert _clean(own) == (1, "log epoch 1 has 0 of 1 verified copies")


@pytest.mark.parametrize("said", ["archive: none", "archive: [a]"])
def test_what_leaves_the_policy_file_lets_nothing_go(db: ContractDatabase, said: str) -> None:
    """Guard: _TAKEN_BACK of ops.policies.policy; its mutant leaves the policy in force."""
    own = db.connect()
    filled(own, events=5)
    stream.unsubscribe(own, SUBSCRIPTION)
    seal(own, STREAM, max_events=5)
    text = f"targets: {{a: a}}\ntopics: {{{STREAM}: {{{said}, retention: {{minimum_age: 0s}}}}}}"
    wanted, nothing = (policy_file.parse(each, Path("policies.yaml")) for each in (text, ""))
    assert [each.setting for each in policy.apply(own, wanted)] == ["retention"]
    assert [each.mendable for each in policy.drift(own, nothing)] == [True]
    policy.apply(own, nothing)
    assert policy.drift(own, nothing) == policy.apply(own, nothing) == []
    assert policy.retention_in_force(own) == {}
    assert _clean(own) == (1, "the retention policy names no archive target")
    policy.apply(own, wanted)
    assert policy.retention_in_force(own).keys() == {STREAM}


def test_no_copies_with_targets_is_no_policy(db: ContractDatabase) -> None:
    """Typed, and what was set stays; a policy of no copies forgets the targets."""
    own = db.connect()
    filled(own)
    _keep(own, "a")
    for copies in (0, -1):
        with pytest.raises(InvalidArgument):
            _keep(own, "a", copies=copies)
    given: dict[str, Any] = {"minimum_age_seconds": 0, "origin": "hand", "targets": None}
    database.call(own, "set_retention", max_bytes=None, topic=STREAM, copies=0, **given)
    ((_, _, copies, version, _, _, targets, _),) = database.call(own, "retention_of")
    assert (copies, version, list(targets)) == (0, 2, [])


# Dead letters.


def _letters(db: ContractDatabase, connection: Any, count: int = 3) -> None:
    """Dead letters of an hour ago, the last one parked."""
    filled(connection, events=count + 1)
    member, lease = member_with_lease(connection, "a")
    for sequence in range(1, count + 1):
        dead_letters.give_up(connection, member, lease, sequence, "x", attempts=1)
    hour = "INTERVAL '3600' SECOND"
    db.run(f"UPDATE penstock.dead_letters SET died_at = died_at - {hour}")
    db.run(f"UPDATE penstock.dead_letters SET parked = true WHERE sequence = {count}")


def _left(connection: Any) -> list[int]:
    return sorted(each.sequence for each in dead_letters.dead_letters(connection, SUBSCRIPTION))


def _keep_letters(connection: Any, seconds: float) -> None:
    settings = {"dead_letter_seconds": seconds}
    where = {"scope": "subscription", "name": SUBSCRIPTION}
    policies.set_policy(connection, "keep", settings, **where)


@proves("dead letters by age")
def test_dead_letters_go_by_their_own_age(db: ContractDatabase) -> None:
    """By the sweep, with a record; parked and redriven ones wait for somebody, and stay."""
    own = db.connect()
    _letters(db, own, 4)
    assert sweep(own).expired_letters == 0
    _keep_letters(own, 7200)
    assert sweep(own).expired_letters == 0
    (second,) = [e.id for e in dead_letters.dead_letters(own, SUBSCRIPTION) if e.sequence == 2]
    dead_letters.redrive(own, SUBSCRIPTION, [second])
    _keep_letters(own, 1800)
    assert [sweep(own, 1).expired_letters for _ in range(3)] == [1, 1, 0]
    assert _left(own) == [2, 4]
    assert db.run(
        "SELECT sequence, reason, dropped_by FROM penstock.dropped_letters ORDER BY sequence"
    ) == [(1, "x", "the policy dead_letter_seconds"), (3, "x", "the policy dead_letter_seconds")]


@proves("dead letters by age")
def test_dead_letters_under_a_legal_hold_stay(db: ContractDatabase) -> None:
    """Guard: the hold's line; without it they go."""
    own = db.connect()
    _letters(db, own)
    _keep_letters(own, 1800)
    holds.place_hold(own, STREAM, "case", "a claim", partition=0, first_sequence=1, last_sequence=1)
    assert sweep(own).expired_letters == 1
    assert _left(own) == [1, 3]
    without(db, HELD_LETTERS)
    assert sweep(own).expired_letters == 1


@proves("dead letters by age", guard="parked")
def test_without_the_guard_a_parked_letter_goes(db: ContractDatabase) -> None:
    """Mutant: later events of its key would wait behind nothing."""
    own = db.connect()
    _letters(db, own)
    _keep_letters(own, 1800)
    without(db, PARKED_LETTERS)
    assert sweep(own).expired_letters == 3
