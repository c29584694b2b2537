"""Retention by bytes: above the limit the oldest goes unread and young, but never uncopied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ops.policies import file as policy_file, policy
from ops.retention.clean import begin
from ops.seal import log_epochs, seal
from penstock import database, subscriptions
from penstock.doctor.retention import examine_byte_limits, examine_skips
from penstock.errors import BelowLowSequence, InvalidArgument
from penstock.publishing.publish import publish_batch
from penstock.records import Message, RetentionLimit
from penstock.subscriptions import policies, stream
from penstock.topics import holds
from tests.contract.databases import ContractDatabase
from tests.contract.ops.test_guarded_drops import record
from tests.contract.stream_kit import Guard, without
from tests.kit.cleaning import clean_unread
from tests.kit.log import drain, topic
from tests.kit.proof import proves
from tests.kit.stream import STREAM, SUBSCRIPTION, member_with_lease, slow_leases

DAY = 86_400
#: Each log epoch of these tests says so many bytes: five events of 100.
EPOCH = 500
UNREAD = "of log epoch 1 this run has read back 0 of 1 copies"
GONE = "nothing sealed is left"

NO_LIMIT_ON_READERS: Guard = {
    "postgres": (
        "retention_hold", "WHEN slowest.position < epoch.last_sequence AND NOT is_over",
        "WHEN slowest.position < epoch.last_sequence",
    ),
    "mysql": ("retention_hold", "WHEN lowest < last AND NOT is_over", "WHEN lowest < last"),
}  # fmt: skip
NO_LIMIT_ON_AGE: Guard = {
    "postgres": ("retention_hold", "> clock_timestamp() AND NOT is_over", "> clock_timestamp()"),
    "mysql": ("retention_hold", "WHEN age < minimum_age AND NOT is_over", "WHEN age < minimum_age"),
}
HOLDS_DO_NOT_COUNT: Guard = {
    "postgres": (
        "retention_hold", "WHEN held_by IS NOT NULL", "WHEN held_by IS NOT NULL AND NOT is_over",
    ),
    "mysql": (
        "retention_hold", "WHEN held_by IS NOT NULL", "WHEN held_by IS NOT NULL AND NOT is_over",
    ),
}  # fmt: skip
COPIES_DO_NOT_COUNT: Guard = {
    "postgres": (
        "retention_hold", "WHEN verified < policy.copies",
        "WHEN verified < policy.copies AND NOT is_over",
    ),
    "mysql": (
        "retention_hold", "WHEN verified < copies", "WHEN verified < copies AND NOT is_over",
    ),
}  # fmt: skip
READINGS_DO_NOT_COUNT: Guard = {
    "postgres": (
        "retention_hold", "whole < policy.copies", "whole < policy.copies AND NOT is_over",
    ),
    "mysql": ("retention_hold", "whole < copies", "whole < copies AND NOT is_over"),
}  # fmt: skip
YOUNGEST_FIRST: Guard = {
    "postgres": (
        "epochs_over_limit", "e.sealed_at DESC, e.partition_id DESC, e.log_epoch DESC",
        "e.sealed_at, e.partition_id, e.log_epoch",
    ),
    "mysql": (
        "epochs_over_limit", "e.sealed_at DESC, e.partition_id DESC, e.log_epoch DESC",
        "e.sealed_at, e.partition_id, e.log_epoch",
    ),
}  # fmt: skip
ALL_AT_ONCE: Guard = {
    "postgres": ("epochs_over_limit", "k.kept > r.max_bytes", "k.size > r.max_bytes"),
    "mysql": ("epochs_over_limit", "k.kept > k.max_bytes", "k.size > k.max_bytes"),
}
NO_REASON: Guard = {
    "postgres": (
        "record_skips", "CASE WHEN size_then IS NULL THEN 'max_lag' ELSE 'max_bytes' END",
        "'max_lag'",
    ),
    "mysql": ("record_skips", "IF(size_then IS NULL, 'max_lag', 'max_bytes')", "'max_lag'"),
}  # fmt: skip
BELOW_ONLY: Guard = {
    "postgres": ("record_skips", "AND NOT can_read_archive(", "AND NOT reads_archive("),
    "mysql": ("record_skips", "AND NOT can_read_archive(", "AND NOT reads_archive("),
}


def keep(own: Any, max_bytes: int | None, *, age: int = DAY, copies: int = 1) -> None:
    """A limit; by its age nothing of these tests goes."""
    targets = ["a"] if copies else None
    given = {"minimum_age_seconds": age, "copies": copies, "origin": "hand", "targets": targets}
    database.call(own, "set_retention", topic=STREAM, max_bytes=max_bytes, **given)


def publish(own: Any, partition: int, events: int = 5, size: int = 100) -> None:
    """Events of so many bytes; the content type counts too."""
    whole = b"x" * (size - len("application/octet-stream"))
    publish_batch(own, [Message(STREAM, whole, partition=partition) for _ in range(events)])
    drain(own)


def epochs(own: Any, *partitions: int, copied: bool = True) -> None:
    """A log epoch of five events in each, in this order, one partition after the other."""
    for partition in partitions:
        publish(own, partition)
        for epoch in seal(own, STREAM, max_events=5):
            if copied:
                record(own, epoch, "a")


def unread(own: Any, count: int = 4, **more: Any) -> None:
    """Log epochs of a minute ago at most that a subscription has not read."""
    topic(own, 1, STREAM)
    stream.subscribe(own, SUBSCRIPTION, [STREAM])
    epochs(own, *[0] * count, **more)


def clean(own: Any) -> list[tuple[int, str]]:
    """The low sequence of each partition, and what holds the rest."""
    return [(low, reason) for _, _, low, reason in clean_unread(own, STREAM)]


def held(epoch: int) -> str:
    """What holds a log epoch that the subscription has not read."""
    return f'subscription "{SUBSCRIPTION}" stands at 0, log epoch {epoch} ends at {epoch * 5}'


def limit(own: Any) -> RetentionLimit:
    """How full the topic is."""
    (row,) = database.call(own, "retention_limits")
    return RetentionLimit(*row)


@proves("D5, D9 above a limit in bytes")
def test_above_the_limit_the_oldest_go_unread_and_young_and_no_more_than_needed(
    db: ContractDatabase,
) -> None:
    """What stays fits; each skip says why; a second run removes nothing more."""
    own = db.connect()
    unread(own)
    keep(own, 4 * EPOCH)
    assert clean(own) == [(1, held(1))]
    assert limit(own) == RetentionLimit(STREAM, 4 * EPOCH, 4 * EPOCH, 0, 0, None, None, None)
    keep(own, 3 * EPOCH - 1)
    assert limit(own).above == EPOCH + 1
    for _ in range(2):
        assert clean(own)[0][0] == 11
        found = subscriptions.skips(own, SUBSCRIPTION)
        assert [(s.first_sequence, s.last_sequence, s.unread) for s in found] == [
            (1, 5, True), (6, 10, True),
        ]  # fmt: skip
        assert {(s.reason, s.limit_bytes, s.size_bytes) for s in found} == {
            ("max_bytes", 3 * EPOCH - 1, 4 * EPOCH)
        }
    assert limit(own).size == 2 * EPOCH
    assert (
        db.run("SELECT limit_bytes, size_bytes, lowest_position FROM penstock.retention_drops")
        == [(3 * EPOCH - 1, 4 * EPOCH, 0)] * 2
    )
    keep(own, 1)
    assert clean(own) == [(21, GONE)]


@proves("D5, D9 above a limit in bytes", guard="retention_hold")
@proves("D5, D9 above a limit in bytes", guard="epochs_over_limit")
@pytest.mark.parametrize(
    ("guard", "low"),
    [(NO_LIMIT_ON_READERS, 1), (NO_LIMIT_ON_AGE, 1), (ALL_AT_ONCE, 21), (YOUNGEST_FIRST, 21)],
)
def test_without_the_guards_too_little_or_too_much_goes(
    db: ContractDatabase, guard: Guard, low: int
) -> None:
    """Mutants: the limit waits for readers or age; takes all; keeps the oldest."""
    own = db.connect()
    unread(own)
    keep(own, 2 * EPOCH)
    without(db, guard)
    assert clean(own)[0][0] == low


@proves("D5, D9 above a limit in bytes")
def test_the_oldest_of_all_partitions_go_first(db: ContractDatabase) -> None:
    """One limit for the topic: a partition that is younger keeps all that it has."""
    own = db.connect()
    topic(own, 2, STREAM)
    stream.subscribe(own, SUBSCRIPTION, [STREAM])
    epochs(own, 1, 1, 0, 0, 1)
    keep(own, 3 * EPOCH)
    assert [low for low, _ in clean(own)] == [1, 11]
    keep(own, 2 * EPOCH)
    assert [low for low, _ in clean(own)] == [6, 11]


@proves("D5, D9 above a limit in bytes")
def test_what_goes_anyway_makes_room_first(db: ContractDatabase) -> None:
    """Guard: the first pass of `clean`. What everybody has read goes by age, and the rest fits."""
    own = db.connect()
    topic(own, 2, STREAM)
    stream.subscribe(own, SUBSCRIPTION, [STREAM])
    epochs(own, 0, 1, 1)
    stream.seek(own, SUBSCRIPTION, STREAM, 1, "latest")
    keep(own, 2 * EPOCH, age=0)
    assert [low for low, _ in clean(own)] == [1, 11]
    assert subscriptions.skips(own) == []


@proves("D5, D9 above a limit in bytes")
@proves("D5, D9 above a limit in bytes", guard="retention_hold")
@pytest.mark.parametrize("guard", [None, HOLDS_DO_NOT_COUNT])
def test_a_hold_is_never_passed_over(db: ContractDatabase, guard: Guard | None) -> None:
    """The doctor says what holds it and how to see it; the mutant removes what is held."""
    own = db.connect()
    unread(own)
    keep(own, 2 * EPOCH)
    holds.place_hold(own, STREAM, "case 17", "a claim", partition=0, first_sequence=8,
                     last_sequence=8)  # fmt: skip
    if guard is not None:
        without(db, guard)
        assert clean(own)[0][0] == 11
        return
    said = 'legal hold "case 17" covers log epoch 2'
    assert clean(own) == [(6, said)]
    assert clean(own) == [(6, said)]
    assert limit(own) == RetentionLimit(STREAM, 2 * EPOCH, 3 * EPOCH, 0, EPOCH, 0, 2, said)
    (finding,) = examine_byte_limits(own)
    assert said in finding.what
    assert finding.command.startswith(f"penstock hold list {STREAM}")


@proves("D5, D9 above a limit in bytes")
@proves("D5, D9 above a limit in bytes", guard="retention_hold")
@pytest.mark.parametrize("guard", [None, COPIES_DO_NOT_COUNT])
def test_nothing_goes_without_the_copies(db: ContractDatabase, guard: Guard | None) -> None:
    """The doctor says which command makes them; with `archive: none` it goes."""
    own = db.connect()
    unread(own, copied=False)
    keep(own, 2 * EPOCH)
    said = "log epoch 1 has 0 of 1 verified copies"
    if guard is not None:
        without(db, guard)
        assert clean(own)[0][1] == UNREAD
        return
    assert clean(own) == [(1, said)]
    (finding,) = examine_byte_limits(own)
    assert said in finding.what
    assert finding.command.startswith(f"penstock archive {STREAM}")
    record(own, log_epochs(own, STREAM)[0], "a")
    assert clean(own)[0][0] == 6
    keep(own, 2 * EPOCH, copies=0)
    assert clean(own)[0][0] == 11


@proves("D5, D9 above a limit in bytes")
@proves("D5, D9 above a limit in bytes", guard="retention_hold")
@pytest.mark.parametrize("guard", [None, READINGS_DO_NOT_COUNT])
def test_only_what_this_run_has_read_back_goes(db: ContractDatabase, guard: Guard | None) -> None:
    """A record alone is not believed; the mutant believes it."""
    own = db.connect()
    unread(own)
    keep(own, 2 * EPOCH)
    if guard is not None:
        without(db, guard)
    ((run,),) = database.call(own, "begin_clean", topic=STREAM)
    rows = database.call(own, "clean", topic=STREAM, run=str(run))
    if guard is not None:
        assert rows[0][2] == 11
        return
    assert rows[0][2:] == (1, UNREAD)
    (finding,) = examine_byte_limits(own)
    assert finding.command == f"penstock clean {STREAM} --yes"


@proves("D5, D9 above a limit in bytes")
def test_what_an_older_version_has_sealed_is_counted_once(db: ContractDatabase) -> None:
    """By the run of clean, where there is a limit, some at a time; meanwhile too little goes."""
    own = db.connect()
    unread(own)
    db.run("UPDATE penstock.log_epochs SET event_bytes = NULL")
    keep(own, None)
    begin(db.url, STREAM)
    assert db.run("SELECT COUNT(event_bytes) FROM penstock.log_epochs") == [(0,)]
    assert database.call(own, "retention_limits") == []
    keep(own, 2 * EPOCH)
    assert (limit(own).size, limit(own).uncounted) == (0, 4)
    for left, size in ((3, EPOCH), (2, 2 * EPOCH)):
        assert database.call(own, "count_log_epochs", topic=STREAM, max_events=5) == [(left,)]
        assert (limit(own).size, limit(own).uncounted) == (size, left)
        assert clean(own) == [(1, held(1))]
    begin(db.url, STREAM)
    assert limit(own).uncounted == 0
    assert clean(own)[0][0] == 11
    with pytest.raises(InvalidArgument, match="max_events cannot be 0"):
        database.call(own, "count_log_epochs", topic=STREAM, max_events=0)


@proves("D5, D9 above a limit in bytes")
@proves("D5, D9 above a limit in bytes", guard="record_skips")
@pytest.mark.parametrize("guard", [None, NO_REASON])
def test_who_comes_back_is_told_the_limit(db: ContractDatabase, guard: Guard | None) -> None:
    """PS016 and the doctor; the mutant blames the subscription's own policy."""
    own = db.connect()
    unread(own)
    member, lease = member_with_lease(own, "a")
    keep(own, 2 * EPOCH)
    if guard is not None:
        without(db, guard)
    clean(own)
    with pytest.raises(BelowLowSequence, match="max_lag" if guard else "max_bytes 1000.*2000"):
        stream.poll(own, member, [lease])
    (finding,) = examine_skips(own)
    if guard is None:
        assert "held 2.0 KiB, more than its max_bytes of 1000 bytes" in finding.what
        assert "archive" in finding.what
    assert finding.command.startswith(f"penstock subscription seek {SUBSCRIPTION} {STREAM}")
    assert examine_byte_limits(own) == []


