"""Deletion is tied to what was read: only what a run has read back under its token can go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ops.archive.copy_readings import CopyReading
from ops.seal import copies_of, due_log_epochs, log_epochs, seal
from penstock import database
from penstock.archive.targets import Target
from penstock.errors import EpochError, InvalidArgument, RetentionRefused
from penstock.publishing.publish import publish_batch
from penstock.records import LogEpoch, Message
from tests.contract.databases import ContractDatabase
from tests.contract.kit import give_up_soon, open_transaction
from tests.contract.stream_kit import Guard, without
from tests.kit.cleaning import (
    believed,
    clean_believing,
    clean_unread,
    read_all,
    record_reading,
)
from tests.kit.log import drain, topic
from tests.kit.proof import proves
from tests.kit.stream import STREAM

UNKNOWN = "00000000-0000-4000-8000-000000000000"

NO_READING: Guard = {
    "postgres": (
        "retention_hold",
        "WHEN run.run IS NOT NULL AND whole < policy.copies",
        "WHEN false",
    ),
    "mysql": (
        "retention_hold",
        "WHEN token IS NOT NULL AND whole < copies",
        "WHEN FALSE",
    ),
}
ANY_TARGET: Guard = {
    "postgres": ("retention_hold", "AND c.target = ANY (policy.targets)", ""),
    "mysql": ("retention_hold", "AND JSON_CONTAINS(targets, JSON_QUOTE(c.target))", ""),
}
DAMAGE_IS_NOTHING: Guard = {
    "postgres": ("clean_partition", "hold IS NULL AND run.damaged > 0", "false"),
    "mysql": ("clean_partition", "hold IS NULL AND damaged > 0", "FALSE"),
}
ANY_TIME: Guard = {
    "postgres": ("retention_hold", "AND c.changed_at <= run.begun_at", ""),
    "mysql": ("retention_hold", "AND c.changed_at <= begun", ""),
}
NOT_HELD_OFF: Guard = {
    "postgres": ("hold_off_clean", "FOR SHARE", ""),
    "mysql": ("hold_off_clean", "LOCK IN SHARE MODE", ""),
}


def _keep(connection: Any, *targets: str, name: str = STREAM, copies: int = 1) -> None:
    given = {"minimum_age_seconds": 0, "copies": copies, "origin": "hand"}
    database.call(
        connection, "set_retention", max_bytes=None, topic=name, targets=list(targets), **given
    )


def _sealed(connection: Any, epochs: int = 3, partitions: int = 1, target: str = "a") -> list[Any]:
    """Log epochs of one event, with a verified copy on a target, and a policy that names it."""
    topic(connection, partitions, STREAM)
    publish_batch(
        connection,
        [Message(STREAM, b"x", partition=n % partitions) for n in range(epochs * partitions)],
    )
    drain(connection)
    sealed = seal(connection, STREAM, max_events=1)
    for epoch in sealed:
        record(connection, epoch, target)
    _keep(connection, target)
    return sealed


def record(
    connection: Any, epoch: LogEpoch, target: str, location: str = "nowhere", layout: int = 1
) -> None:
    """A verified copy."""
    database.call(
        connection,
        "record_copy",
        topic=epoch.topic,
        partition=epoch.partition,
        log_epoch=epoch.log_epoch,
        target=target,
        location=location,
        event_count=epoch.event_count,
        checksum=epoch.checksum,
        layout=layout,
        first_row=0,
    )


def _begin(connection: Any, name: str = STREAM) -> str:
    return str(database.call(connection, "begin_clean", topic=name)[0][0])


def _clean(connection: Any, run: str | None) -> list[tuple[int, str]]:
    """The low sequence of each partition, and what holds the rest."""
    rows = database.call(connection, "clean", topic=STREAM, run=run)
    return [(low, reason) for _, _, low, reason in rows]


def _dropped(connection: Any) -> list[tuple[int, int]]:
    found = log_epochs(connection, STREAM)
    return [(each.partition, each.log_epoch) for each in found if each.dropped_at is not None]


@proves("D9 by reading")
def test_only_what_the_run_has_read_goes(db: ContractDatabase) -> None:
    """From the oldest on, and each drop says under which run."""
    own = db.connect()
    first, _, third = _sealed(own)
    run = _begin(own)
    for epoch in (first, third):
        assert record_reading(own, run, epoch, "a")
    assert _clean(own, run) == [(2, "of log epoch 2 this run has read back 0 of 1 copies")]
    assert db.run("SELECT log_epoch, run FROM penstock.retention_drops") == [
        (1, _as_stored(db, run))
    ]


def _as_stored(db: ContractDatabase, run: str) -> object:
    ((stored,),) = db.run("SELECT run FROM penstock.clean_runs WHERE ended_at IS NOT NULL")
    assert str(stored) == run
    return stored


@proves("D9 by reading", guard="the readings in retention_hold")
def test_what_nobody_has_read_stays(db: ContractDatabase) -> None:
    """Guard: the reading's line in `retention_hold`. Without it a record alone is believed."""
    own = db.connect()
    _sealed(own)
    held = "of log epoch 1 this run has read back 0 of 1 copies"
    assert _clean(own, _begin(own)) == [(1, held)]
    without(db, NO_READING)
    assert _clean(own, _begin(own)) == [(4, "nothing sealed is left")]