@proves("D5, D9 above a limit in bytes")
def test_the_reason_is_of_the_log_epoch_and_not_of_the_run(db: ContractDatabase) -> None:
    """One is old enough for the subscription's policy, the next is not and goes by the limit."""
    own = db.connect()
    unread(own)
    keep(own, 2 * EPOCH, age=0)
    policies.set_policy(own, "keep", {"max_lag_seconds": DAY}, scope="global", name="")
    ago = "INTERVAL '2' DAY"
    db.run(f"UPDATE penstock.log_epochs SET sealed_at = sealed_at - {ago} WHERE log_epoch = 1")
    assert clean(own)[0][0] == 11
    found = [(s.reason, s.limit_bytes, s.size_bytes) for s in subscriptions.skips(own)]
    assert found == [("max_lag", None, None), ("max_bytes", 2 * EPOCH, 3 * EPOCH)]


@proves("D5, D9 above a limit in bytes")
@proves("D5, D9 above a limit in bytes", guard="record_skips")
@pytest.mark.parametrize(("guard", "stood"), [(None, 5), (None, 7), (BELOW_ONLY, 5)])
def test_who_can_read_the_archive_misses_nothing(
    db: ContractDatabase, guard: Guard | None, stood: int
) -> None:
    """Also who stands exactly before the low sequence, or above it; the mutant records a skip."""
    own = db.connect()
    unread(own)
    slow_leases(own)
    member, lease = member_with_lease(own, "a")
    keep(own, 3 * EPOCH)
    clean(own)
    stream.note_archive_reads(own, SUBSCRIPTION, [lease])
    stream.commit(own, member, [(lease, stood)])
    keep(own, 2 * EPOCH)
    if guard is not None:
        without(db, guard)
    assert clean(own)[0][0] == 11
    found = [(s.first_sequence, s.last_sequence) for s in subscriptions.skips(own)]
    assert found == [(1, 5)] + ([(6, 10)] if guard else [])