@proves("D9 by reading")
def test_clean_without_a_run_of_its_own_is_refused(db: ContractDatabase) -> None:
    """No token, an unknown one, of another topic, of a run that ended, or began too long ago."""
    own = db.connect()
    _sealed(own)
    topic(own, 1, "tests/other")
    ended = _begin(own)
    _clean(own, ended)
    old = read_all(own, STREAM)
    shift = (
        "begun_at - interval '7 hours'"
        if db.engine == "postgres"
        else ("begun_at - INTERVAL 7 HOUR")
    )
    db.run(f"UPDATE penstock.clean_runs SET begun_at = {shift} WHERE run = %(run)s", {"run": old})
    for run in (None, UNKNOWN, ended, old, _begin(own, "tests/other")):
        with pytest.raises(RetentionRefused, match="no run of clean"):
            _clean(own, run)
        with pytest.raises(RetentionRefused, match="no run of clean"):
            record_reading(own, run, log_epochs(own, STREAM)[0], "a")  # type: ignore[arg-type]
    assert _dropped(own) == []


def test_a_reading_counts_in_its_own_run_only(db: ContractDatabase) -> None:
    """Of two runs at once, and of one after the other."""
    own = db.connect()
    _sealed(own)
    read, unread = read_all(own, STREAM), _begin(own)
    assert _clean(own, unread)[0][0] == 1
    assert _clean(own, read)[0][0] == 4


@proves("D9 at a damaged copy", guard="the count in clean_partition")
def test_one_damaged_copy_stops_the_whole_run(db: ContractDatabase) -> None:
    """It is forgotten, so that backfill makes it again; nothing of the topic goes meanwhile.

    Guard: the count of damaged copies in `clean_partition`.
    """
    own = db.connect()
    sealed = _sealed(own, epochs=1, partitions=2)
    missing = (1, "log epoch 1 has 0 of 1 verified copies")
    run = read_all(own, STREAM)
    assert not record_reading(own, run, sealed[1], "a", checksum="0" * 64)
    assert _states(own) == [(0, "verified", ""), (1, "missing", "1 events and checksum 000")]
    words = "this run has found 1 damaged copies, which have to be made again first"
    assert _clean(own, run) == [(1, words), missing]
    record(own, sealed[1], "a")
    without(db, DAMAGE_IS_NOTHING)
    run = read_all(own, STREAM)
    assert not record_reading(own, run, sealed[1], "a", damage="torn")
    assert _states(own)[1] == (1, "missing", "torn")
    assert _clean(own, run) == [(2, "nothing sealed is left"), missing]


def _states(connection: Any) -> list[tuple[int, str, str]]:
    found = copies_of(connection, STREAM)
    return [(each.partition, each.state, str(each.detail)[:25]) for each in found]