def test_the_policy_file_sets_the_limit(db: ContractDatabase) -> None:
    """What differs is drift, in the words of the file; taken out, there is none any more."""
    own = db.connect()
    topic(own, 1, STREAM)
    kept = "minimum_age: 1d, max_bytes: 1KiB"
    text = f"topics: {{{STREAM}: {{archive: none, retention: {{{kept}}}}}}}"
    wanted = policy_file.parse(text, Path("policies.yaml"))
    assert [each.wanted for each in policy.apply(own, wanted)] == [
        "86400 s, without a copy, at most 1 KiB"
    ]
    assert policy.drift(own, wanted) == policy.apply(own, wanted) == []
    assert policy.retention_in_force(own)[STREAM].max_bytes == 1_024
    keep(own, 5, copies=0)
    (found,) = policy.drift(own, wanted)
    assert (found.found, found.mendable) == ("86400 s, without a copy, at most 5 B", True)
    without_limit = policy_file.parse(text.replace(", max_bytes: 1KiB", ""), Path("policies.yaml"))
    policy.apply(own, without_limit)
    assert policy.retention_in_force(own)[STREAM].max_bytes is None


def test_a_limit_is_a_number_of_bytes(db: ContractDatabase) -> None:
    """Typed; a new limit is a new version, and the same one is not."""
    own = db.connect()
    topic(own, 1, STREAM)
    for wrong in (0, -1):
        with pytest.raises(InvalidArgument, match=f"max_bytes cannot be {wrong}"):
            keep(own, wrong)
    for given, version in ((5, 1), (5, 1), (None, 2), (None, 2), (7, 3)):
        keep(own, given)
        ((_, _, _, found, _, _, _, max_bytes),) = database.call(own, "retention_of")
        assert (found, max_bytes) == (version, given)