@proves("D9 by reading")
def test_a_copy_that_was_made_again_meanwhile_was_not_read(db: ContractDatabase) -> None:
    """Guard: the copy has to be older than the run."""
    own = db.connect()
    first, *_ = _sealed(own, epochs=1)
    run = read_all(own, STREAM)
    record(own, first, "a")
    assert _clean(own, run)[0][0] == 1
    without(db, ANY_TIME)
    run = read_all(own, STREAM)
    record(own, first, "a")
    assert _clean(own, run)[0][0] == 2


def _again(connection: Any, epoch: LogEpoch) -> None:
    record(connection, epoch, "a", "new", layout=2)


def _moved(connection: Any, epoch: LogEpoch) -> None:
    ((moved,),) = database.call(
        connection, "move_copy", topic=STREAM, partition=0, log_epoch=epoch.log_epoch, target="a",
        old_location="old", location="new", first_row=0,
    )  # fmt: skip
    assert moved


@proves("D9 by reading")
@pytest.mark.parametrize("put", [_again, _moved])
def test_a_copy_that_is_just_being_recorded_was_not_read(db: ContractDatabase, put: Any) -> None:
    """A run that begins before the commit would read the old file, and find the stamp old enough.

    Guard: `begin_clean` and whoever records a copy wait for each other.
    """
    own = db.connect()
    first, *_ = _sealed(own, epochs=1)
    record(own, first, "a", "old", layout=2)
    with open_transaction(db) as recording, open_transaction(db) as cleaning:
        give_up_soon(db, cleaning)
        put(recording, first)
        with pytest.raises(Exception, match=r"(?i)lock"):
            read_all(cleaning, STREAM)
    with open_transaction(db) as recording, open_transaction(db) as cleaning:
        give_up_soon(db, recording)
        _begin(cleaning)
        with pytest.raises(Exception, match=r"(?i)lock"):
            put(recording, first)
    without(db, NOT_HELD_OFF)
    with open_transaction(db) as recording:
        put(recording, first)
        run = read_all(own, STREAM)
        recording.commit()
    assert _clean(own, run)[0][0] == 2


@proves("D9 by reading", guard="its targets")
def test_copies_count_on_the_targets_of_the_policy_only(db: ContractDatabase) -> None:
    """A copy on a target that the policy no longer names is read by nobody, and lets nothing go.

    Guard: the targets in `retention_hold`.
    """
    own = db.connect()
    _sealed(own, epochs=1, target="old")
    _keep(own, "new")
    held = [(1, "log epoch 1 has 0 of 1 verified copies")]
    assert due_log_epochs(own, STREAM, 10) == []
    run = _begin(own)
    record_reading(own, run, log_epochs(own, STREAM)[0], "old")
    assert _clean(own, run) == held
    _keep(own)
    assert _clean(own, _begin(own)) == [(1, "the retention policy names no archive target")]
    _keep(own, "new")
    without(db, ANY_TARGET)
    run = _begin(own)
    record_reading(own, run, log_epochs(own, STREAM)[0], "old")
    assert _clean(own, run)[0][0] == 2


def test_what_is_due_comes_by_turns_and_names_the_targets_to_read(db: ContractDatabase) -> None:
    """The oldest of each partition first; a partition that is held is left out from there on."""
    own = db.connect()
    sealed = _sealed(own, epochs=3, partitions=2)
    record(own, sealed[0], "elsewhere")
    database.call(
        own, "forget_copy", topic=STREAM, partition=1, log_epoch=2, target="a", reason="lost"
    )
    found = [(each.partition, each.log_epoch) for each in due_log_epochs(own, STREAM, 10)]
    assert found == [(0, 1), (1, 1), (0, 2), (0, 3)]
    assert len(due_log_epochs(own, STREAM, 3)) == 3
    assert {each.targets for each in due_log_epochs(own, STREAM, 10)} == {("a",)}
    for bad in (0, 1_001):
        with pytest.raises(InvalidArgument):
            due_log_epochs(own, STREAM, bad)
    with pytest.raises(EpochError):
        record_reading(own, _begin(own), LogEpoch(STREAM, 0, 9, 1, 1, 1, "x"), "a")


def test_targets_of_a_policy(db: ContractDatabase) -> None:
    """Each once and in order; not given they stay; a bad name is refused."""
    own = db.connect()
    topic(own, 1, STREAM)
    _keep(own, "b", "a", "b")
    given: dict[str, Any] = {"minimum_age_seconds": 0, "copies": 1, "origin": "hand"}
    database.call(
        own, "set_retention", max_bytes=None, topic=STREAM, targets=None, **given | {"copies": 2}
    )
    ((_, _, copies, version, _, _, targets, _),) = database.call(own, "retention_of")
    assert (copies, version, list(targets)) == (2, 2, ["a", "b"])
    for bad in ("", "a b", "a\n", "-a", "x" * 64):
        with pytest.raises(InvalidArgument, match="not allowed"):
            _keep(own, bad)


@proves("D9 by reading")
def test_all_that_goes_was_read(db: ContractDatabase) -> None:
    """A run reads at most so many and drops exactly those, also when more become due meanwhile."""
    assert _runs_of_clean(db, epochs=40, most=50) == [50, 50, 50, 10]


@proves("D9 by reading")
@pytest.mark.long
@pytest.mark.timeout(600)
def test_of_3200_due_log_epochs_all_that_goes_was_read(db: ContractDatabase) -> None:
    """The same at the size of a real backlog: four runs of at most 1,000."""
    assert _runs_of_clean(db, epochs=800, most=1_000) == [1_000, 1_000, 1_000, 200]


def _runs_of_clean(db: ContractDatabase, epochs: int, most: int) -> list[int]:
    """How much each run removes, until nothing is due in four partitions."""
    own = db.connect()
    _many(own, partitions=4, epochs=epochs)
    late = f"partition_id % 65536 = 3 AND log_epoch > {epochs * 3 // 4}"
    db.run(f"UPDATE penstock.epoch_copies SET state = 'missing' WHERE {late}")
    before: set[tuple[int, int]] = set()
    runs = []
    read: set[tuple[int, int]] = set()

    def reader(target: Target, epochs: Sequence[LogEpoch]) -> Sequence[CopyReading]:
        read.update((each.partition, each.log_epoch) for each in epochs)
        db.run(f"UPDATE penstock.epoch_copies SET state = 'verified' WHERE {late}")
        return believed(target, epochs)

    while len(before) < 4 * epochs:
        read.clear()
        clean_believing(db.url, STREAM, "a", read=reader, most=most)
        gone = set(_dropped(own)) - before
        assert gone == read, f"{len(gone)} went, {len(read)} were read"
        before |= gone
        runs.append(len(gone))
    return runs


def _many(connection: Any, partitions: int, epochs: int) -> None:
    """Log epochs of one event with a recorded copy; no seal is needed for what is tested here."""
    topic(connection, partitions, STREAM)
    count = partitions * epochs
    publish_batch(
        connection, [Message(STREAM, b"", partition=n % partitions) for n in range(count)]
    )
    drain(connection)
    rows = [(part, epoch) for part in range(partitions) for epoch in range(1, epochs + 1)]
    ids = "(SELECT p.id FROM penstock.partitions AS p WHERE p.number = {})"
    past = "'2020-01-01'"
    for part in range(partitions):
        ((partition_id,),) = database.execute(connection, f"SELECT {ids.format(part)}")
        numbers = [epoch for own, epoch in rows if own == part]
        for table, columns, value in (
            (
                "log_epochs",
                "partition_id, log_epoch, first_sequence, last_sequence, event_count, checksum",
                "({0}, {1}, {1}, {1}, 1, 'x')",
            ),
            (
                "epoch_copies",
                "partition_id, log_epoch, target, location, state, detail, changed_at",
                f"({{0}}, {{1}}, 'a', '', 'verified', '', {past})",
            ),
        ):
            values = ", ".join(value.format(partition_id, number) for number in numbers)
            database.execute(
                connection, f"INSERT INTO penstock.{table} ({columns}) VALUES {values}"
            )
    _keep(connection, "a")


def test_clean_as_a_whole_run(db: ContractDatabase) -> None:
    """The helper of other tests does what the verb does."""
    own = db.connect()
    _sealed(own)
    assert [row[2] for row in clean_unread(own, STREAM)] == [4]
